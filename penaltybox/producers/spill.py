"""Refusals that wait on disk for Kafka: append-only JSON lines, bounded, one set of files per process.

A process writes ``TOKEN.NNNNNN.jsonl``, segments of about 1 MB, and holds a lock on ``TOKEN.lock`` while it lives. A
segment is deleted when Kafka has its records. Whoever gets the lock of a process that is gone adopts its segments;
only one can. Nobody appends to a segment that another one began, so a line that was cut by a crash is a last line.

Every append is one write to the kernel: a killed process loses nothing of it. `sync` forces it to the disk, so that a
machine without power loses what came after the last one.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.ids import stable_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penaltybox.contracts.settings import Settings

SEGMENT_BYTES: Final = 1 << 20
LARGEST_BYTES: Final = 4 * SEGMENT_BYTES
"""More of a segment is never read: we write none that large."""
MEASURE_S: Final = 1.0


class Segment(NamedTuple):
    """One file to send."""

    path: Path
    token: str


def spill_directory(settings: Settings) -> Path:
    """Where refusals for the settings' topics wait: below `spill_dir`, or in a temporary directory of this user.

    That one has the cluster in its name, because nobody said which cluster it is for.
    """
    if settings.spill_dir:
        return Path(settings.spill_dir) / settings.topic_prefix
    whose = f"{os.geteuid()}-{stable_id(settings.kafka)[:12]}"
    return Path(tempfile.gettempdir()) / f"penaltybox-spill-{whose}-{settings.topic_prefix}"


class Spill:
    """The files of one process, and those that it adopted.

    Every method but `append` may raise OSError; all may block, and no two of them may run at once.

    Attributes:
        size: bytes in its files, those that it adopted included.
        dirty: something was appended since the last `sync`.
        trouble: why the last `append` could not take everything.

    Args:
        directory: made when the first record comes, for this user alone.
        max_bytes: of all files in it, whoever writes them. It is measured once a second, so several processes together
            may exceed it by what they write within one.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory: Final = directory
        self._max_bytes = max_bytes
        self._clear()

    def _clear(self) -> None:
        self.size = 0
        self.trouble = ""
        self._token = ""
        self._locks: dict[str, int] = {}
        self._file = -1
        self._open_bytes = 0
        self._number = 0
        self.dirty = False
        self._measured: float | None = None
        self._room_left = 0

    def append(self, lines: Sequence[bytes]) -> int:
        """Writes records, one line each; how many. The first that finds no room ends it: order is kept."""
        self.trouble = ""
        written = 0
        try:
            while written < len(lines):
                chunk = self._chunk(lines, written)
                if not chunk:
                    self.trouble = (
                        f"{self.directory} holds {self._max_bytes >> 20} MB already (PENALTYBOX_SPILL_MAX_MB)"
                    )
                    break
                self._write(b"".join(line + b"\n" for line in chunk))
                written += len(chunk)
        except OSError as error:
            self.trouble = f"{self.directory} takes no records: {error} (PENALTYBOX_SPILL_DIR)"
        return written

    def _chunk(self, lines: Sequence[bytes], start: int) -> list[bytes]:
        """The next lines that fit into the open segment and into the room that is left."""
        if self._open_bytes >= SEGMENT_BYTES:
            self.seal()
        chunk, size, room = [], self._open_bytes, self._open_bytes + self._room()
        for line in itertools.islice(lines, start, None):
            size += len(line) + 1
            if size > room:
                break
            chunk.append(line)
            if size >= SEGMENT_BYTES:
                break
        return chunk

    def sync(self) -> None:
        """Forces what was appended to the disk."""
        if self.dirty:
            os.fsync(self._file)
            self.dirty = False

    def seal(self) -> None:
        """Ends the segment that is open: it may be sent, the next append begins another."""
        if self._file >= 0:
            self.sync()
            os.close(self._file)
            self._file, self._open_bytes = -1, 0

    def waiting(self) -> list[Segment]:
        """Segments to send: each process's in order, our own last. The open one is sealed for it."""
        self.seal()
        tokens = sorted(self._locks, key=lambda token: token == self._token)
        found = [Segment(path, token) for token in tokens for path in self._segments(token)]
        self.size = sum(_size(segment.path) for segment in found)  # somebody may have deleted some
        return found

    def adopt(self) -> int:
        """Takes over what processes left that are gone; how many segments that is."""
        if not self.directory.is_dir():
            return 0
        tokens = {path.name.split(".")[0] for path in self.directory.iterdir() if path.suffix in {".lock", ".jsonl"}}
        adopted = 0
        for token in sorted(tokens - self._locks.keys(), key=self._age):
            lock = self._locked(token)
            if lock is None:
                continue
            self._locks[token] = lock
            for part in self.directory.glob(f"{token}.*.part"):  # its segment is whole
                part.unlink()
            segments = self._segments(token)
            adopted += len(segments)
            self.size += sum(map(_size, segments))
            if not segments:
                self._release(token)
        return adopted

    def read(self, segment: Segment) -> list[bytes]:
        """Its lines, in order; a last one that was cut is one of them."""
        with segment.path.open("rb") as file:
            return [line for line in file.read(LARGEST_BYTES).split(b"\n") if line]

    def settle(self, segment: Segment, left: Iterable[bytes] = ()) -> None:
        """Its records are in Kafka, but for those `left`: they stay, in its place."""
        rest = b"".join(line + b"\n" for line in left)
        self.size += len(rest) - _size(segment.path)
        if rest:
            part = segment.path.with_suffix(".part")
            with part.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(rest)
                file.flush()
                os.fsync(file.fileno())
            part.replace(segment.path)
        else:
            segment.path.unlink(missing_ok=True)
        self._measured = None
        if segment.token != self._token and not self._segments(segment.token):
            self._release(segment.token)

    def close(self) -> None:
        """Forces all to the disk and gives the locks back: what is left can be adopted."""
        self.seal()
        for token in list(self._locks):
            self._release(token)
        self._token = ""

    def abandon(self) -> None:
        """In a forked child: the files are the parent's, and so are the locks.

        The child's copies are closed, or the locks would outlive the parent.
        """
        for descriptor in (self._file, *self._locks.values()):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._clear()

    def _room(self) -> int:
        now = time.monotonic()
        if self._measured is None or now - self._measured > MEASURE_S:
            used = 0
            with contextlib.suppress(FileNotFoundError):
                used = sum(map(_size, os.scandir(self.directory)))
            self._measured, self._room_left = now, self._max_bytes - used
        return self._room_left

    def _write(self, data: bytes) -> None:
        """All of it, or nothing: a full disk must not leave half a line that the next one would be glued to."""
        if self._file < 0:
            self._begin()
        try:
            done = os.write(self._file, data)
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError:
            os.ftruncate(self._file, self._open_bytes)
            raise
        self._open_bytes += len(data)
        self._room_left -= len(data)
        self.size += len(data)
        self.dirty = True

    def _begin(self) -> None:
        if not self._token:
            self._found()
        self._number += 1
        path = self.directory / f"{self._token}.{self._number:06}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._open_bytes = 0
        folder = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(folder)  # else the file's name could be lost with the power, whatever was forced into it
        finally:
            os.close(folder)

    def _found(self) -> None:
        """A token of our own, locked."""
        _make_private(self.directory)
        while not self._token:
            token = f"{os.getpid()}-{secrets.token_hex(4)}"
            lock = self._locked(token)
            if lock is not None:  # else an adopter was faster than we
                self._token = token
                self._locks = {token: lock, **self._locks}
                self._number = 0

    def _locked(self, token: str) -> int | None:
        """The descriptor of a token's lock, if it is ours now."""
        try:
            lock = os.open(self.directory / f"{token}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except PermissionError:
            return None  # another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                return lock
        except BlockingIOError:
            pass
        os.close(lock)
        return None

    def _release(self, token: str) -> None:
        """Without segments there is nothing to adopt, so the lock's file goes too."""
        if not self._segments(token):
            (self.directory / f"{token}.lock").unlink(missing_ok=True)
        os.close(self._locks.pop(token))

    def _segments(self, token: str) -> list[Path]:
        return sorted(self.directory.glob(f"{token}.*.jsonl"))

    def _age(self, token: str) -> float:
        """When its last segment was written: the processes' records go roughly in the order of time."""
        return max((path.stat().st_mtime for path in self._segments(token)), default=0.0)


def _size(entry: os.DirEntry[str] | Path) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0  # another process has just sent it


def _make_private(directory: Path) -> None:
    """Made for this user alone; one that is another user's is refused: they could read or forge what is in it.

    Raises:
        PermissionError: it is another user's.
    """
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    owner = directory.lstat().st_uid  # of a link, if somebody put one there
    if owner != os.geteuid():
        raise PermissionError(f"{directory} belongs to another user (uid {owner})")
