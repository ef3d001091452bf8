"""Records for the analytics tests, and small random worlds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from penaltybox.contracts.events import DeadLetter, Decision, Outcome, Penalty, encode
from penaltybox.contracts.ids import penalty_id, ulid
from penaltybox.sinks.clickhouse.records import Batch, Table

if TYPE_CHECKING:
    import msgspec

T0_MS = 1_766_400_000_000  # 2025-12-22T10:40Z
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Sent(NamedTuple):
    """A record as the transport hands it over."""

    offset: int
    timestamp: int
    value: bytes | None


def decision(number: int = 0, **fields: Any) -> Decision:
    """An allow, or whatever `fields` make of it."""
    ts = fields.pop("ts", T0_MS + number)
    return Decision(
        v=1,
        **{
            "id": ulid(ts, number),
            "ts": ts,
            "source": "checkout/edge-1",
            "scenario": "coupon_claim",
            "action": "allow",
            "subjects": {"user": f"u{number % 7}", "device": f"d{number % 3}", "ip": "203.0.113.7"},
            **fields,
        },
    )


def denial(number: int = 0, violated: str = "device:daily", **fields: Any) -> Decision:
    """An over-limit deny."""
    return decision(number, action="deny", reason="over_limit", violated=(violated,), **fields)


def outcome(number: int, label: str, ts: int, **subjects: str) -> Outcome:
    """A label."""
    return Outcome(v=1, id=f"o{number}", ts=ts, label=label, subjects=subjects)  # type: ignore[arg-type]


def probed(count: int = 9) -> list[Decision]:
    """Denials that the probe made challenges, each of a user of its own."""
    over: dict[str, Any] = {"action": "challenge", "reason": "over_limit", "violated": ("user:daily",)}
    return [decision(30_000 + n, subjects={"user": f"p{n}"}, attrs={"probe": "0.02"}, **over) for n in range(count)]


def penalty(number: int, subject: str, ts: int, **fields: Any) -> Penalty:
    """A five-minute deny by a rule."""
    return Penalty(
        **{
            "id": penalty_id(subject, "device_farm", str(number), "5m"),
            "ts": ts,
            "subject": subject,
            "from_": "none",
            "to": "5m",
            "to_ms": 300_000,
            "action": "deny",
            "until": ts + 300_000,
            "rule": "device_farm",
            "policy_version": "p1",
            "trigger_id": str(number),
            "seq": number + 1,
            **fields,
        }
    )


def letter(number: int) -> DeadLetter:
    """A record that was not JSON."""
    return DeadLetter(
        ts=T0_MS + number, reason="not_json", detail="it's not", topic="t", partition=0, offset=number, raw=b"\x00\xff{"
    )


def batch(
    table: Table, events: list[msgspec.Struct], first: int = 0, incarnation: str = "i1", partition: int = 0
) -> Batch:
    """Events as consecutive records from offset `first`."""
    records = [Sent(first + n, getattr(e, "ts", T0_MS), encode(e)) for n, e in enumerate(events)]
    return Batch(table, incarnation, partition, records)


class World(NamedTuple):
    """Events of a small random world, each kind in the order of its time."""

    decisions: list[Decision]
    outcomes: list[Outcome]
    penalties: list[Penalty]


LABELS = (
    "challenge_passed", "payment_ok", "identity_verified", "appeal_granted", "manual_unban", "duplicate_request",
    "confirmed_abuse", "chargeback", "challenge_failed",
)  # fmt: skip


def random_world(seed: int, requests: int = 900, span_ms: int = DAY_MS) -> World:
    """Few subjects and many denials, windows short and long, all labels, dry runs, shadow rules.

    `span_ms`: decisions lie within so much time. Roll-ups are built hour by hour, which takes a test's time.
    """
    rng = random.Random(seed)
    users, devices = 60, 40
    addresses = ["203.0.113.7", "203.0.113.8", "198.51.100.1", "2001:db8:1:2::5", "2001:db8:1:3::5"]
    decisions, outcomes, penalties = [], [], []
    for n in range(requests):
        user, device = rng.randrange(users), rng.randrange(devices)
        subjects = {"user": f"u{user}", "device": f"d{device}", "ip": rng.choice(addresses)}
        if rng.random() < 0.1:
            subjects["order"] = f"o{n % 9}"
        fields: dict[str, Any] = {"established": rng.choice([True, False, None]), "count": rng.choice([1, 1, 1, 4])}
        if rng.random() < 0.5:
            limits = rng.sample(
                ["user:daily", "device:daily", "device:burst", "ip:soft", "order:one"], rng.choice([1, 2])
            )
            fields |= {
                "action": rng.choice(["deny", "challenge", "shadow"]),
                "reason": rng.choice(["over_limit", "over_limit", "blocklist", "local_fallback"]),
                "violated": tuple(limit for limit in limits if limit.split(":")[0] in subjects) or ("ip:soft",),
                "window_s": rng.choice([60, 86_400, None, 1800]),
                "enforced": rng.random() < 0.95,
            }
        else:
            fields["sample_rate"] = rng.choice([None, 0.1])
        decisions.append(
            decision(n, ts=T0_MS + rng.randrange(span_ms), subjects=subjects, attrs={"asn": f"AS{user % 3}"}, **fields)
        )
    for n in range(requests // 4):
        subjects = {"user": f"u{rng.randrange(users)}", "device": f"d{rng.randrange(devices)}"}
        weights = [6, 6, 3, 2, 2, 2, 0.4, 0.2, 3]
        label = rng.choices(LABELS, weights)[0]
        outcomes.append(outcome(n, label, T0_MS + rng.randrange(2 * DAY_MS), **subjects))
    for n in range(requests // 10):
        subject = rng.choice([f"user:u{rng.randrange(users)}", f"device:d{rng.randrange(devices)}", "ip:203.0.113.7"])
        extra: dict[str, Any] = rng.choice(
            [
                {},
                {},
                {"shadow": True},
                {"action": "warn"},
                {"to": "permanent", "to_ms": None, "until": None},
                {"origin": "hand"},
            ]
        )
        penalties.append(penalty(n, subject, T0_MS + rng.randrange(DAY_MS), **extra))
    by_time = lambda event: event.ts  # noqa: E731
    return World(sorted(decisions, key=by_time), sorted(outcomes, key=by_time), sorted(penalties, key=by_time))
