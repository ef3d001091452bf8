"""What an inline limiter answers about a request, whatever stands around it: middleware, decorator, gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from penaltybox.contracts.events import Action, Decision, Reason
    from penaltybox.contracts.policy import Answer
    from penaltybox.producers.limiter import Request


class LimitState(NamedTuple):
    """One limit that applied to a request, after the decision.

    Attributes:
        name: ``dimension:limit name``.
        limit: quota in force for this subject, after plan, override and trust.
        window_ms: its window.
        remaining: the largest cost that fits now.
        reset_ms: until the whole quota is there again, if nobody takes from it; 0 when it is.
        wait_ms: 0 when the request fitted; else until its cost would fit; -1 when it never does (above the limit).
        answer: what the limit answers when it is violated.
        dry_run: it is tried only and never changes the answer.
    """

    name: str
    limit: int
    window_ms: int
    remaining: int
    reset_ms: int
    wait_ms: int
    answer: Answer
    dry_run: bool


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer about one request.

    Attributes:
        action: allow, deny, challenge, or shadow (pretend success, withhold the benefit).
        reason: None when it is allowed by its limits; else as in the published decision.
        limits: every limit that applied, in the policy's order; empty when nothing was counted.
        violated: names of the violated limits that are in force, all of them.
        retry_after_ms: when to come back; None when there is no such time.
        permanent: denied by a block without an end.
        listed: canonical subject whose block or challenge is the answer; a cache remembers it under this name.
        missing: a dimension that the scenario wants and the request lacks; refused because of it.
        decisions: what is published about the request; the first one is the answer, dry runs follow.
    """

    action: Action
    reason: Reason | None = None
    limits: tuple[LimitState, ...] = ()
    violated: tuple[str, ...] = ()
    retry_after_ms: int | None = None
    permanent: bool = False
    listed: str = ""
    missing: str = ""
    decisions: tuple[Decision, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the request goes on to the application."""
        return self.action == "allow"


class Decider(Protocol):
    """Whoever decides about requests."""

    async def decide(self, request: Request) -> Verdict:
        """The verdict; the decision is on its way to Kafka. It never raises because a server is away.

        Raises:
            BadEvent: a subject that is not allowed (see `Canonicaliser.subject`); nothing was counted.
        """

    async def refund(self, idempotency_key: str) -> bool:
        """Gives back what the request of this key took; False when there is nothing (left) to give back."""
