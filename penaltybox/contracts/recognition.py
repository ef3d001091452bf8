"""Decisions recognised by their bytes: what was judged once need not be decoded and judged again.

A record as our own publishers write it is a beginning with id and time, a head (source to violated), subjects, and a
tail (the rest). Each field is written independently of the others, so a record that is put together of a head, subjects
and a tail that were parts of good records is good, whatever its id and time: nothing can hide in it, and what it means
is known. There are few heads and tails, and the same subjects come again and again.
"""

from __future__ import annotations

import re
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from penaltybox.contracts.decoding import is_plain
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import MAX_RECORD_BYTES, Decision, Subjects, Text
from penaltybox.contracts.subjects import Names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penaltybox.contracts.subjects import Canonicaliser

MAX_PARTS: Final = 16_384
"""So many heads, and so many tails, are remembered."""
LONGEST_REST: Final = 16
"""Runs that are not looked at, at most, when hardly anything was recognised in the last one."""
UNKNOWN: Final = Names(())
"""The names of a record that is not recognised."""
_RECORD: Final = re.compile(rb'\n\{"v":1,"id":"[ !#-\[\]-~]{1,128}","ts":([1-9][0-9]{0,14}),([^{]*)(\{[^}]*\})(.*)')
"""Time, head, subjects, tail. In an id it lets in what `is_plain` does, but no quote; no time is out of range."""
_NONE: Final = b"1", b"", b"", b""
"""In their place, of a record in another form: a time, and parts that no record has."""
_ATTRS: Final = b',"attrs":{'
_SUBJECTS: Final = b'"subjects":'
_encode = msgspec.json.Encoder().encode
_decode_times = msgspec.json.Decoder(list[int]).decode
_decode_subjects = msgspec.json.Decoder(Subjects).decode
_decode_attrs = msgspec.json.Decoder(Annotated[dict[str, Text], msgspec.Meta(max_length=8)]).decode
_ID: Final = len('{"v":1,"id":"')
decode_recognised = msgspec.json.Decoder(Decision).decode
"""The decision of a record that was recognised."""


class Sighting(msgspec.Struct, gc=False):
    """A recognised decision that was not decoded: it tells what rules ask for, and decodes itself for the rest.

    Attributes:
        raw: the record.
        ts: its own time, or the broker's if that is earlier.
        kind: the engine's, for those who keep it with the decision.
    """

    raw: bytes
    ts: int
    kind: Any = None

    @property
    def id(self) -> str:
        """Its id."""
        raw = self.raw
        return raw[_ID : raw.index(b'"', _ID)].decode("ascii")

    @property
    def count(self) -> int:
        """How many decisions it stands for."""
        return self.whole.count if b',"count":' in self.raw else 1

    @property
    def whole(self) -> Decision:
        """All of it."""
        decision: Decision = decode_recognised(self.raw)
        return decision


class Recognised(NamedTuple):
    """A run of records, by column. The numbers mean nothing but that equal ones are alike.

    Attributes:
        times: their `ts`.
        names: of their subjects; `UNKNOWN` where they are not recognised.
        heads: number of (source, scenario, action, reason, violated); None where it is not recognised.
        tails: number of (established, route, enforced, names of attrs); None where it is not recognised.
    """

    times: list[int]
    names: list[Names]
    heads: list[int | None]
    tails: list[int | None]

    @classmethod
    def nothing(cls, count: int) -> Recognised:
        """So many records of which nothing is recognised."""
        return cls([0] * count, [UNKNOWN] * count, [None] * count, [None] * count)


