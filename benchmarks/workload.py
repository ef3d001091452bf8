"""The decisions that every benchmark here uses: 40,000 users on 9,000 devices and as many addresses, 20 % denied.

Seeded, so that two runs see the same input. `uniform` is the worst case (every subject equally likely, caches and
coalescing help least); `zipf` is nearer to real traffic.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from penaltybox.contracts.events import Decision, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

USERS, DEVICES, ADDRESSES = 40_000, 9_000, 9_000
DENIED = 0.2
ZIPF = 1.1


def decisions(count: int, now_ms: int, *, mix: str = "uniform", seed: int = 7, first: int = 0) -> Iterator[Decision]:
    """`count` decisions of coupon claims and logins, a hundred to a millisecond, the last one at `now_ms`.

    Args:
        count: how many.
        now_ms: time of the last one.
        mix: ``uniform`` or ``zipf``.
        seed: of the choices.
        first: number in the id of the first, so that several calls make different events.
    """
    rng = random.Random(seed)
    users = _users(rng, mix)
    for number in range(count):
        user = next(users)
        denied = rng.random() < DENIED
        yield Decision(
            v=1,
            id=f"01K3ZB5Q0V{first + number:016d}",
            ts=now_ms - (count - number) // 100,
            source="checkout/edge-1",
            scenario="coupon_claim",
            action="deny" if denied else "allow",
            reason="over_limit" if denied else None,
            violated=("user:daily",) if denied else (),
            subjects={"user": f"u{user}", "device": f"dev-{user % DEVICES:05d}", "ip": address(user)},
            route="POST /coupons/{id}/claim",
            status=429 if denied else 200,
            limit=3,
            window_s=86400,
            remaining=0 if denied else 2,
        )


def _users(rng: random.Random, mix: str) -> Iterator[int]:
    if mix == "uniform":
        while True:
            yield rng.randrange(USERS)
    weights = list(itertools.accumulate(1 / (rank + 1) ** ZIPF for rank in range(USERS)))
    while True:
        yield from rng.choices(range(USERS), cum_weights=weights, k=10_000)


def address(user: int) -> str:
    """The address of a user: one of 9,000, shared by four or five users that share no device."""
    number = user * 7919 % ADDRESSES
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def encoded(count: int, now_ms: int, **options: object) -> list[tuple[bytes, bytes]]:
    """(key, value) of `count` decisions as they go to Kafka."""
    made = decisions(count, now_ms, **options)  # type: ignore[arg-type]
    return [(f"user:{decision.subjects['user']}".encode(), encode(decision)) for decision in made]
