"""What a recorded event is to an engine: its kind, and the combined subjects that rules see in it."""

from __future__ import annotations

from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import Decision
from penaltybox.contracts.recognition import Sighting
from penaltybox.processors.replay.records import EVENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.processors.engine import Engine
    from penaltybox.processors.replay.records import Entry
    from penaltybox.processors.visibility import Kind

_kind_of = attrgetter("kind")


def kinds(engine: Engine, entries: Sequence[Entry]) -> Sequence[Kind | None]:
    """The kind of each decision; None for what is none."""
    events: list[Any] = [entry[EVENT] for entry in entries]
    types = set(map(type, events))
    if types == {Decision}:
        return engine.kinds(events)
    if Sighting in types:
        return list(map(_kind_of, events)) if types == {Sighting} else [_kind(engine, event) for event in events]
    decisions = [event for event in events if type(event) is Decision]
    found = iter(engine.kinds(decisions) if decisions else ())
    return [next(found) if type(event) is Decision else None for event in events]


def _kind(engine: Engine, event: Any) -> Kind | None:
    if type(event) is Sighting:
        kind: Kind = event.kind
        return kind
    return engine.kind(event) if type(event) is Decision else None


def combinations(engine: Engine) -> tuple[str, ...]:
    """The combinations of dimensions that rules are on."""
    return tuple(dict.fromkeys(rule.on for rule in engine.policy.rules if "+" in rule.on))


def named_combinations(engine: Engine, combined: Sequence[str], event: Decision) -> list[str]:
    """Those of a decision's combinations that it has all parts of, as subjects."""
    found = []
    for on in combined:
        values = {part: event.subjects.get(part) or getattr(event, part, "") for part in on.split("+")}
        if all(values.values()):
            with suppress(BadEvent):  # a route too long for a key
                found.append(engine.canonicaliser.combination(on, values))
    return found
