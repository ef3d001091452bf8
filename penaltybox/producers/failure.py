"""What a request gets while Redis does not answer: let through, refused, or judged by a limiter in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.producers.decisions import bare, seconds
from penaltybox.producers.limiter import Limiter
from penaltybox.producers.verdict import Verdict

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Limit, Policy
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.producers.limiter import Request

LOCAL_PERCENT: Final = 50
_LOCAL_KEYS: Final = 100_000


class Failures:
    """Verdicts without Redis, by each scenario's `failure`, and how many there were.

    Args:
        policy: its limits and scenarios.
        source: ``limiter/instance``, written into every decision.
        canonicaliser: how subjects count.
        local_percent: share of each quota that this process grants on its own; with N processes, 100 / N is exact.
    """

    def __init__(self, policy: Policy, source: str, canonicaliser: Canonicaliser, local_percent: int) -> None:
        self._policy = policy
        self._source = source
        limits = {
            scenario: {
                on: tuple(_conservative(limit, local_percent * how.newcomers_percent) for limit in thresholds)
                for on, thresholds in policy.limits[scenario].items()
            }
            for scenario, how in policy.scenarios.items()
            if how.failure == "local"
        }
        self._local = Limiter(limits, source=source, canonicaliser=canonicaliser, max_keys=_LOCAL_KEYS)

    def verdict(self, request: Request, wait_s: float) -> Verdict:
        """What the request gets; `wait_s` until Redis is asked again."""
        failure = self._policy.scenario(request.scenario).failure
        if failure == "local":
            return self._locally(request)
        if failure == "open":
            decision = bare(request, self._source, "allow", reason="fail_open")
            return Verdict(action="allow", reason="fail_open", decisions=(decision,))
        wait_ms = max(1000, round(wait_s * 1000))
        decision = bare(request, self._source, "deny", reason="fail_closed", status=503, retry_after_s=seconds(wait_ms))
        return Verdict(action="deny", reason="fail_closed", retry_after_ms=wait_ms, decisions=(decision,))

    def _locally(self, request: Request) -> Verdict:
        judged = self._local.judge(request)
        decisions = [msgspec.structs.replace(one, reason="local_fallback") for one in judged.decisions]
        return msgspec.structs.replace(judged, reason="local_fallback", decisions=tuple(decisions))


def _conservative(limit: Limit, share: int) -> Limit:
    """A limit with a share of its quota, in 1/10,000; at least 1."""
    quota = max(1, limit.limit * share // 10_000)
    burst = None if limit.burst is None else max(1, limit.burst * quota // limit.limit)
    return msgspec.structs.replace(limit, limit=quota, burst=burst)
