"""When there are too many new denials: a bad rule must not ban everybody. Pure; time is an argument."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penaltybox.contracts.policy import BreakerPolicy

WINDOW_S = 60.0
BUCKET_S = 5.0


class Breaker:
    """Counts new denials and distinct subjects over a sliding minute, in buckets of five seconds.

    A subject is counted in the bucket in which it was last counted longer than a minute ago; who calls `fresh` keeps
    the time of that with the subject.
    """

    def __init__(self, policy: BreakerPolicy | None) -> None:
        self._policy = policy
        self._buckets: deque[tuple[float, int, int]] = deque()

    def note(self, at_s: float, *, denials: int, subjects: int) -> str | None:
        """Add what one slice of input brought; why the breaker trips, or None.

        Args:
            at_s: monotonic seconds.
            denials: subjects newly denied.
            subjects: subjects seen that had not been seen for a minute.
        """
        policy = self._policy
        if policy is None:
            return None
        buckets = self._buckets
        while buckets and buckets[0][0] <= at_s - WINDOW_S:
            buckets.popleft()
        if buckets and at_s - buckets[-1][0] < BUCKET_S:
            since_s, before, seen = buckets.pop()
            buckets.append((since_s, before + denials, seen + subjects))
        else:
            buckets.append((at_s, denials, subjects))
        if not denials:
            return None
        denied = sum(bucket[1] for bucket in buckets)
        seen = max(1, sum(bucket[2] for bucket in buckets))
        if denied <= policy.denials or denied * 100 <= policy.share_percent * seen:
            return None
        return (
            f"{denied} new denials within a minute, of {seen} subjects seen; "
            f"the breaker allows {policy.denials} or {policy.share_percent} %"
        )

    def reset(self) -> None:
        """Start counting afresh, after a pause has ended."""
        self._buckets.clear()
