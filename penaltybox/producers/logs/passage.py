"""One log file, or what comes through a pipe, read from one end to the other."""

from __future__ import annotations

import io
import os
import tempfile
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from penaltybox.producers.logs.blocks import BLOCK_BYTES, Block, Splitter, backwards
from penaltybox.producers.logs.files import Damaged, first_bytes, is_damage, pieces
from penaltybox.producers.logs.ordering import descends
from penaltybox.producers.logs.progress import Progress
from penaltybox.producers.logs.reader import HEAD_BYTES, Found, LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penaltybox.producers.adapters.reading import Format, Options

LATENESS_MS: Final = 60_000
SAMPLE_BYTES: Final = 65_536


class Common(NamedTuple):
    """What all logs of one run share.

    Attributes:
        form: their format.
        options: what it may know.
        source: the name in decisions and ids.
        progress: counts everything.
        lateness_ms: how far times may run backwards and are still put in order.
        report: called with `progress` now and then.
        allowed: also requests that the limiter let pass become decisions.
    """

    form: Format
    options: Options
    source: str
    progress: Progress
    lateness_ms: int = LATENESS_MS
    report: Callable[[Progress], None] = lambda _: None
    allowed: bool = False

    def reader(self) -> LogReader:
        """For one file."""
        return LogReader(self.form, self.options, self.source, self.progress, allowed=self.allowed)

    def times(self, sample: bytes) -> list[int]:
        """The times of the decisions in a log's first bytes; nothing is counted."""
        lines = sample[: sample.rfind(b"\n")] if b"\n" in sample else b""
        beside = self._replace(progress=Progress(), allowed=True).reader()
        return [one.ts_ms for one in beside.read(Block(0, lines, len(lines) + 1))]


class Stretch(NamedTuple):
    """The decisions of a block, and where reading would go on behind it."""

    found: list[Found]
    offset: int


def stretches(
    stream: IO[bytes], name: object, common: Common, *, start: int = 0, take_last: bool = True
) -> Iterator[Stretch]:
    """What a log says from `start` on.

    A log that runs backwards in time is read from its last line to its first; it has no place to go on at before it
    is through. One that cannot be read in that direction (a pipe, compressed) goes to a temporary file first.

    Args:
        stream: decompressed, at its beginning.
        name: for messages.
        common: format, options, counts.
        start: an offset behind a newline.
        take_last: also a last line without newline.

    Raises:
        Damaged: it cannot be read on, after all that could. A line that was cut off by it is not given.
    """
    reader = common.reader()
    if start:
        reader.begin(first_bytes(stream, name, HEAD_BYTES), _before(stream, name, start))
    parts = pieces(stream, name, SAMPLE_BYTES, BLOCK_BYTES)
    chunk = next(parts, b"")
    if not start and descends(common.times(chunk)):
        common.progress.descending += 1
        yield from _from_the_end(stream, chunk, parts, reader)
        return
    splitter = Splitter(start)
    while chunk:
        for block in splitter.feed(chunk):
            yield Stretch(reader.read(block), block.end)
        chunk = next(parts, b"")
    last = splitter.rest() if take_last else None
    if last is not None:
        yield Stretch(reader.read(last), last.end)


def _before(stream: IO[bytes], name: object, start: int) -> bytes:
    """Moves to `start`, and gives what stands before it.

    Raises:
        Damaged: it cannot be read so far.
    """
    size = min(HEAD_BYTES, start)
    try:
        stream.seek(start - size)
    except Exception as error:
        if not is_damage(error):
            raise
        raise Damaged(f"log {name}: cannot be read up to byte {start:,}, where reading would go on: {error}") from error
    before = next(pieces(stream, name, size), b"")
    return before if size < start else b"\n" + before


def _from_the_end(stream: IO[bytes], head: bytes, parts: Iterator[bytes], reader: LogReader) -> Iterator[Stretch]:
    reader.begin(head)
    if isinstance(stream, io.BufferedReader) and stream.seekable():
        yield from _backwards(stream, stream.seek(0, os.SEEK_END), reader)
        return
    damage: Damaged | None = None
    with tempfile.TemporaryFile() as copy:
        copy.write(head)
        whole = head.rfind(b"\n") + 1
        try:
            for part in parts:
                whole = copy.tell() + part.rfind(b"\n") + 1 if b"\n" in part else whole
                copy.write(part)
        except Damaged as error:
            damage = error
        for stretch in _backwards(copy, copy.tell() if damage is None else whole, reader):
            yield stretch if damage is None else stretch._replace(offset=0)
    if damage is not None:
        raise damage


def _backwards(stream: IO[bytes], end: int, reader: LogReader) -> Iterator[Stretch]:
    for block in backwards(stream, end):
        yield Stretch(reader.read(block, backwards=True), 0)
    yield Stretch([], end)
