"""The limiter of one process: a policy's limits counted in memory, no Redis. For programs that run once, and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from penaltybox.contracts.events import Decision
from penaltybox.producers.limiter import Limiter, Request
from penaltybox.producers.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from penaltybox.contracts.events import Outcome
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.subjects import Canonicaliser


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

    async def decide(self, request: Request) -> Verdict:
        """See `Decider.decide`."""
        if self._clock is not None:
            request = msgspec.structs.replace(request, ts_ms=self._clock())
        missing = self._missing(request)
        verdict = self._refuse(request, missing) if missing else self._limiter.judge(request)
        if self.publisher is not None and request.subjects:  # a record about nobody would be a dead letter
            for decision in verdict.decisions:
                self.publisher.offer(decision)
        return verdict

    async def refund(self, idempotency_key: str) -> bool:  # noqa: ARG002 - the protocol's; nothing is remembered here
        """Gives nothing back: what a request took is not remembered here."""
        return False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def _missing(self, request: Request) -> str:
        wanted = self.policy.scenario(request.scenario).missing
        return next((one for one, how in wanted.items() if how == "refuse" and one not in request.subjects), "")

    def _refuse(self, request: Request, missing: str) -> Verdict:
        decision = Decision(
            v=1,
            id=request.id,
            ts=request.ts_ms,
            source=self._limiter.source,
            scenario=request.scenario,
            action="deny",
            reason="unknown",
            subjects=request.subjects,
            established=request.established,
            route=request.route,
            status=400,
            cost=request.cost,
            attrs=request.attrs,
        )
        return Verdict(action="deny", reason="unknown", missing=missing, decisions=(decision,))
