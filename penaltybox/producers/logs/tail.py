"""One file that grows: the lines that are new in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penaltybox.producers.logs.blocks import BLOCK_BYTES, Splitter
from penaltybox.producers.logs.checkpoint import Place
from penaltybox.producers.logs.files import BEGINNING_BYTES, Beginning
from penaltybox.producers.logs.reader import HEAD_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from penaltybox.producers.logs.files import Identity
    from penaltybox.producers.logs.passage import Common
    from penaltybox.producers.logs.reader import Found

Key = tuple[int, int]
"""Device and inode."""


class Tail:
    """A file, known by its place on disk whatever its name is.

    Args:
        path: where it was seen last.
        found: its beginning, and its place on disk.
        common: format, options, counts.
        offset: where to go on: behind a newline.
        now_s: monotonic seconds.
    """

    def __init__(self, path: Path, found: Beginning, common: Common, offset: int, now_s: float) -> None:
        self.path = path
        self.key: Key = (found.device, found.inode)
        self.seen_s = self.active_s = now_s
        """When it was last there under a followed name, and when it last had something new."""
        self._common = common
        self._descriptor: int | None = None
        self._head = found.data
        self._identity: Identity | None = None
        self._seen: tuple[int, int] | None = None
        self._position = offset
        self._begin(offset)

    def _begin(self, offset: int) -> None:
        self._position = offset
        self._splitter = Splitter(offset)
        self._reader = self._common.reader()
        self._started = offset == 0

    @property
    def place(self) -> Place:
        """How far its whole lines have been read."""
        if self._identity is None:
            self._identity = Beginning(*self.key, self._head).identity
        return Place(str(self.path), self._identity, self._splitter.complete)

    @property
    def is_open(self) -> bool:
        """Whether it holds a file descriptor."""
        return self._descriptor is not None

    def read(self, now_s: float) -> tuple[list[Found], int, Place | None]:
        """What is new: decisions, how many bytes, and the place in what stood here before it was begun anew.

        At most a block is read; a file that is gone and was not open has nothing new.
        """
        descriptor = self._opened()
        if descriptor is None:
            return [], 0, None
        found = os.fstat(descriptor)
        state = (found.st_size, found.st_mtime_ns)
        if state == self._seen and found.st_size == self._position:
            return [], 0, None
        head = os.pread(descriptor, BEGINNING_BYTES, 0)
        before = None
        if found.st_size < self._position or not head.startswith(self._head):
            before = self.place
            self._begin(0)
        if head != self._head:
            self._head, self._identity = head, None
        self._seen = state
        if not self._started:
            size = min(HEAD_BYTES, self._position)
            passed = os.pread(descriptor, size, self._position - size)
            self._reader.begin(os.pread(descriptor, size, 0), passed if size < self._position else b"\n" + passed)
            self._started = True
        chunk = os.pread(descriptor, BLOCK_BYTES, self._position)
        self._position += len(chunk)
        if chunk:
            self.active_s = now_s
        decisions = [one for block in self._splitter.feed(chunk) for one in self._reader.read(block)]
        return decisions, len(chunk), before

    def rest(self) -> list[Found]:
        """A last line without newline, of a file that will not grow any more."""
        block = self._splitter.rest()
        return [] if block is None else self._reader.read(block)

    def close(self) -> None:
        """Lets the file go; it is opened again under its last name when it is needed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int | None:
        if self._descriptor is None:
            try:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return None
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != self.key:
                os.close(descriptor)
                return None
            self._descriptor = descriptor
        return self._descriptor
