"""Bytes of a log cut into runs of whole lines, in bounded memory."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES: Final = 1 << 20
LONGEST_LINE: Final = 1 << 20
"""A longer line is cut here; formats refuse it by their own, smaller bound."""

_HOLE: Final = b"\x00"


class Block(NamedTuple):
    """Whole lines, newlines between them, and where they begin and end in the (decompressed) log, in bytes."""

    start: int
    data: bytes
    end: int


class Splitter:
    """Takes bytes as they come and gives whole lines; what has no newline yet is held back.

    Args:
        offset: where in the log the first byte stands.
    """

    def __init__(self, offset: int = 0) -> None:
        self.complete = offset
        """Offset behind the last whole line."""
        self._held = b""
        self._dropped = 0

    def feed(self, chunk: bytes) -> Iterator[Block]:
        """The lines that are whole now."""
        if self._dropped:
            newline = chunk.find(b"\n") + 1
            if not newline:
                self._dropped += len(chunk)
                return
            yield self._cut(self._held, len(self._held) + self._dropped + newline)
            self._held, self._dropped, chunk = b"", 0, chunk[newline:]
        data = self._held + chunk if self._held else chunk
        if data.startswith(_HOLE):
            data = self._without_hole(data)
        cut = data.rfind(b"\n") + 1
        self._held = data[cut:]
        if cut:
            yield self._cut(data[: cut - 1], cut)
        if len(self._held) > LONGEST_LINE:
            self._dropped = len(self._held) - LONGEST_LINE
            self._held = self._held[:LONGEST_LINE]

    def _without_hole(self, data: bytes) -> bytes:
        """What follows a hole, which whoever truncates a log under a writer that goes on where it was leaves behind."""
        line = data.lstrip(_HOLE)
        self.complete += len(data) - len(line)
        return line

    def rest(self) -> Block | None:
        """The last line, if it has no newline: for a log that will not grow."""
        if not self._held:
            return None
        held, self._held = self._held, b""
        dropped, self._dropped = self._dropped, 0
        return self._cut(held, len(held) + dropped)

    def _cut(self, lines: bytes, length: int) -> Block:
        start, self.complete = self.complete, self.complete + length
        return Block(start, lines, self.complete)


def backwards(stream: IO[bytes], end: int) -> Iterator[Block]:
    """The whole lines of a seekable stream up to `end`, the last block first."""
    tail = b""
    position = end
    while position > 0:
        size = min(BLOCK_BYTES, position)
        position -= size
        stream.seek(position)
        data = stream.read(size) + tail
        newline = data.find(b"\n") + 1 if position else 0
        if position and not newline:
            tail = data[:LONGEST_LINE]
            continue
        start, tail = position + newline, data[:newline]
        lines = data[newline:]
        if lines:
            yield Block(start, lines.removesuffix(b"\n"), start + len(lines))
