"""The limiter asked again about recorded requests, under other limits than those that decided them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.limiter import Limiter, Listed, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.events import Decision
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.processors.replay.world import Listing

SOURCE: Final = "replay/limits"


class OnlyASampleError(ConfigurationError):
    """Limits cannot be counted over a sample of the requests."""


class LimitsAgain:
    """A policy's limits over recorded decisions. A decision that allows, or that is over a limit, is asked about again.

    A recorded denial by the blocklist, a challenge in force then, or an answer during an outage says nothing about the
    limits: it stays as it is, counted apart.

    Args:
        policy: whose limits.
        canonicaliser: how subjects count.
    """

    def __init__(self, policy: Policy, canonicaliser: Canonicaliser) -> None:
        self.counts: Counter[str] = Counter()
        self._limiter = Limiter(policy.limits, source=SOURCE, canonicaliser=canonicaliser)

    def decide(self, decision: Decision, listed: Listing | None) -> Sequence[Decision]:
        """See `Relimiting.decide`."""
        if decision.sample_rate is not None and decision.sample_rate < 1:
            raise OnlyASampleError(
                f"decision {decision.id}: only a share of {decision.sample_rate:g} of the allowed requests was "
                "recorded, so changed limits cannot be counted over them. Replay with the same `limits` as the "
                "baseline, or over traffic that was published whole (the scenario's `publish` at 100)."
            )
        if not decision.enforced:
            return ()  # what a limit in dry run would have said then; today's say it anew
        if decision.reason not in (None, "over_limit"):
            self.counts["unknown_demand"] += decision.count
            return (decision,)
        request = _request(decision)
        if listed is not None:
            self.counts["stopped" if listed.action == "deny" else "challenged"] += decision.count
            answer = self._limiter.refuse_listed(request, Listed(listed.action, listed.until))
            return (msgspec.structs.replace(answer, count=decision.count),)
        return self._asked(decision, request)

    def _asked(self, decision: Decision, request: Request) -> Sequence[Decision]:
        """A record stands for `count` requests: asked about one by one until one is refused, and with it the rest."""
        for number in range(decision.count):
            answers = self._limiter.decide(request)
            if answers[0].reason is not None:
                left = decision.count - number
                self.counts["over_limit"] += left
                self.counts["newly_refused"] += left if decision.reason is None else 0
                self.counts["newly_allowed"] += number if decision.reason is not None else 0
                return (msgspec.structs.replace(answers[0], count=left), *answers[1:])
            self.counts["allowed"] += 1
        self.counts["newly_allowed"] += decision.count if decision.reason is not None else 0
        return answers


def _request(decision: Decision) -> Request:
    return Request(
        id=decision.id,
        ts_ms=decision.ts,
        scenario=decision.scenario,
        subjects=decision.subjects,
        route=decision.route,
        status=decision.status if decision.reason is None else None,
        cost=decision.cost,
        established=decision.established,
        attrs=decision.attrs,
    )