class Recogniser:
    """Remembers, bounded, the parts of good records.

    Args:
        canonicaliser: names the subjects, and remembers those that come together.
    """

    def __init__(self, canonicaliser: Canonicaliser) -> None:
        self._canonicaliser = canonicaliser
        self._heads: dict[bytes, int] = {}
        self._tails: dict[bytes, int] = {}
        self._alike: dict[tuple[object, ...], int] = {}
        self._numbers = 0
        self._rest = self._resting = 0

    def recognise(self, raws: Sequence[bytes | None]) -> Recognised | None:
        """What is known of a run of records; None when it is not looked at, in a rest."""
        if self._resting:
            self._resting -= 1
            return None
        times, heads, spelled, tails = zip(*(_parts(raws) or map(_parts_of_one, raws)), strict=True)
        list(map(hash, spelled))  # beforehand: the look-ups alone are a loop so tight that they overlap
        return Recognised(
            _decode_times(b"[%b]" % b",".join(times)),
            list(map(self._canonicaliser.groups.get, spelled, repeat(UNKNOWN))),
            list(map(self._heads.get, heads)),
            list(map(self._tails.get, tails)),
        )

    def complete(self, seen: Recognised, at: int, raw: bytes) -> bool:
        """Look closer at one record of a run of which something was not recognised; whether it is now."""
        match = _RECORD.fullmatch(b"\n" + raw) if seen.heads[at] is not None else None
        if match is None:
            return False
        _, _, spelled, tail = match.groups()
        if seen.tails[at] is None:
            seen.tails[at] = self._tail_with_attrs(tail)
        if seen.tails[at] is None:
            return False
        if seen.names[at] is UNKNOWN:
            seen.names[at] = self._names(spelled)
        return seen.names[at] is not UNKNOWN

    def note(self, missed: int, count: int) -> None:
        """Of `count` records of a run so many were not recognised: if those are most, looking does not pay for now."""
        if 2 * missed <= count:
            self._rest = 0
        else:
            self._rest = min(LONGEST_REST, 2 * self._rest + 1)
            self._resting = self._rest

    def learn(self, judged: Iterable[tuple[bytes, Decision]]) -> None:
        """Remember the parts of records that were judged good, if they are exactly as our own publishers write them."""
        for raw, decision in judged:
            match = _RECORD.fullmatch(b"\n" + raw)
            if match is None:
                continue
            _, head, spelled, tail = match.groups()
            if head in self._heads and _bare(tail) in self._tails:
                continue
            canonical = is_plain(raw) and raw == _encode(decision)
            if canonical and head.endswith(_SUBJECTS) and spelled == _encode(decision.subjects):
                self._remember(decision, head, _bare(tail))

    def _remember(self, decision: Decision, head: bytes, tail: bytes) -> None:
        if max(len(self._heads), len(self._tails)) >= MAX_PARTS:
            self._heads.clear()
            self._tails.clear()
        self._heads[head] = self._number("head", head)
        self._tails[tail] = self._number("tail", decision.established, decision.route, decision.enforced)

    def _number(self, *alike: object) -> int:
        """The number of things that are alike; a number is never used again for others."""
        known = self._alike.get(alike)
        if known is None:
            if len(self._alike) >= MAX_PARTS:
                self._alike.clear()
            self._numbers += 1
            known = self._alike[alike] = self._numbers
        return known

    def _tail_with_attrs(self, tail: bytes) -> int | None:
        bare = self._tails.get(_bare(tail))
        raw = tail[tail.find(_ATTRS) + len(_ATTRS) - 1 : -1]
        if bare is None or not raw or not is_plain(raw) or not tail.endswith(b"}"):
            return None
        try:
            attrs = _decode_attrs(raw)
        except msgspec.MsgspecError:
            return None
        return self._number("attrs", bare, *attrs) if _encode(attrs) == raw else None

    def _names(self, spelled: bytes) -> Names:
        if not is_plain(spelled):
            return UNKNOWN
        try:
            subjects = _decode_subjects(spelled)
            return self._canonicaliser.names(subjects) if _encode(subjects) == spelled else UNKNOWN
        except (msgspec.MsgspecError, BadEvent):
            return UNKNOWN


def _parts(raws: Sequence[bytes | None]) -> list[tuple[bytes, ...]] | None:
    """Time, head, subjects, tail of each record in one go; None when not all have the form of our own publishers."""
    if not all(raws):
        return None
    given: Sequence[bytes] = raws  # type: ignore[assignment] # none is None
    text = b"\n".join((b"", *given))
    found = _RECORD.findall(text)
    # As many records as lines: then none begins within a line or goes beyond one.
    if len(found) != len(given) or text.count(b"\n") != len(given) or max(map(len, given)) > MAX_RECORD_BYTES:
        return None
    return found


def _parts_of_one(raw: bytes | None) -> tuple[bytes, ...]:
    match = _RECORD.fullmatch(b"\n" + raw) if raw and len(raw) <= MAX_RECORD_BYTES else None
    return _NONE if match is None else match.groups()


def _bare(tail: bytes) -> bytes:
    """A tail without attrs, which are the last field."""
    cut = tail.find(_ATTRS)
    return tail if cut < 0 else tail[:cut] + b"}"
