"""One log file, or what comes through a pipe, read from one end to the other."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from penaltybox.producers.logs.blocks import BLOCK_BYTES, Block, Splitter, backwards
from penaltybox.producers.logs.files import readable
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
        ConfigurationError: it cannot be read on.
    """
    reader = common.reader()
    with readable(name):
        if start:
            reader.begin(stream.read(HEAD_BYTES))
            stream.seek(start)
        chunk = stream.read(SAMPLE_BYTES)
        if not start and descends(common.times(chunk)):
            common.progress.descending += 1
            yield from _from_the_end(stream, chunk, reader)
            return
        splitter = Splitter(start)
        while chunk:
            for block in splitter.feed(chunk):
                yield Stretch(reader.read(block), block.end)
            chunk = stream.read(BLOCK_BYTES)
        last = splitter.rest() if take_last else None
        if last is not None:
            yield Stretch(reader.read(last), last.end)


def _from_the_end(stream: IO[bytes], head: bytes, reader: LogReader) -> Iterator[Stretch]:
    reader.begin(head)
    if isinstance(stream, io.BufferedReader) and stream.seekable():
        yield from _backwards(stream, stream.seek(0, os.SEEK_END), reader)
        return
    with tempfile.TemporaryFile() as copy:
        copy.write(head)
        shutil.copyfileobj(stream, copy)
        yield from _backwards(copy, copy.tell(), reader)


def _backwards(stream: IO[bytes], end: int, reader: LogReader) -> Iterator[Stretch]:
    for block in backwards(stream, end):
        yield Stretch(reader.read(block, backwards=True), 0)
    yield Stretch([], end)
