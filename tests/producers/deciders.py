"""Deciders for tests of what stands around one: the limiter in memory, behind blocks that a test holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.limiter import Limiter, Listed, Request
from penaltybox.producers.memory import MemoryLimiter
from penaltybox.producers.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.policy import Policy

NOW = 1_766_400_000_000
PLAIN = parse_policy("limits: {s: {user: [{name: hour, limit: 1000000, window: 1h}]}}")


class Published(list[Any]):
    """Keeps what it is offered."""

    offer = list.append


class Time:
    """A clock that stands until it is told: monotonic milliseconds, and the wall's beside it."""

    def __init__(self) -> None:
        self.ms = 5_000

    def __call__(self) -> int:
        return self.ms

    @property
    def wall(self) -> int:
        return NOW + self.ms


class Hears:
    """A listener that has heard everything, or nothing."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.connected = True

    @property
    def heard_ms(self) -> int | None:
        return self.clock() if self.connected else None


def request(number: int, ts_ms: int = NOW, **changed: Any) -> Request:
    """Request `r<number>` of user u on device d at an address."""
    given = {"id": f"r{number}", "ts_ms": ts_ms, "scenario": "s", "route": "GET /"}
    return Request(**(given | {"subjects": {"user": "u", "device": "d", "ip": "192.0.2.1"}} | changed))


class Blocking:
    """A `Decider` over a dict of blocks: canonical subject -> (action, end on the requests' clock or None)."""

    def __init__(self, policy: Policy = PLAIN, established: dict[str, bool] | None = None) -> None:
        self.blocks: dict[str, tuple[Any, int | None]] = {}
        self.calls = 0
        self.asked: list[Request] = []
        self._established = established or {}
        self._names = Canonicaliser()
        self._limiter = MemoryLimiter(policy)
        self._refuser = Limiter({}, source="inner/1")

    async def _block(self, request: Request) -> tuple[str, Any, int | None] | None:
        for name in self._names.names(request.subjects):
            if name.text in self.blocks:
                action, until_ms = self.blocks[name.text]
                if until_ms is None or until_ms > request.ts_ms:
                    return name.text, action, until_ms
        return None

    async def decide(self, request: Request) -> Verdict:
        self.calls += 1
        self.asked.append(request)
        known = self._established.get(request.subjects.get("user", ""))
        request = msgspec.structs.replace(request, established=known)
        found = await self._block(request)
        if found is None:
            return await self._limiter.decide(request)
        subject, action, until_ms = found
        decision = self._refuser.refuse_listed(request, Listed(action, until_ms))
        return Verdict(
            action=action,
            reason=decision.reason,
            retry_after_ms=None if until_ms is None else until_ms - request.ts_ms,
            permanent=action == "deny" and until_ms is None,
            listed=subject,
            decisions=(decision,),
        )

    async def refund(self, idempotency_key: str) -> bool:
        return idempotency_key == "known"
