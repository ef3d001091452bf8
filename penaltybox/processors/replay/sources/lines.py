"""Decisions and outcomes from a file of JSON lines, plain, gzip or Zstandard: as they go to Kafka, one a line."""

from __future__ import annotations

import codecs
import gzip
import zlib
from contextlib import contextmanager
from itertools import compress, repeat
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any, Final, cast

from penaltybox.contracts.decoding import decode_decisions, decode_outcome
from penaltybox.contracts.errors import BadEvent, ConfigurationError
from penaltybox.contracts.events import Outcome
from penaltybox.processors.intake import judge_decisions, sightings
from penaltybox.processors.replay.merge import clocked
from penaltybox.processors.replay.records import SLICE, Refusals
from penaltybox.processors.replay.times import lie

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from penaltybox.contracts.events import Decision
    from penaltybox.contracts.subjects import Canonicaliser, Names
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.replay.records import Entry, Window

_BLOCK: Final = 1 << 20
_LONGEST: Final = 8 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ts = attrgetter("ts")
_NO_BROKER: Final = 1 << 60
"""Nothing in a file bounds a `ts`."""


class Lines:
    """A file of JSON lines. Its order is the order of the replay; the latest `ts` so far stands for the broker's clock.

    Args:
        path: the file; how it is compressed is known by its first bytes.
        canonicaliser: judges the subjects.
        window: lines whose own `ts` lies outside are left out.
        engine: as for `TopicSource`.
    """

    unit = "bytes"

    def __init__(
        self, path: Path, canonicaliser: Canonicaliser, window: Window, *, engine: Engine | None = None
    ) -> None:
        self.title = str(path)
        self.done = 0
        self.total: int | None = None
        self.refused = Refusals("decisions as docs/events.md describes them; of a web server's log say combined:FILE")
        self.remarks: list[str] = []
        self._path = path
        self._canonicaliser = canonicaliser
        self._engine = engine
        self._start = window.start_ms if window.start_ms is not None else 0
        self._to = window.to_ms if window.to_ms is not None else _NO_BROKER
        self._bounded = window.start_ms is not None or window.to_ms is not None
        self._clock = self._number = 0
        self._left_out: tuple[int, int] | None = None
        """First and last time (ms) of what lies outside of the window."""
        self._after: list[tuple[Outcome, Names]] = []
        """Outcomes from after the window: they say who of those in it was legitimate."""

    async def slices(self) -> AsyncIterator[Sequence[Entry]]:
        """See `Reading.slices`."""
        with opened(self._path) as (raw, stream):
            self.total = self._path.stat().st_size
            for lines in _blocks(stream, self.title):
                self.done = raw.tell()
                for first in range(0, len(lines), SLICE):
                    entries = self._entries(lines[first : first + SLICE])
                    if entries:
                        yield entries
        if self._after:
            yield self._labels()
        self._tell_left_out()

    def _tell_left_out(self) -> None:
        """Where the records lie, if none of them lies in the window."""
        if not self._clock and self._left_out is not None:
            self.remarks.append(lie(*self._left_out))

    def _labels(self) -> list[Entry]:
        after = sorted(self._after, key=lambda one: one[0].ts)
        return [(event.ts, 0, self._number + at, event, names, event.ts) for at, (event, names) in enumerate(after, 1)]

    def _entries(self, lines: list[bytes]) -> list[Entry]:
        first = self._number + 1
        self._number += len(lines)
        numbers: Sequence[int] = range(first, first + len(lines))
        judged = self._judged(lines)
        if any(type(one) is BadEvent for one in judged):
            for number, one, line in zip(numbers, judged, lines, strict=True):
                if type(one) is BadEvent and line.strip():  # an empty line is no record
                    self.refused.note(one, f"line {number}")
            numbers = [number for number, one in zip(numbers, judged, strict=True) if type(one) is not BadEvent]
            judged = [one for one in judged if type(one) is not BadEvent]
        if self._bounded:
            after = [one for one in judged if type(one[0]) is Outcome and one[0].ts >= self._to]  # type: ignore[index] # ditto
            self._after += cast("list[tuple[Outcome, Names]]", after)
            inside = [self._start <= one[0].ts < self._to for one in judged]  # type: ignore[index] # no BadEvent
            if not all(inside):
                times = [one[0].ts for one, kept in zip(judged, inside, strict=True) if not kept]  # type: ignore[index]
                self._left_out = _span(times, self._left_out)
            numbers, judged = list(compress(numbers, inside)), list(compress(judged, inside))
        if not judged:
            return []
        events, names = zip(*cast("Sequence[tuple[Decision | Outcome, Names]]", judged), strict=True)
        clocks = clocked(list(map(_ts, events)), self._clock)
        self._clock = clocks[-1]
        return list(zip(clocks, repeat(0), numbers, events, names, clocks, strict=False))

    def _judged(self, lines: list[bytes]) -> Sequence[tuple[Any, Names] | BadEvent]:
        stamps = [_NO_BROKER] * len(lines)
        if self._engine is None:
            judged = decode_decisions(lines, stamps, self._canonicaliser)
        else:
            events, times, names, kinds, refused = judge_decisions(self._engine, lines, stamps)
            judged = list(zip(sightings(events, times, kinds), names, strict=True))
            for at, error in refused.items():
                judged[at] = error
        if not any(type(one) is BadEvent for one in judged):
            return judged
        return [
            self._outcome(line, one) if type(one) is BadEvent and b'"label"' in line else one
            for line, one in zip(lines, judged, strict=True)
        ]

    def _outcome(self, line: bytes, error: BadEvent) -> tuple[Outcome, Names] | BadEvent:
        try:
            outcome = decode_outcome(line, _NO_BROKER, self._canonicaliser)
            return outcome, self._canonicaliser.names(outcome.subjects)
        except BadEvent:
            return error


