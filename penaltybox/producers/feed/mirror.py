"""What an enforcer knows: the lines of a feed, taken up one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penaltybox.producers.feed.lines import InForce, Line, Name


class Mirror:
    """Everything that is in force, by name.

    A whole list takes the place of what was known when its last line is here; until then the old one holds.
    """

    def __init__(self) -> None:
        self.names: dict[Name, tuple[InForce, ...]] = {}
        self.cursor = ""
        """Where to ask on; empty: nothing is known yet."""
        self._coming: dict[Name, tuple[InForce, ...]] | None = None

    def take(self, line: Line) -> bool:
        """Takes up a line; True when what is in force has changed by it."""
        if line.op == "resync":
            self._coming = {}
        elif line.op == "synced":
            if self._coming is None:
                return False
            changed = self._coming != self.names or not self.cursor
            self.names, self._coming = self._coming, None
            self.cursor = line.cursor
            return changed
        elif line.op in ("add", "remove") and line.kind:
            return self._change((line.kind, line.name), line.in_force, line.cursor)
        elif line.op == "beat" and self._coming is None:
            self.cursor = line.cursor
        return False

    def _change(self, name: Name, in_force: tuple[InForce, ...], cursor: str) -> bool:
        if self._coming is not None:
            self._coming[name] = in_force
            return False
        before = self.names.get(name, ())
        if in_force:
            self.names[name] = in_force
        else:
            self.names.pop(name, None)
        self.cursor = cursor
        return before != in_force

    def broken_off(self) -> None:
        """The answer ended in the middle: a list that was not whole is forgotten."""
        self._coming = None

    def expire(self, now_ms: int) -> bool:
        """Forgets what has ended; True if something had."""
        ended = [
            name
            for name, in_force in self.names.items()
            if any(one.until is not None and one.until <= now_ms for one in in_force)
        ]
        for name in ended:
            left = tuple(one for one in self.names[name] if one.until is None or one.until > now_ms)
            if left:
                self.names[name] = left
            else:
                del self.names[name]
        return bool(ended)
