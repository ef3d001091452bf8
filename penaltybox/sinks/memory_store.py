"""A subject store in memory, with the Redis store's semantics and a clock of the caller's: for tests and replay."""

from __future__ import annotations

import heapq
from secrets import token_hex
from typing import TYPE_CHECKING

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import GenerationMismatch
from penaltybox.contracts.keyspace import require_canonical
from penaltybox.sinks.subject_store import (
    BLOCKING_MARKS,
    HEADER_BYTES,
    NEVER,
    Lost,
    Mark,
    Rewound,
    Write,
    WriteResult,
    Written,
    check_joinable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class MemorySubjectStore:
    """Implements `SubjectStore` in one process. Stores that share a `MemoryKeys` are workers on one Redis.

    Args:
        clock: the store's wall clock in ms, the counterpart of Redis' TIME.
        keys: the shared contents; a fresh one by default.
    """

    def __init__(self, clock: Callable[[], int] = now_ms, keys: MemoryKeys | None = None) -> None:
        self.keys = keys if keys is not None else MemoryKeys()
        self._clock = clock
        self._generation: str | None = None

    async def read(self, subjects: Sequence[str]) -> list[bytes | None]:
        """Blobs in the order of `subjects`."""
        require_canonical(subjects)
        now = self._clock()
        return [self.keys.get(f"{subject} state", now) for subject in subjects]

    async def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Write states and marks; see `SubjectStore.write`."""
        require_canonical([write.subject for write in writes])
        if self._generation is None:
            await self.join_generation()
        if self.keys.generation != self._generation:
            raise GenerationMismatch(
                f"The store in memory has generation {self.keys.generation!r}, this writer joined {self._generation!r}."
            )
        now = self._clock()
        return [self._write(write, now) for write in writes]

    def _write(self, write: Write, now: int) -> WriteResult:
        stored = self.keys.get(f"{write.subject} state", now)
        if stored is None:
            stored_number = 0
        elif len(stored) < HEADER_BYTES:
            return Lost(stored)
        else:
            stored_number = int.from_bytes(stored[3:11])
            stored_nonce = int.from_bytes(stored[12:20])
            if (stored_number, stored_nonce) != (write.number, write.nonce) and stored_number >= write.number:
                return Written(stored_number) if stored[12:20] == write.blob[12:20] else Lost(stored)
        if stored_number < write.number > NEVER and write.marks is None:
            return Rewound(stored_number)
        number = max(write.number + 1, now)
        blob = write.blob[:3] + number.to_bytes(8) + write.blob[11:]
        end = None if write.expire_at_ms is None else max(write.expire_at_ms, number + 1)
        self.keys.set(f"{write.subject} state", blob, end, now)
        if write.pending:
            self.keys.index[write.subject] = now
        else:
            self.keys.index.pop(write.subject, None)
        self._set_marks(write.subject, write.marks or (), now)
        return Written(number)

    def _set_marks(self, subject: str, marks: tuple[Mark, ...], now: int) -> None:
        announce = False
        for mark in marks:
            changed = self.keys.set(f"{subject} {mark.name}", mark.value or None, mark.expire_at_ms, now)
            announce = announce or (changed and mark.name in BLOCKING_MARKS)
        if announce:
            self.keys.events.append(subject)

    async def pending(self, older_than_ms: int, limit: int = 1000) -> list[str]:
        """Indexed subjects whose last write is at least `older_than_ms` old, oldest first."""
        newest = self._clock() - older_than_ms
        old = ((since, subject) for subject, since in self.keys.index.items() if since <= newest)
        return [subject for _, subject in heapq.nsmallest(limit, old)]

    async def settle(self, subjects: Sequence[str]) -> None:
        """Un-index subjects of which nothing is stored any more."""
        now = self._clock()
        for subject in subjects:
            if self.keys.get(f"{subject} state", now) is None:
                self.keys.index.pop(subject, None)

    async def generation(self) -> str | None:
        """The stored generation."""
        return self.keys.generation

    async def begin_generation(self, value: str) -> None:
        """Store a new generation and write under it."""
        self.keys.generation = self._generation = value

    async def join_generation(self, known: str | None = None) -> str:
        """Join the stored generation or start one; see `SubjectStore.join_generation`."""
        stored = self.keys.generation
        if stored is None and known is None:
            stored = self.keys.generation = token_hex(8)
        check_joinable(stored, known, "the store in memory")
        self._generation = stored
        return str(stored)

    async def pause_reason(self) -> str | None:
        """Why new blocks are paused."""
        return self.keys.paused[0] if self.keys.paused else None

    async def pause(self, reason: str, actor: str, at_ms: int) -> None:
        """Pause new blocks."""
        self.keys.paused = (reason, actor, at_ms)

    async def resume(self) -> None:
        """End the pause."""
        self.keys.paused = None

    async def close(self) -> None:
        """Nothing to close."""

    def mark(self, subject: str, name: str) -> bytes | None:
        """The value of a mark, as another program would read it."""
        return self.keys.get(f"{subject} {name}", self._clock())

    def marks(self, name: str) -> Iterator[tuple[str, bytes, int | None]]:
        """All live marks of one name: subject, value, absolute end in ms (None: permanent)."""
        now = self._clock()
        for key in list(self.keys.values):
            subject, _, kind = key.rpartition(" ")
            value = self.keys.get(key, now) if kind == name else None
            if value is not None:
                yield subject, value, self.keys.values[key][1]


class MemoryKeys:
    """What a Redis would hold: values with their ends, the pending index, the generation, the announced subjects."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[bytes, int | None]] = {}
        self.index: dict[str, int] = {}
        self.generation: str | None = None
        self.events: list[str] = []
        self.paused: tuple[str, str, int] | None = None

    def get(self, key: str, now: int) -> bytes | None:
        """The value unless its end has come; a key expires at its end, not after it."""
        found = self.values.get(key)
        if found is None:
            return None
        value, end = found
        if end is not None and end <= now:
            del self.values[key]
            return None
        return value

    def set(self, key: str, value: bytes | None, end: int | None, now: int) -> bool:
        """Set or delete; True when a reader can see the difference."""
        before = self.get(key, now)
        if value is None or (end is not None and end <= now):
            self.values.pop(key, None)
            return before is not None
        self.values[key] = (value, end)
        return before != value
