"""Logs followed while they are written: what is new in them since the last look.

A file is known by its place on disk. Renamed, it is read to its end; truncated (copytruncate), or begun anew in the
same place, it is read from its beginning; a new one under a followed name or in a followed folder is read from its
beginning, unless it begins like a file that was read before: then it is a copy, and read from where that was left.
A line is read when its newline is there.
"""

from __future__ import annotations

import os
import select
import stat
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.logs.blocks import BLOCK_BYTES, Splitter
from penaltybox.producers.logs.checkpoint import Place, Places
from penaltybox.producers.logs.files import (
    Beginning,
    Damaged,
    beginning,
    compression,
    files_under,
    generations,
    opened,
    packed_as,
)
from penaltybox.producers.logs.passage import stretches
from penaltybox.producers.logs.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penaltybox.producers.logs.checkpoint import Checkpoint
    from penaltybox.producers.logs.passage import Common
    from penaltybox.producers.logs.reader import Found
    from penaltybox.producers.logs.tail import Key

GONE_AFTER_S: Final = 5.0
"""Writers go on for a while with a file that was renamed; one that is gone and quiet for so long is let go."""
SETTLED_AFTER_S: Final = 1.0
"""A compressed file is read when it has not grown for so long."""
SCAN_EVERY_S: Final = 0.2
MOST_OPEN: Final = 256
ROUND_BYTES: Final = BLOCK_BYTES
_MOST_PAST: Final = 10_000
_PAST_EACH: Final = 3
_COMPRESSED: Final = (".gz", ".zst", ".zstd")
_ts_ms: Final = attrgetter("ts_ms")


class _Shape(NamedTuple):
    """What changes when another file has come in the place of one that nobody writes any more."""

    modified_ns: int
    size: int


def _shape(state: os.stat_result) -> _Shape:
    return _Shape(state.st_mtime_ns, state.st_size)


