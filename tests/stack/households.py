"""A workload whose ladders are worth comparing: households that misbehave in bursts, hours ago, slightly out of order.

A household is three users on two devices behind one address. No subject is in two households, so that by partition of
the household all of a subject's events share one.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from penaltybox.contracts.events import Decision

POLICY = """\
rules:
  user_abuse:   {on: user, count: 5, window: 10m, then: step}
  user_devices: {on: user, distinct: device, n: 2, window: 5m, then: {score: 40}}
  device_farm:  {on: device, distinct: user, n: 3, window: 10m, then: {level: 5m}}
  device_burst: {on: device, count: 6, window: 5m, then: step}
  ip_accounts:  {on: ip, distinct: user, n: 3, window: 30m, then: {challenge: 15m}}
  ip_stuffing:
    {on: ip, count: 8, window: 5m, then: {level: 5m}, when: {scenario: [login], violated: ["ip:soft"]}}
  ip_route:     {on: ip+route, count: 4, window: 5m, then: step, when: {action: [deny]}}
  shadow_user:  {on: user, count: 3, window: 10m, then: step, shadow: true}
ladder: {rungs: [warn, 5m, 1h, permanent], warn: 10m, forgive: 8h, memory: 72h, jitter: 20}
score: {window: 1h, thresholds: [{at: 30, then: {challenge: 10m}}, {at: 70, then: {level: 1h}}]}
shared_ip: {established: 3, window: 14d}
allow: [{cidr: 10.0.3.0/28}]
breaker: false
late_after: 3650d
"""
BURSTS, BURST = 4, 15
SPAN_MS = 4 * 3_600_000
END_MS = 30 * 60_000
"""The last event is so long ago that no granule reaches the present: then nothing depends on the broker's clock."""
VERDICTS = (
    ("deny", "over_limit", ("user:daily",)),
    ("deny", "over_limit", ("user:daily",)),
    ("deny", "over_limit", ("device:burst", "ip:soft")),
    ("deny", "over_limit", ("ip:soft",)),
    ("challenge", "over_limit", ("ip:soft",)),
    ("deny", "blocklist", ()),
    ("allow", None, ()),
    ("allow", None, ()),
)


class Placed(NamedTuple):
    """A decision and the household whose it is."""

    household: int
    decision: Decision


def decisions(number: int, now_ms: int, seed: int = 1) -> list[Placed]:
    """So many decisions, in the order in which they are published."""
    chance = random.Random(seed)
    households = max(1, number // (BURSTS * BURST))
    start_ms = now_ms - END_MS - SPAN_MS
    found: list[tuple[int, Placed]] = []
    for household in range(households):
        for burst in range(BURSTS):
            at = start_ms + burst * SPAN_MS // BURSTS + chance.randrange(SPAN_MS // BURSTS - 10 * 60_000)
            scenario = chance.choice(["login", "coupon"])
            for step in range(BURST):
                at += chance.randrange(1, 20_000)
                event = decision(chance, household, f"{household}-{burst}-{step}", scenario, at)
                found.append((at, Placed(household, event)))
    found.sort(key=lambda pair: pair[0])
    return [placed for _, placed in found]


def decision(chance: random.Random, household: int, name: str, scenario: str, at: int) -> Decision:
    action, reason, violated = chance.choice(VERDICTS)
    user = f"u{household}-{chance.choice((0, 0, 0, 0, 1, 2))}"
    subjects = {"user": user, "device": f"d{household}-{chance.choice((0, 0, 0, 1))}", "ip": address(household)}
    if chance.randrange(6) == 0:
        del subjects[chance.choice(("user", "device"))]
    return Decision(
        v=1,
        id=name,
        ts=at - chance.choice((0, 0, 0, chance.randrange(60_000))),
        source="edge/1",
        scenario=scenario,
        action=action,
        reason=reason,
        violated=violated,
        subjects=subjects,
        established=chance.choice((None, True)) if household % 2 else None,
        route=chance.choice(("GET /a", "POST /b")),
        enforced=chance.randrange(20) > 0,
        count=chance.choice((1, 1, 1, 1, 2)),
    )


def address(household: int) -> str:
    if household % 5 == 0:
        return f"2001:db8:{household:x}::1"
    return f"10.{household >> 16 & 255}.{household >> 8 & 255}.{household & 255}"
