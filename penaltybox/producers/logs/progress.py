"""How far reading has come, and what the lines were."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.producers.combined import shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.events import Decision

_MAX_SHAPES: Final = 50
_OTHER_SHAPES: Final = "(other shapes)"
_LOOKED_AT: Final = 240


class Progress(msgspec.Struct, kw_only=True):
    """Counts of lines and decisions. Times are the log's own, in milliseconds; 0 before the first decision.

    Attributes:
        files: logs that were opened.
        lines: read.
        read_bytes: of them.
        decisions: made of them; `actions` splits those in force, `would_have` those of dry runs.
        passed: lines that say nothing about limiting, by what they are.
        unmatched: lines that are none of the format, by why; `shapes` says what they look like, without content.
        late: decisions that came later than `lateness` allows to put in order.
        descending: logs that run backwards, and were read from their end.
        damaged: sentences about logs that could not be read on.
    """

    files: int = 0
    lines: int = 0
    read_bytes: int = 0
    decisions: int = 0
    actions: Counter[str] = msgspec.field(default_factory=Counter)
    would_have: Counter[str] = msgspec.field(default_factory=Counter)
    passed: Counter[str] = msgspec.field(default_factory=Counter)
    unmatched: Counter[str] = msgspec.field(default_factory=Counter)
    shapes: Counter[str] = msgspec.field(default_factory=Counter)
    late: int = 0
    descending: int = 0
    damaged: list[str] = []
    first_ms: int = 0
    last_ms: int = 0

    def refuse(self, why: str, line: bytes) -> None:
        """Counts a line that is none of the format."""
        self.unmatched[why] += 1
        kind = shape(line[:_LOOKED_AT].decode("utf-8", "backslashreplace"))
        self.shapes[kind if kind in self.shapes or len(self.shapes) < _MAX_SHAPES else _OTHER_SHAPES] += 1

    def made(self, decisions: Sequence[Decision]) -> None:
        """Counts decisions."""
        if not decisions:
            return
        self.decisions += len(decisions)
        if all(map(_enforced, decisions)):
            self.actions.update(map(_action, decisions))
        else:
            self.actions.update(one.action for one in decisions if one.enforced)
            self.would_have.update(one.action for one in decisions if not one.enforced)
        times = list(map(_ts, decisions))
        self.last_ms = max(self.last_ms, *times)
        self.first_ms = min(self.first_ms or times[0], *times)


_action: Final = attrgetter("action")
_enforced: Final = attrgetter("enforced")
_ts: Final = attrgetter("ts")
