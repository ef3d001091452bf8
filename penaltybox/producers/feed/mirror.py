"""What an enforcer knows: the lines of a feed, taken up one by one."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penaltybox.producers.feed.lines import InForce, Line, Name

_SPARE: Final = 1_000


class Mirror:
    """Everything that is in force, by name.

    A whole list takes the place of what was known when its last line is here; until then the old one holds.
    """

    def __init__(self) -> None:
        self.names: dict[Name, tuple[InForce, ...]] = {}
        self.cursor = ""
        """Where to ask on; empty: nothing is known yet."""
        self._coming: dict[Name, tuple[InForce, ...]] | None = None
        self._changed: dict[Name, None] = {}
        self._ends: list[tuple[int, Name]] = []
        """When something ends (a heap); of what was told anew since then there are ends that mean nothing."""

    def take(self, line: Line) -> bool:
        """Takes up a line; True when what is in force has changed by it."""
        if line.op == "resync":
            self._coming = {}
        elif line.op == "synced":
            return self._synced(line.cursor)
        elif line.op in ("add", "remove") and line.kind:
            return self._change((line.kind, line.name), line.in_force, line.cursor)
        elif line.op == "beat" and self._coming is None:
            self.cursor = line.cursor
        return False

    def changes(self) -> dict[Name, tuple[InForce, ...]]:
        """What is in force against each name that has changed since the last call; nothing where it is gone."""
        changed, self._changed = self._changed, {}
        return {name: self.names.get(name, ()) for name in changed}

    def _synced(self, cursor: str) -> bool:
        if self._coming is None:
            return False
        before, first = self.names, not self.cursor
        self.names, self._coming, self.cursor = self._coming, None, cursor
        changed = [name for name, in_force in self.names.items() if before.get(name) != in_force]
        changed += before.keys() - self.names.keys()
        self._changed.update(dict.fromkeys(changed))
        self._find_ends()
        return bool(changed) or first

    def _change(self, name: Name, in_force: tuple[InForce, ...], cursor: str) -> bool:
        if self._coming is not None:
            self._coming[name] = in_force
            return False
        self.cursor = cursor
        if self.names.get(name, ()) == in_force:
            return False
        self._put(name, in_force)
        for one in in_force:
            if one.until is not None:
                heappush(self._ends, (one.until, name))
        if len(self._ends) > 2 * len(self.names) + _SPARE:
            self._find_ends()
        return True

    def _put(self, name: Name, in_force: tuple[InForce, ...]) -> None:
        self._changed[name] = None
        if in_force:
            self.names[name] = in_force
        else:
            self.names.pop(name, None)

    def _find_ends(self) -> None:
        self._ends = [
            (one.until, name) for name, in_force in self.names.items() for one in in_force if one.until is not None
        ]
        heapify(self._ends)

    def broken_off(self) -> None:
        """The answer ended in the middle: a list that was not whole is forgotten."""
        self._coming = None

    def expire(self, now_ms: int) -> bool:
        """Forgets what has ended; True if something had."""
        found = False
        while self._ends and self._ends[0][0] <= now_ms:
            _, name = heappop(self._ends)
            in_force = self.names.get(name, ())
            left = tuple(one for one in in_force if one.until is None or one.until > now_ms)
            if left != in_force:
                self._put(name, left)
                found = True
        return found
