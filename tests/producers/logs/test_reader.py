"""Readings become decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.producers.adapters.reading import Adapter, Format, Read, Reading
from penaltybox.producers.logs.blocks import Block
from penaltybox.producers.logs.progress import Progress
from penaltybox.producers.logs.reader import LogReader
from tests.producers.adapters.reading_of import options

if TYPE_CHECKING:
    from penaltybox.contracts.events import Decision

USUAL: dict[str, Any] = {
    "action": "deny",
    "reason": "over_limit",
    "violated": ("ip:a",),
    "subjects": {"ip": "192.0.2.1"},
    "scenario": "web",
    "route": "GET /a",
    "status": 429,
    "enforced": False,
    "attrs": {"a": "b"},
}
RARE: dict[str, Any] = {
    "established": True,
    "limit": 5,
    "window_s": 60,
    "remaining": 0,
    "retry_after_s": 0,
    "cost": 0,
    "count": 3,
    "cached": True,
    "sample_rate": 0.5,
}


def decided(**fields: Any) -> Decision:
    """The decision of a line that says this."""

    class Says(Adapter):
        def read(self, line: bytes) -> Read:
            del line
            return Reading(ts_ms=7, **fields)

    reader = LogReader(Format("says", lambda _: Says(), ()), options(), "says/1", Progress())
    (found,) = reader.read(Block(0, b"x", 2))
    return found.decision


@pytest.mark.parametrize("rare", [{}, *({name: value} for name, value in RARE.items()), RARE], ids=str)
def test_a_decision_has_all_that_a_reading_has(rare: dict[str, Any]) -> None:
    """Whichever of its fields are there; those that are not have their defaults."""
    decision = decided(**USUAL, **rare)
    defaults = Reading(ts_ms=7, action="allow", subjects={})
    for name in Reading.__struct_fields__:
        if name not in ("ts_ms", "id"):
            assert getattr(decision, name) == {**USUAL, **rare}.get(name, getattr(defaults, name)), name
    assert (decision.ts, decision.source, decision.v) == (7, "says/1", 1)
    assert set(Reading.__struct_fields__) == {"ts_ms", "id", *USUAL, *RARE}
