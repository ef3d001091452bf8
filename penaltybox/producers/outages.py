"""What the log hears of decisions that were made without Redis, and how many there were; node by node."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penaltybox.producers.verdict import Verdict

QUIET_S: Final = 60.0
"""An outage that begins within this time after the last line about its node is told only if it lasts."""
LASTING_S: Final = 5.0
"""What lasts this long is told in any case; and an outage is over when the node has answered for this long."""
_log = logging.getLogger("penaltybox.limiter")


class _Outage:
    """One node's, from the first failure until it has answered for a while."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.answering_s: float | None = None
        self.told = False
        self.decisions = 0


class FailureCounts:
    """How many decisions were made without Redis, for metrics; and lines in the log when that starts and ends.

    The first failure of a node is told at once. An outage that comes soon after another is told when it has lasted
    `LASTING_S`, and every minute. It is over, and that is told, when the node has answered for `LASTING_S`: until
    then another failure belongs to the same outage. So a node that comes and goes makes a few lines a minute at most.
    Times are of a monotonic clock, in seconds.
    """

    def __init__(self) -> None:
        self.decisions: Counter[tuple[str, str]] = Counter()
        """(scenario, reason) -> decisions."""
        self.errors: Counter[str] = Counter()
        """Kind of error -> calls of Redis that failed."""
        self.last_error = ""
        self._outages: dict[str, _Outage] = {}
        self._errors: dict[str, Exception] = {}
        self._told_s: dict[str, float] = {}
        self._untold: Counter[str] = Counter()
        self._refused_told_s = float("-inf")

    @property
    def away(self) -> bool:
        """Whether there is an outage, or was one a moment ago."""
        return bool(self._outages)

    def failed(self, error: Exception, now_s: float, node: str = "") -> None:
        """A call of a node failed."""
        self.errors[type(error).__name__] += 1
        self.last_error = str(error)
        outage = self._outages.setdefault(node, _Outage(now_s))
        outage.answering_s = None
        self._errors[node] = error
        self._tell_if_due(node, outage, now_s)

    def refused(self, error: Exception, now_s: float) -> None:
        """Redis answered a call with an error that only this request has; the log has one such line a second."""
        self.errors[type(error).__name__] += 1
        self.last_error = str(error)
        if now_s - self._refused_told_s >= 1:
            self._refused_told_s = now_s
            _log.error("A decision failed: %s", error)

    def decided(self, scenario: str, verdict: Verdict, now_s: float, nodes: Iterable[str] = ("",)) -> None:
        """A decision was made without Redis, because of some of these nodes."""
        self.decisions[scenario, str(verdict.reason)] += 1
        for node in nodes:
            outage = self._outages.get(node)
            if outage is not None and outage.answering_s is None:
                outage.decisions += 1
                self._tell_if_due(node, outage, now_s)

    def succeeded(self, now_s: float, nodes: Iterable[str] = ("",)) -> None:
        """A call of these nodes was answered."""
        for node in nodes:
            outage = self._outages.get(node)
            if outage is None:
                continue
            if outage.answering_s is None:
                outage.answering_s = now_s
            if now_s - outage.answering_s >= LASTING_S:
                self._end(node, "answers again", outage.answering_s, now_s)

    def keep(self, nodes: Collection[str], now_s: float) -> None:
        """Only these nodes are left; the others' keys are elsewhere now."""
        for node in [node for node in self._outages if node not in nodes]:
            self._end(node, "is no longer needed: its keys are on other nodes now", now_s, now_s)
            self._told_s.pop(node, None)
            self._untold.pop(node, None)

    def _tell_if_due(self, node: str, outage: _Outage, now_s: float) -> None:
        since_s = now_s - self._told_s.get(node, float("-inf"))
        lasted_s = now_s - outage.began_s
        if since_s < QUIET_S and (outage.told or lasted_s < LASTING_S):
            return
        outage.told = True
        self._told_s[node] = now_s
        without = f"the node {node} of Redis" if node else "Redis"
        more = f", for {lasted_s:.0f} s now" if lasted_s >= LASTING_S else ""
        short = self._untold.pop(node, 0)
        before = f" ({short} short outages since the last line)" if short else ""
        _log.warning(
            "Deciding without %s, as each scenario's `failure` says%s: %s%s", without, more, self._errors[node], before
        )

    def _end(self, node: str, how: str, ended_s: float, now_s: float) -> None:
        outage = self._outages.pop(node)
        self._errors.pop(node, None)
        if not outage.told:
            self._untold[node] += 1
            return
        self._told_s[node] = now_s
        _log.warning(
            "Redis%s %s, after %.1f s; %d decisions were made without it",
            f" node {node}" if node else "", how, ended_s - outage.began_s, outage.decisions,
        )  # fmt: skip