def _span(times: Sequence[int], known: tuple[int, int] | None) -> tuple[int, int]:
    first, last = known if known is not None else (times[0], times[0])
    return min(first, *times), max(last, *times)


def _blocks(stream: IO[bytes], title: str) -> Iterator[list[bytes]]:
    """Whole lines, about a megabyte of them at a time; a byte order mark before the first is no part of it."""
    rest, mark = b"", codecs.BOM_UTF8
    while block := _read(stream, title):
        lines = (rest + block.removeprefix(mark)).split(b"\n")
        mark = b""
        rest = lines.pop()
        if len(rest) > _LONGEST:
            raise ConfigurationError(
                f"--source {title}: a line is longer than {_LONGEST >> 20} MiB. Wanted JSON lines: one decision a line."
            )
        if lines:
            yield [line.rstrip(b"\r") for line in lines] if lines[0].endswith(b"\r") else lines
    if rest:
        yield [rest]


def _read(stream: IO[bytes], title: str) -> bytes:
    try:
        return stream.read(_BLOCK)
    except (OSError, EOFError, ValueError, zlib.error) as error:  # pyarrow's are both of the first and the third
        raise unreadable(title, error) from error


def unreadable(title: object, error: Exception) -> ConfigurationError:
    """The sentence about a file that cannot be opened or read on."""
    why = str(getattr(error, "strerror", None) or error).rstrip(".")
    return ConfigurationError(f"--source {title}: cannot be read: {why}. Give a file of JSON lines, or of Parquet.")


@contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """(the file as it is, its content).

    Raises:
        ConfigurationError: it cannot be opened.
    """
    try:
        raw = path.open("rb")
        magic = raw.read(4)
        raw.seek(0)
    except OSError as error:
        raise unreadable(path, error) from error
    with raw:
        if magic.startswith(_GZIP):
            with gzip.open(raw) as stream:
                yield raw, cast("IO[bytes]", stream)
        elif magic == _ZSTD:
            import pyarrow as pa  # noqa: PLC0415 - half a second that only these files need

            with pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd") as zipped:
                yield raw, cast("IO[bytes]", zipped)
        else:
            yield raw, raw
