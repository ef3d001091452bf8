"""The limiter of one process: a policy's limits counted in memory, no Redis. For programs that run once, and tests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

import msgspec

from penaltybox.contracts.clock import now_ms
from penaltybox.producers import decisions
from penaltybox.producers.limiter import Limiter, Request

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from penaltybox.contracts.events import Decision, Outcome
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.producers.verdict import Verdict

_MAX_CHARGES: Final = 100_000


class _Charge(NamedTuple):
    """A request that was allowed, and the limits that it took from."""

    request: Request
    names: frozenset[str]


class Offering(Protocol):
    """Whoever takes records to publish: at once, without an error."""

    def offer(self, record: Decision | Outcome) -> None:
        """Takes a record, or drops and counts it."""


class MemoryLimiter:
    """A `Decider` that counts in this process alone: what it counted is forgotten when the process ends.

    Blocks, trust, plans and lists are in Redis, so it knows none of them.

    Args:
        policy: its limits, and how scenarios treat a dimension that is missing.
        source: ``limiter/instance``, written into every decision.
        publisher: takes every decision; None publishes nothing.
        clock: milliseconds that count instead of the requests' own, e.g. in tests.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        source: str = "memory/1",
        publisher: Offering | None = None,
        canonicaliser: Canonicaliser | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.policy = policy
        self.publisher = publisher
        self._limiter = Limiter(policy.limits, source=source, canonicaliser=canonicaliser)
        self._clock = clock
        self._counting = threading.Lock()
        self._charges: dict[str, _Charge | None] = {}

    async def decide(self, request: Request) -> Verdict:
        """See `Decider.decide`."""
        if self._clock is not None:
            request = msgspec.structs.replace(request, ts_ms=self._clock())
        missing = self._missing(request)
        if missing:
            verdict = decisions.verdict_missing(request, self._limiter.source, missing)
        else:
            with self._counting:
                verdict = self._judge(request)
        if self.publisher is not None and request.subjects:  # a record about nobody would be a dead letter
            for decision in verdict.decisions:
                self.publisher.offer(decision)
        return verdict

    async def refund(self, idempotency_key: str) -> bool:
        """See `Decider.refund`. The last 100,000 requests that had a key can be refunded."""
        with self._counting:
            charge = self._charges.get(idempotency_key)
            if charge is None:
                return False
            self._charges[idempotency_key] = None  # given back: of all charges of a key, one can be
            now = self._clock() if self._clock is not None else now_ms()
            self._limiter.give_back(charge.request, charge.names, max(now, charge.request.ts_ms))
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def _missing(self, request: Request) -> str:
        wanted = self.policy.scenario(request.scenario).missing
        return next((one for one, how in wanted.items() if how == "refuse" and one not in request.subjects), "")

    def _judge(self, request: Request) -> Verdict:
        key = request.idempotency_key
        verdict = self._limiter.judge(request)
        spent = key in self._charges and self._charges[key] is None
        if key and verdict.allowed and request.cost and not spent:
            names = frozenset(state.name for state in verdict.limits if not state.wait_ms)
            if key not in self._charges and len(self._charges) >= _MAX_CHARGES:
                del self._charges[next(iter(self._charges))]
            self._charges[key] = _Charge(request, names)
        return verdict
