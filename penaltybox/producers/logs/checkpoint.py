"""How far each file of a source has been read: kept in a file, so that a restart goes on where Kafka has confirmed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.logs.files import Identity  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penaltybox.producers.logs.files import Beginning

_MAX_FILES: Final = 10_000


class Place(msgspec.Struct, frozen=True):
    """A file, and the (decompressed) offset before which everything has been published."""

    path: str
    identity: Identity
    offset: int


class Places:
    """Places, looked up by what a file begins with."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._lengths: set[int] = set()
        self._known: dict[tuple[int, str], list[Place]] = {}
        self._empty: dict[tuple[int, int], Place] = {}
        for place in places:
            identity = place.identity
            if identity.length:
                self._lengths.add(identity.length)
                self._known.setdefault((identity.length, identity.beginning), []).append(place)
            else:
                self._empty[identity.device, identity.inode] = place

    def offset(self, found: Beginning) -> int | None:
        """Where to go on in a file, known by place and beginning, or by its beginning alone; None: a new one."""
        same = [
            place
            for length in self._lengths
            if length <= len(found.data)
            for place in self._known.get((length, found.hashed(length)), ())
        ]
        here = [p for p in same if (p.identity.device, p.identity.inode) == (found.device, found.inode)]
        empty = self._empty.get((found.device, found.inode))
        known = here or (same if found.data.strip(b"\x00") else [])  # a hole is no beginning to know a log by
        return max((place.offset for place in known), default=None if empty is None else 0)


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    v: Literal[1] = 1
    format: str
    source: str
    files: list[Place] = []


class Checkpoint:
    """The places of a source's files.

    Args:
        path: of the file that keeps them; None: they are only remembered.
        form: the format's name.
        source: the log's name. Another format or name would be other events: refused.
        moves: False: it is read, and never written.

    Raises:
        ConfigurationError: the file is not readable, not ours, or of another format or source.
    """

    def __init__(self, path: Path | None, form: str, source: str, *, moves: bool = True) -> None:
        self.path = path
        self._moves = moves
        self._form, self._source = form, source
        self.places: list[Place] = [] if path is None else self._load(path)
        """As they were saved last."""
        self._known: Places | None = None

    def offset(self, found: Beginning) -> int | None:
        """Where to go on in a file; see `Places.offset`."""
        if self._known is None:
            self._known = Places(self.places)
        return self._known.offset(found)

    def save(self, places: Iterable[Place]) -> None:
        """Writes the places: whole or not at all, also if the machine stops in the middle.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        before, self.places, self._known = self.places, list(places)[-_MAX_FILES:], None
        if self.path is None or not self._moves or before == self.places:
            return
        document = _Document(format=self._form, source=self._source, files=self.places)
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with beside.open("wb") as file:
                file.write(msgspec.json.encode(document) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise ConfigurationError(f"checkpoint {self.path}: cannot be written: {error.strerror}") from error

    def _load(self, path: Path) -> list[Place]:
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigurationError(f"checkpoint {path}: cannot be read: {error.strerror}") from error
        try:
            document = msgspec.json.decode(raw, type=_Document)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"checkpoint {path}: {error}; remove it to read everything again (what was read counts once)"
            ) from error
        if (document.format, document.source) != (self._form, self._source):
            raise ConfigurationError(
                f"checkpoint {path}: it is of {document.format} and --source {document.source}, wanted "
                f"{self._form} and {self._source}. Give each its own checkpoint."
            )
        return document.files
