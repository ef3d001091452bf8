"""Hypothesis strategies: policies with short windows, and what few subjects do under them over hours and days."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from penaltybox.contracts.events import Decision, Outcome
from penaltybox.contracts.policy_file import policy_from

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy

START_MS = 1_766_400_000_000
RUNGS = ("warn", "5m", "1h", "permanent")

usual = settings(
    max_examples=int(os.environ.get("PENALTYBOX_TEST_EXAMPLES", "50")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""PENALTYBOX_TEST_EXAMPLES asks for a longer search than the ordinary run's."""


class Delivery(NamedTuple):
    """An event as a worker gets it."""

    event: Decision | Outcome
    broker_ms: int
    late: bool


windows = st.sampled_from(["10s", "1m", "10m", "1h", "1d"])
thens = st.one_of(
    st.just("step"),
    st.builds(lambda rung: {"level": rung}, st.sampled_from(RUNGS)),
    st.builds(lambda points: {"score": points}, st.integers(1, 60)),
    st.builds(lambda length: {"challenge": length}, st.sampled_from(["1m", "15m", "2h"])),
)
whens = st.sampled_from(
    [
        {},
        {},
        {},
        {"action": ["deny"]},
        {"action": ["allow", "delay"]},
        {"reason": ["*"]},
        {"reason": ["blocklist", "over_limit"]},
        {"violated": ["device:*"]},
        {"scenario": ["log*"]},
        {"route": ["GET /*"], "source": "edge/?"},
    ]
)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    on = draw(st.sampled_from(["user", "user", "device", "ip", "login_name", "device+scenario", "ip+route"]))
    rule: dict[str, Any] = {"on": on, "window": draw(windows), "when": draw(whens), "then": draw(thens)}
    if draw(st.booleans()):
        others = [one for one in ("user", "device", "ip", "attrs.address") if one != on]
        rule |= {"distinct": draw(st.sampled_from(others)), "n": draw(st.integers(2, 4))}
    else:
        rule["count"] = draw(st.integers(1, 4))
    if draw(st.integers(0, 5)) == 0:
        rule["shadow"] = True
    return rule


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    found = draw(st.lists(rules(), min_size=1, max_size=5))
    caps = draw(st.sampled_from([{"ip": "1h", "login_name": "challenge"}, {}, {"user": "5m", "ip": "permanent"}]))
    return policy_from(
        {
            "rules": {f"rule{index}": rule for index, rule in enumerate(found)},
            "ladder": {
                "rungs": list(RUNGS),
                "forgive": draw(st.sampled_from(["8h", "10m"])),
                "memory": "72h",
                "caps": caps,
                "jitter": draw(st.sampled_from([0, 50])),
            },
            "score": {
                "window": draw(st.sampled_from(["1h", "1m"])),
                "thresholds": [
                    {"at": draw(st.integers(1, 40)), "then": draw(st.sampled_from(["step", {"challenge": "5m"}]))},
                    {"at": draw(st.integers(41, 99)), "then": {"level": draw(st.sampled_from(RUNGS))}},
                ],
            },
            "shared_ip": draw(st.sampled_from([False, {"established": 2, "window": "1h"}])),
            "allow": draw(st.sampled_from([[], [], ["user:u1"], [{"cidr": "203.0.113.8/30"}]])),
        }
    )


few = st.integers(0, 2)
gaps = st.sampled_from([0, 0, 1, 500, 1_000, 1_000, 2_000, 7_000, 30_000, 300_000, 1_200_000, 3_600_000, 40_000_000])
verdicts = st.sampled_from(
    [
        ("deny", "over_limit", ["user:daily"]),
        ("deny", "over_limit", ["device:burst", "ip:soft"]),
        ("deny", "over_limit", ["ip:soft"]),
        ("deny", "over_limit", ["device+scenario:daily", "ip:soft"]),
        ("challenge", "over_limit", ["login_name:burst"]),
        ("challenge", "challenged", ["user:daily"]),
        ("deny", "blocklist", []),
        ("deny", "fail_closed", []),
        ("allow", None, []),
        ("allow", None, []),
        ("shadow", None, []),
    ]
)


@st.composite
def decisions(draw: st.DrawFn, number: int, ts: int, *, alone: bool) -> Decision:
    action, reason, violated = draw(verdicts)
    subjects = {"device": "d0"} if alone else {}
    who = {"user": f"u{draw(few)}", "ip": f"203.0.113.{draw(few) + 7}", "login_name": f"n{draw(few)}"}
    subjects |= {dimension: value for dimension, value in who.items() if draw(st.integers(0, 3))}
    if not alone and (not subjects or draw(st.booleans())):
        subjects["device"] = f"d{draw(few)}"
    return Decision(
        v=1,
        id=f"e{number}",
        ts=ts,
        source=draw(st.sampled_from(["edge/1", "edge/?"])),
        scenario=draw(st.sampled_from(["login", "coupon", ""])),
        action=action,
        reason=reason,
        violated=tuple(violated),
        subjects=subjects,
        established=draw(st.sampled_from([None, True, True, False])),
        route=draw(st.sampled_from(["", "GET /a", "x" * 200])),
        enforced=draw(st.integers(0, 6)) > 0,
        count=draw(st.sampled_from([1, 1, 1, 2, 50])),
        attrs=draw(st.sampled_from([{}, {"address": "a0"}, {"address": "a1"}])),
    )


@st.composite
def campaigns(draw: st.DrawFn, *, most: int = 40, alone: bool = False, outcomes: bool = True) -> list[Delivery]:
    """Events in the order in which a worker gets them: out of order by up to a minute, some by more, some twice.

    `alone`: all of them are (also) about one device.
    """
    now = broker_ms = START_MS
    found: list[Delivery] = []
    for number in range(draw(st.integers(1, most))):
        now += draw(gaps)
        ts = now - draw(st.sampled_from([0, 0, 0, 1, 900, 20_000, 59_000, 200_000]))
        broker_ms = max(broker_ms, now + draw(st.sampled_from([0, 0, 30, -1_000])))  # it never goes back in a partition
        late = draw(st.integers(0, 9)) == 0
        if found and draw(st.integers(0, 6)) == 0:
            found.append(draw(st.sampled_from(found)))
        elif outcomes and draw(st.integers(0, 9)) == 0:
            label = draw(st.sampled_from(["challenge_passed", "payment_ok", "chargeback"]))
            subjects = {"user": f"u{draw(few)}", "device": "d0", "ip": "203.0.113.7"}
            found.append(
                Delivery(Outcome(v=1, id=f"o{number}", ts=ts, label=label, subjects=subjects), broker_ms, late)
            )
        else:
            found.append(Delivery(draw(decisions(number, ts, alone=alone)), broker_ms, late))
    return found
