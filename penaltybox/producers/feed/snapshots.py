"""The whole list at one time, for whoever cannot go on from a cursor: read once, packed, and shared by all who ask."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.producers.feed.lines import change

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penaltybox.producers.feed.change_log import ChangeLog
    from penaltybox.producers.feed.lines import InForce, Name

MOST_NAMES: Final = 5_000_000
"""More than these are not held, not even packed (about 100 MB)."""
SHARED_S: Final = 30.0
"""How long a list that was read is given to others too; the changes since then follow it."""
_CHUNK_BYTES: Final = 262_144
_TRIES: Final = 3


class Snapshot(NamedTuple):
    """A whole list, in packed chunks of lines; changes after number `number` of `epoch` are not in it for certain."""

    epoch: str
    number: int
    names: int
    chunks: list[bytes]

    def lines(self, at: int) -> bytes:
        """The lines of a chunk."""
        return zlib.decompress(self.chunks[at])


class Snapshots:
    """Reads lists for everybody, one at a time.

    Args:
        log: the changes that follow a list.
        walk: everything that is in force, by name. A name may come twice; the later one counts.
    """

    def __init__(self, log: ChangeLog, walk: Callable[[], AsyncIterator[tuple[Name, tuple[InForce, ...]]]]) -> None:
        self._log = log
        self._walk = walk
        self._lock = asyncio.Lock()
        self._held: tuple[float, Snapshot] | None = None

    async def get(self) -> Snapshot:
        """A list of this epoch, at most `SHARED_S` old.

        Raises:
            StoreUnavailable: Redis is away, or more is in force than can be held.
        """
        async with self._lock:
            held = self._fresh()
            if held is None:
                held = await self._read()
                loop = asyncio.get_running_loop()
                self._held = (loop.time(), held)
                loop.call_later(SHARED_S, self._drop, held)
            return held

    def _fresh(self) -> Snapshot | None:
        if self._held is None:
            return None
        at, snapshot = self._held
        old = asyncio.get_running_loop().time() - at > SHARED_S
        known = self._log.position(f"{snapshot.epoch}-{snapshot.number}")
        return None if old or known is None else snapshot

    def _drop(self, snapshot: Snapshot) -> None:
        if self._held is not None and self._held[1] is snapshot:
            self._held = None

    async def _read(self) -> Snapshot:
        for _ in range(_TRIES):
            epoch, number = self._log.epoch, self._log.last
            names, lines, chunks = 0, bytearray(), []
            async for name, in_force in self._walk():
                lines += change(name, in_force)
                names += 1
                if names > MOST_NAMES:
                    raise StoreUnavailable(f"Over {MOST_NAMES:,} are blocked: too many for the feed. Read the keys.")
                if len(lines) >= _CHUNK_BYTES:
                    chunks.append(zlib.compress(lines, 1))
                    lines.clear()
                    await asyncio.sleep(0)
            chunks.append(zlib.compress(lines, 1))
            if epoch == self._log.epoch:
                return Snapshot(epoch, number, names, chunks)
        raise StoreUnavailable("Redis comes and goes: no list of blocks could be read to its end.")
