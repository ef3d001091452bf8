"""Whether Redis is asked at all: one breaker per node, so that a node that is away costs nothing to the others' keys.

After a failure nobody waits for that node any more: one request at a time finds out whether it is back, the others are
answered at once. So a node that hangs costs one deadline per probe, however many requests come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0


class Breaker:
    """Whether one server is asked. Times are of a monotonic clock, in seconds.

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

    def due(self, now_s: float) -> bool:
        """Whether a request may ask now."""
        return not self.open or now_s >= self._probe_at

    def admits(self, now_s: float, deadline_s: float) -> bool:
        """Whether a request may ask; while open, the one that may is the probe."""
        if not self.due(now_s):
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


class Breakers:
    """A breaker for each node that failed, by the node's name. A request asks only if all its nodes may be asked."""

    def __init__(self) -> None:
        self._failing: dict[str, Breaker] = {}
        self.openings = 0
        """How often one of them opened."""

    @property
    def open(self) -> bool:
        """Whether some node is not asked."""
        return bool(self._failing)

    @property
    def nodes(self) -> Collection[str]:
        """Which nodes are not asked."""
        return self._failing.keys()

    def admits(self, nodes: Iterable[str], now_s: float, deadline_s: float) -> bool:
        """Whether a request of these nodes may ask; one that may is the probe of all of them that are open."""
        found = [breaker for node in nodes if (breaker := self._failing.get(node)) is not None]
        if not all(breaker.due(now_s) for breaker in found):
            return False  # and no probe is spent on the others
        for breaker in found:
            breaker.admits(now_s, deadline_s)
        return True

    def succeeded(self, node: str) -> None:
        """The node gave somebody an answer."""
        self._failing.pop(node, None)

    def failed(self, node: str, now_s: float, asked_at_s: float) -> None:
        """The node gave none; see `Breaker.failed`."""
        breaker = self._failing.get(node)
        if breaker is None:
            breaker = self._failing[node] = Breaker()
            self.openings += 1
        breaker.failed(now_s, asked_at_s)

    def keep(self, nodes: Collection[str]) -> None:
        """Only these nodes are left; nobody will ask the others again."""
        for node in [node for node in self._failing if node not in nodes]:
            del self._failing[node]

    def wait_s(self, nodes: Iterable[str], now_s: float) -> float:
        """Until all of these nodes may be asked."""
        return max((self._failing[node].wait_s(now_s) for node in nodes if node in self._failing), default=0.0)
