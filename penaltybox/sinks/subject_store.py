"""What a subject store promises: versioned writes of a subject's state and of the marks beside it.

A state is an opaque *blob*. The store reads and writes its first 20 bytes only::

    byte  0       codec
    byte  1       msgpack array header
    byte  2       0xcf, bytes 3..10   version number, 8 bytes big-endian: assigned by the store
    byte 11       0xcf, bytes 12..19  nonce, 8 bytes big-endian: chosen by the writer, new for every write

A version is (number, nonce). The number is max(stored, read) + 1 or the store's clock in milliseconds, whichever is
larger, so numbers never restart after an expiry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from penaltybox.contracts.errors import GenerationMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER_BYTES = 20
NEVER = 1 << 40
"""Numbers up to this one mean "nothing was stored": a state that is still to be written may carry any of them."""
BLOCKING_MARKS = frozenset({"block", "challenge"})
"""A change of one of these is announced on the events channel; ``trust`` and ``pass`` are not."""

RESTORING = "restoring:"
"""A generation that starts with this belongs to a restore that still runs: nobody may join it by chance."""


class Mark(NamedTuple):
    """A key beside the state: what other programs read.

    Attributes:
        name: ``block``, ``challenge``, ``trust`` or ``pass``.
        value: the bytes to store; None (or nothing at all) deletes the key.
        expire_at_ms: absolute wall time in ms; None with a value means no TTL. A mark whose end the store's clock has
            passed is deleted instead of written.
    """

    name: str
    value: bytes | None
    expire_at_ms: int | None


class Write(NamedTuple):
    """One subject's new state, and the version that it was stepped from.

    Attributes:
        subject: canonical ``dimension:value``.
        number: the version number I read; 0 (or any up to `NEVER`) when nothing was stored.
        nonce: the nonce I read; any when nothing was stored.
        blob: the new state; its number bytes are a placeholder, its nonce bytes are new and final.
        expire_at_ms: absolute wall time in ms; None keeps it for ever. It lives until the store's clock has passed
            its version number in any case.
        marks: these marks are set or deleted, others are left alone; None means unchanged since the version I read.
        pending: the outbox in the blob is not empty: index the subject; False takes it out of the index.
    """

    subject: str
    number: int
    nonce: int
    blob: bytes
    expire_at_ms: int | None
    marks: tuple[Mark, ...] | None
    pending: bool


class Written(NamedTuple):
    """The write is stored under this version number.

    Also the answer to a write that was stored before and whose answer got lost: sending the same `Write` (same nonce
    in the blob) again after a `StoreUnavailable` is safe.
    """

    number: int


class Lost(NamedTuple):
    """Somebody else wrote: a higher number, or the same number with another nonce, is stored. Here it is."""

    current: bytes


class Rewound(NamedTuple):
    """Less is stored (`number`, 0 for nothing) than I read, and `marks` is None: nothing was written.

    The store has lost its last writes, or the state has expired meanwhile: send the write again with all marks.
    """

    number: int


WriteResult: TypeAlias = Written | Lost | Rewound


class SubjectStore(Protocol):
    """Where subjects live. Every method raises `StoreUnavailable` when the store doesn't answer within its deadline."""

    async def read(self, subjects: Sequence[str]) -> list[bytes | None]:
        """Blobs in the order of `subjects`; None where nothing is stored."""

    async def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Write each state together with its marks, if it is still what the writer read; results in order.

        Each subject is written atomically, the sequence is not. A subject that occurs twice is written in order.

        Raises:
            GenerationMismatch: this is not the store that was joined; the calls that saw it wrote nothing.
            StoreUnavailable: unknown which were written. Send the same writes again: each is stored once.
        """

    async def pending(self, older_than_ms: int, limit: int = 1000) -> list[str]:
        """Subjects in the pending index whose last write is at least `older_than_ms` (an age) old, oldest first."""

    async def settle(self, subjects: Sequence[str]) -> None:
        """Take subjects of which nothing is stored any more out of the pending index; others stay."""

    async def generation(self) -> str | None:
        """The generation that is stored: one and the same on all shards, or None."""

    async def begin_generation(self, value: str) -> None:
        """Store a new generation, whatever was there, and write under it from now on."""

    async def join_generation(self, known: str | None = None) -> str:
        """Write under the generation that is stored; start a fresh one where there is none.

        Args:
            known: the generation that the caller remembers from elsewhere; nothing else is joined or started then.

        Raises:
            GenerationMismatch: another one than `known`, a restore that still runs, or shards that differ.
        """

    async def pause_reason(self) -> str | None:
        """Why new blocks are paused; None when they aren't."""

    async def pause(self, reason: str, actor: str, at_ms: int) -> None:
        """Pause new blocks for everyone."""

    async def resume(self) -> None:
        """End the pause."""

    async def close(self) -> None:
        """Close all connections."""


def check_joinable(stored: str | None, known: str | None, where: str) -> None:
    """Refuse a generation that isn't the known one, or that a restore is still filling.

    Raises:
        GenerationMismatch: with what to do about it.
    """
    if known is not None and stored != known:
        raise GenerationMismatch(
            f"{where} has generation {stored!r}, wanted {known!r}: it was wiped or swapped. Run `penaltybox restore`."
        )
    if stored is not None and stored.startswith(RESTORING) and known is None:
        raise GenerationMismatch(f"{where} is being restored (generation {stored!r}): wait until the restore is done.")
