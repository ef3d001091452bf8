"""Log files: which there are, opened whatever they are compressed with, and known again after a rotation."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from importlib import import_module
from io import BufferedReader
from itertools import chain, repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import msgspec

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.logs.rotation import grouped, series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from io import RawIOBase

BEGINNING_BYTES: Final = 1024
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class Identity(msgspec.Struct, frozen=True):
    """What a file is known by: its place on disk, and a hash of its (decompressed) beginning of `length` bytes."""

    device: int
    inode: int
    length: int
    beginning: str


class Beginning(msgspec.Struct, frozen=True):
    """A file's first bytes, at most `BEGINNING_BYTES`, and its place on disk."""

    device: int
    inode: int
    data: bytes

    @property
    def identity(self) -> Identity:
        """What it is known by from now on."""
        return Identity(self.device, self.inode, len(self.data), self.hashed(len(self.data)))

    def hashed(self, length: int) -> str:
        """The hash of its first bytes, so many of them."""
        return hashlib.blake2b(self.data[:length], digest_size=16).hexdigest()


def compression(path: Path) -> str:
    """``gzip``, ``zstd`` or nothing, by the first bytes, whatever the name; raises OSError."""
    with path.open("rb", buffering=0) as plain:
        return packed_as(plain.read(4))


def packed_as(first: bytes) -> str:
    """``gzip``, ``zstd`` or nothing, by a log's first four bytes."""
    return "gzip" if first.startswith(_GZIP) else "zstd" if first == _ZSTD else ""


def opened(path: Path) -> IO[bytes]:
    """A log for reading, decompressed.

    Raises:
        ConfigurationError: it cannot be opened, or is zstd while this Python cannot read that.
    """
    try:
        kind = compression(path)
        if kind == "gzip":
            return cast("IO[bytes]", gzip.open(path))
        if kind == "zstd":
            return cast("IO[bytes]", _zstd(path).open(path))
        return path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error


def unpacked(stream: IO[bytes], name: str) -> IO[bytes]:
    """What comes through a pipe, decompressed.

    Raises:
        ConfigurationError: it is zstd while this Python cannot read that.
    """
    peeked = stream if isinstance(stream, BufferedReader) else BufferedReader(cast("RawIOBase", stream))
    kind = packed_as(peeked.peek(4)[:4])
    if kind == "gzip":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=peeked))
    return cast("IO[bytes]", _zstd(name).ZstdFile(peeked)) if kind == "zstd" else peeked


def _zstd(path: object) -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ConfigurationError(f"log {path}: it is zstd, and backports.zstd is missing: pip install 'penaltybox[worker]'")


def beginning(path: Path) -> Beginning:
    """A file's first bytes, decompressed; of damaged or half-written data those that can be read.

    Raises:
        ConfigurationError: it cannot be read.
    """
    with opened(path) as stream:
        data = first_bytes(stream, path, BEGINNING_BYTES)
        found = os.fstat(stream.fileno())
    return Beginning(found.st_dev, found.st_ino, data)


def is_damage(error: Exception) -> bool:
    """Whether it is what reading a file raises that is damaged, half-written, or cannot be read on."""
    # zstd's error is of a module that need not be installed
    return isinstance(error, OSError | EOFError | zlib.error) or type(error).__name__ == "ZstdError"


class Damaged(ConfigurationError):  # noqa: N818 - the log is damaged; what was read of it is right
    """A log cannot be read on; all that could be read was given before."""


def pieces(stream: IO[bytes], name: object, *sizes: int) -> Iterator[bytes]:
    """What is left of a stream, in pieces of these sizes, the last of which goes on; the last piece may be shorter.

    Raises:
        Damaged: it cannot be read on, after all that could.
    """
    # A plain `read` would lose what it had when it met the damage.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    damage: Exception | None = None
    position = stream.tell() if stream.seekable() else 0
    for size in chain(sizes, repeat(sizes[-1])):
        parts, wanted = list[bytes](), size
        while wanted:
            try:
                part = read(wanted)
            except Exception as error:
                if not is_damage(error):
                    raise
                damage = error
                break
            if not part:
                break
            parts.append(part)
            wanted -= len(part)
            position += len(part)
        if parts:
            yield b"".join(parts)
        if damage is not None:
            raise Damaged(f"log {name}: cannot be read on after byte {position:,}: {_said(damage)}") from damage
        if wanted == size:
            return


def first_bytes(stream: IO[bytes], name: object, size: int) -> bytes:
    """At most so many bytes, fewer where a log is shorter or damaged."""
    try:
        return next(pieces(stream, name, size), b"")
    except Damaged:
        return b""


def unreadable(path: object, error: Exception) -> ConfigurationError:
    """The sentence of a log that cannot be read (on)."""
    return ConfigurationError(f"log {path}: cannot be read: {_said(error)}")


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def files_under(folder: Path, besides: Iterable[Path] = ()) -> list[Path]:
    """All regular files below a folder (links to files are followed, hidden names are not)."""
    left_out = {path.absolute() for path in besides}
    found = []
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(where, name) for name in sorted(names) if not name.startswith("."))
        found += [path for path in paths if path.is_file() and path.absolute() not in left_out]
    return found


def logs_of(source: Path, besides: Iterable[Path] = ()) -> list[list[Path]]:
    """The logs of a source, each as the files it consists of, the oldest first. A file is one log of one file.

    Raises:
        ConfigurationError: there is nothing.
    """
    if not source.is_dir():
        return [[source]]
    by_folder: dict[Path, list[str]] = {}
    for path in files_under(source, besides):
        by_folder.setdefault(path.parent, []).append(path.name)
    if not by_folder:
        raise ConfigurationError(f"log {source}: the folder has no files")
    return [[folder / name for name in group] for folder, names in by_folder.items() for group in grouped(names)]


def generations(path: Path) -> list[Path]:
    """A log and the files it was rotated to, the oldest first, itself last (whether or not it exists)."""
    stem, _ = series(path.name)
    names = [one.name for one in path.parent.glob("*") if one.name.startswith(path.name.split(".")[0])]
    same = [name for name in names if series(name)[0] == stem and name != path.name]
    return [path.parent / name for group in grouped(same) for name in group] + [path]
