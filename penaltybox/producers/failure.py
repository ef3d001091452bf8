"""What a request gets while Redis does not answer: let through, refused, or judged by a limiter in memory.

After a failure nobody waits for Redis any more: one request at a time finds out whether it is back, the others are
answered at once. So a Redis that hangs costs one deadline per probe, however many requests come.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.producers.decisions import bare, seconds
from penaltybox.producers.limiter import Limiter
from penaltybox.producers.verdict import Verdict

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Limit, Policy
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.producers.limiter import Request

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0
LOCAL_PERCENT: Final = 50
_LOCAL_KEYS: Final = 100_000
_TOLD_AGAIN_S: Final = 60.0
_log = logging.getLogger("penaltybox.limiter")


class Breaker:
    """Whether Redis is asked at all. Times are of a monotonic clock, in seconds.

    Closed until a failure; then open: one probe after a pause, which doubles with every probe that fails.
    """

    def __init__(self, first_pause_s: float = FIRST_PAUSE_S, longest_pause_s: float = LONGEST_PAUSE_S) -> None:
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._pause_s = 0.0
        self._probe_at = 0.0
        self._changed_at = 0.0
        self.open = False
        self.openings = 0

    def admits(self, now_s: float, deadline_s: float) -> bool:
        """Whether a request may ask; while open, the one that may is the probe."""
        if not self.open:
            return True
        if now_s < self._probe_at:
            return False
        # If this probe is never heard of again (its caller gave up), the next one goes when it would have failed.
        self._probe_at = now_s + max(self._pause_s, deadline_s)
        return True

    def succeeded(self) -> None:
        """Somebody got an answer."""
        self.open = False

    def failed(self, now_s: float, asked_at_s: float) -> None:
        """Somebody who asked at `asked_at_s` got none. Those who asked before it opened are no news."""
        if not self.open:
            self.open = True
            self.openings += 1
            self._pause_s = self._first_pause_s
        elif asked_at_s < self._changed_at:
            return
        else:
            self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
        self._changed_at = now_s
        self._probe_at = now_s + self._pause_s

    def wait_s(self, now_s: float) -> float:
        """Until the next probe; 0 when closed."""
        return max(0.0, self._probe_at - now_s) if self.open else 0.0


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


class FailureCounts:
    """How many decisions were made without Redis, for metrics; and a line in the log when that starts and ends.

    Of outages that come and go, such as those of one node of a cluster, the log hears once a minute.
    """

    def __init__(self) -> None:
        self.decisions: Counter[tuple[str, str]] = Counter()
        """(scenario, reason) -> decisions."""
        self.errors: Counter[str] = Counter()
        """Kind of error -> calls of Redis that failed."""
        self.last_error = ""
        self.away = False
        self._before = 0
        self._told_at_s = float("-inf")
        self._away_told_at_s = float("-inf")
        self._told_away = False

    def failed(self, error: Exception, now_s: float) -> None:
        """A call of Redis failed at `now_s` of a monotonic clock."""
        self.errors[type(error).__name__] += 1
        self.last_error = str(error)
        if not self.away:
            self.away = True
            self._before = self.decisions.total()
        if now_s - self._away_told_at_s >= _TOLD_AGAIN_S:
            self._away_told_at_s, self._told_away = now_s, True
            _log.warning("Deciding without Redis, as each scenario's `failure` says: %s", error)

    def refused(self, error: Exception, now_s: float) -> None:
        """Redis answered a call with an error that only this request has; the log has one such line a second."""
        self.errors[type(error).__name__] += 1
        self.last_error = str(error)
        if now_s - self._told_at_s >= 1:
            self._told_at_s = now_s
            _log.error("A decision failed: %s", error)

    def decided(self, scenario: str, verdict: Verdict) -> None:
        """A decision was made without Redis."""
        self.decisions[scenario, str(verdict.reason)] += 1

    def succeeded(self) -> None:
        """A call of Redis was answered."""
        if self.away:
            self.away = False
            decided = self.decisions.total() - self._before
            if not self._told_away:
                return
            self._told_away = False
            _log.warning("Redis answers again; %d decisions were made without it", decided)
