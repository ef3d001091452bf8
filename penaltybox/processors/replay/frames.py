"""Slices of a replay, and what was found in them, as bytes between processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.contracts.events import Command, Decision, Hold, Outcome, Penalty
from penaltybox.contracts.subjects import Names
from penaltybox.processors.replay.listed import ListChange
from penaltybox.processors.replay.stepped import Stepped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.processors.replay.observer import Side
    from penaltybox.processors.replay.records import Entry

LENGTH: Final = 4
"""Bytes before each frame that say how long it is, the lowest first."""
_SIDES: Final[tuple[Side, ...]] = ("baseline", "candidate")
_OTHERS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in (Outcome, Command, ListChange)}
_pack = msgspec.msgpack.Encoder().encode
_lines = msgspec.json.Encoder().encode_lines
_unlines = msgspec.json.Decoder(Decision).decode_lines
_unpack_others = {name: msgspec.msgpack.Decoder(kind).decode for name, kind in _OTHERS.items()}


class _Slice(msgspec.Struct, array_like=True):
    """Entries by column. `decisions` are lines of JSON; `others` are (position, kind, bytes)."""

    counted: bool
    clocks: list[int]
    ranks: list[int]
    offsets: list[int]
    stamps: list[int]
    decisions: bytes
    others: list[tuple[int, str, bytes]]


class _Side(msgspec.Struct, array_like=True):
    """One side's `Stepped`; stops are (position, place, which of the holds)."""

    penalties: list[tuple[int, int, Penalty]]
    holds: list[Hold]
    stops: list[tuple[int, int, int]]


class Found(msgspec.Struct, array_like=True, tag=0):
    """What a slice did: side by its number."""

    sides: dict[int, _Side]


class Last(msgspec.Struct, array_like=True, tag=1):
    """All slices are done: what limits answered, by side."""

    limits: dict[int, dict[str, int]]


class Failed(msgspec.Struct, array_like=True, tag=2):
    """Why no more will come."""

    sentence: str


Answer = Found | Last | Failed
_unpack_slice = msgspec.msgpack.Decoder(_Slice).decode
_unpack_answer = msgspec.msgpack.Decoder(Answer).decode


def framed(value: Any) -> bytes:
    """A value's bytes, with their length before them."""
    body = _pack(value)
    return len(body).to_bytes(LENGTH, "little") + body


def slice_frame(entries: Sequence[Entry], *, counted: bool) -> bytes:
    """A slice."""
    clocks, ranks, offsets, events, _, stamps = zip(*entries, strict=True)
    others = [
        (at, type(event).__name__, _pack(event)) for at, event in enumerate(events) if type(event) is not Decision
    ]
    decisions = events if not others else [event for event in events if type(event) is Decision]
    columns = (list(clocks), list(ranks), list(offsets), list(stamps))
    return framed(_Slice(counted, *columns, _lines(decisions), others))


def read_slice(body: bytes, canonicaliser: Canonicaliser) -> tuple[list[Entry], bool]:
    """The entries of a slice, and whether they count."""
    one = _unpack_slice(body)
    events: list[Any] = _unlines(one.decisions) if one.decisions else []
    for at, kind, raw in one.others:  # in their order, so each has its place when its turn comes
        events.insert(at, _unpack_others[kind](raw))
    name = canonicaliser.names
    names = [name(event.subjects) if type(event) in (Decision, Outcome) else Names(()) for event in events]
    return list(zip(one.clocks, one.ranks, one.offsets, events, names, one.stamps, strict=True)), one.counted


def found_frame(stepped: Mapping[Side, Stepped]) -> bytes:
    """What a slice did."""
    return framed(Found({_SIDES.index(side): _side(one) for side, one in stepped.items()}))


def _side(one: Stepped) -> _Side:
    rows = zip(one.penalties, one.penalty_places, strict=True)
    penalties = [(at, place, penalty) for (at, penalty), place in rows]
    holds = {id(hold): hold for hold in one.stopped.values()}
    number = {key: at for at, key in enumerate(holds)}
    stops = [(at, one.stop_places[at], number[id(hold)]) for at, hold in one.stopped.items()]
    return _Side(penalties, list(holds.values()), stops)


def last_frame(limits: Mapping[Side, Mapping[str, int]]) -> bytes:
    """The end."""
    return framed(Last({_SIDES.index(side): dict(counts) for side, counts in limits.items()}))


def read_answer(body: bytes) -> Answer:
    """What a process answers."""
    return _unpack_answer(body)


def stepped_of(found: Found) -> dict[Side, Stepped]:
    """Side -> what the slice did there."""
    sides: dict[Side, Stepped] = {}
    for number, one in found.sides.items():
        stepped = Stepped(
            [(at, penalty) for at, _, penalty in one.penalties],
            {at: one.holds[hold] for at, _, hold in one.stops},
            [place for _, place, _ in one.penalties],
            {at: place for at, place, _ in one.stops},
        )
        sides[_SIDES[number]] = stepped
    return sides


def limits_of(last: Last) -> dict[Side, dict[str, int]]:
    """Side -> what its limits answered."""
    return {_SIDES[number]: counts for number, counts in last.limits.items()}