class Follower:
    """Follows a file, or all files of a folder.

    Args:
        source: need not be there yet.
        common: format, options, counts.
        checkpoint: where to go on. A log that was rotated meanwhile is read to its end first.
    """

    ended = False

    def __init__(self, source: Path, common: Common, checkpoint: Checkpoint) -> None:
        self._source = source
        self._common = common
        self._checkpoint = checkpoint
        self._folder = source.is_dir()
        self._tails: dict[Key, Tail] = {}
        self._passed_over: dict[Key, _Shape] = {}
        """Files that are not followed, as they were: another one may have come in the same place on disk."""
        self._growing: dict[Key, tuple[int, float]] = {}
        self._past: dict[Key, list[Place]] = {}
        for place in checkpoint.places:
            self._remember(place)
        self._known: Places | None = None
        self._packed: list[tuple[Place, Iterator[tuple[list[Found], int]]]] = []
        self._next_scan_s = float("-inf")
        self._turn = 0
        self._started = False

    def poll(self, now_s: float) -> list[Found]:
        """What is new, by time; bounded, so there may be more (see `more`).

        Raises:
            ConfigurationError: a compressed file is damaged.
        """
        if now_s >= self._next_scan_s:
            self._scan(now_s)
            self._next_scan_s = now_s + SCAN_EVERY_S
        found = self._unpacked()
        self.more = self._read(found, now_s) or bool(self._packed)
        self._let_go(found, now_s)
        found.sort(key=_ts_ms)
        return found

    more = False
    """Whether the last poll left something unread."""

    def places(self) -> list[Place]:
        """How far what `poll` gave reaches."""
        past = (place for places in self._past.values() for place in places)
        return [*past, *(place for place, _ in self._packed), *(tail.place for tail in self._tails.values())]

    def close(self) -> None:
        """Lets all files go."""
        for tail in self._tails.values():
            tail.close()

    def _read(self, found: list[Found], now_s: float) -> bool:
        tails = list(self._tails.values())
        turn, taken = self._turn % (len(tails) or 1), 0
        for number, tail in enumerate(tails[turn:] + tails[:turn]):
            if taken >= ROUND_BYTES:
                self._turn = turn + number
                return True
            new, size, before = tail.read(now_s)
            found += new
            taken += size
            if before is not None:
                self._remember(before)
        return taken >= ROUND_BYTES

    def _scan(self, now_s: float) -> None:
        self._known = None
        for path in self._candidates():
            try:
                state = path.stat()
            except OSError:
                continue
            key = (state.st_dev, state.st_ino)
            tail = self._tails.get(key)
            if tail is not None:
                tail.path, tail.seen_s = path, now_s
            elif stat.S_ISREG(state.st_mode) and self._passed_over.get(key) != _shape(state):
                self._adopt(path, key, _shape(state), now_s)
        self._started = True

    def _candidates(self) -> list[Path]:
        if self._folder:
            besides = [] if self._checkpoint.path is None else [self._checkpoint.path]
            return files_under(self._source, besides)
        paths = generations(self._source)
        if self._started:
            return paths
        # What was rotated since the checkpoint: the file that it knows, and all that came after it.
        for number, path in enumerate(paths if self._past else []):
            if path.is_file() and self._offset(beginning(path)) is not None:
                self._pass_over(paths[:number])
                return paths[number:]
        self._pass_over(paths[:-1])
        return paths[-1:]

    def _pass_over(self, paths: list[Path]) -> None:
        for path in paths:
            state = path.stat()
            self._passed_over[state.st_dev, state.st_ino] = _shape(state)

    def _adopt(self, path: Path, key: Key, shape: _Shape, now_s: float) -> None:
        try:
            packed = path.suffix in _COMPRESSED or compression(path)
            if packed and not self._settled(key, shape.size, now_s):
                return
            found = beginning(path)
        except (OSError, ConfigurationError):
            return  # gone again, or not ours to read
        if (found.device, found.inode) != key:
            return  # another one already
        offset = self._offset(found)
        if offset is None and not self._folder and self._started and path != self._source:
            self._passed_over[key] = shape  # beside the log, and nothing that was read
        elif packed:
            self._passed_over[key] = shape
            self._packed.append((Place(str(path), found.identity, offset or 0), self._contents(path, offset or 0)))
        else:
            self._forget(found)
            self._passed_over.pop(key, None)
            self._tails[key] = Tail(path, found, self._common, offset or 0, now_s)
            self._common.progress.files += 1

    def _settled(self, key: Key, size: int, now_s: float) -> bool:
        before, since_s = self._growing.get(key, (-1, now_s))
        if before != size:
            since_s = now_s
        self._growing[key] = (size, since_s)
        return now_s - since_s >= SETTLED_AFTER_S

    def _offset(self, found: Beginning) -> int | None:
        if self._known is None:  # once in a scan: what else is new in it may be read twice, and counts once
            self._known = Places(self.places())
        return self._known.offset(found)

    def _contents(self, path: Path, offset: int) -> Iterator[tuple[list[Found], int]]:
        self._common.progress.files += 1
        with opened(path) as stream:
            yield from stretches(stream, path, self._common, start=offset)

    def _unpacked(self) -> list[Found]:
        if not self._packed:
            return []
        place, contents = self._packed.pop(0)
        try:
            stretch = next(contents, None)
        except Damaged as error:  # what could be read was given; another file in its place is read again
            self._common.progress.damaged.append(str(error))
            stretch = None
        if stretch is None:
            self._remember(place)
            return []
        self._packed.insert(0, (Place(place.path, place.identity, stretch[1]), contents))
        return list(stretch[0])

    def _let_go(self, found: list[Found], now_s: float) -> None:
        for key, tail in list(self._tails.items()):
            if now_s - max(tail.seen_s, tail.active_s) > GONE_AFTER_S:
                found += tail.rest()
                self._remember(tail.place)
                tail.close()
                del self._tails[key]
        still_open = [tail for tail in self._tails.values() if tail.is_open]
        if len(still_open) > MOST_OPEN:
            for tail in sorted(still_open, key=lambda one: one.active_s)[: len(still_open) - MOST_OPEN]:
                tail.close()

    def _remember(self, place: Place) -> None:
        key = (place.identity.device, place.identity.inode)
        before = [one for one in self._past.pop(key, []) if one.identity != place.identity]
        self._past[key] = [*before[-_PAST_EACH + 1 :], place]
        if len(self._past) > _MOST_PAST:
            del self._past[next(iter(self._past))]

    def _forget(self, found: Beginning) -> None:
        """What was known of a file that is followed from now on; what stood there before it stays known."""
        key = (found.device, found.inode)
        places = self._past.pop(key, [])
        others = [one for one in places if found.hashed(one.identity.length) != one.identity.beginning]
        if others:
            self._past[key] = others


class Pipe:
    """Follows what comes through a pipe, until its end.

    Args:
        descriptor: of its reading end.
        common: format, options, counts.
    """

    more = False

    def __init__(self, descriptor: int, common: Common) -> None:
        self.ended = False
        self._descriptor = descriptor
        self._head = b""
        self._splitter = Splitter()
        self._reader = common.reader()
        common.progress.files += 1

    def poll(self, now_s: float) -> list[Found]:
        """What has come, by time; see `Follower.poll`.

        Raises:
            ConfigurationError: it is compressed: of what a compressor has not put out yet there is nothing to follow.
        """
        del now_s
        if not select.select([self._descriptor], [], [], 0)[0]:
            self.more = False
            return []
        chunk = os.read(self._descriptor, BLOCK_BYTES)
        self._head = (self._head + chunk[:4])[:4]  # a first read may be of one byte
        if packed := packed_as(self._head):
            raise ConfigurationError(
                f"log: what comes through the pipe is {packed}, wanted lines, for it is followed; unpack it before "
                f"({'zcat' if packed == 'gzip' else 'zstdcat'} | penaltybox ingest - --follow), or leave --follow out"
            )
        blocks = list(self._splitter.feed(chunk))
        if not chunk:
            last = self._splitter.rest()
            blocks, self.ended = ([] if last is None else [last]), True
        self.more = not self.ended
        found = [one for block in blocks for one in self._reader.read(block)]
        found.sort(key=_ts_ms)
        return found

    def places(self) -> list[Place]:
        """A pipe has no place to go on at."""
        return []

    def close(self) -> None:
        """The pipe is whose it was."""
