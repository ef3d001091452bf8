"""Blobs and writes as short as a test wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penaltybox.sinks.subject_store import Mark, Write, Written

if TYPE_CHECKING:
    from penaltybox.sinks.subject_store import SubjectStore

HOUR = 3_600_000


def blob(nonce: int, body: bytes = b"", number: int = 0) -> bytes:
    return b"\x01\x9a\xcf" + number.to_bytes(8) + b"\xcf" + nonce.to_bytes(8) + body


def version(stored: bytes | None) -> tuple[int, int]:
    """(number, nonce) of a blob; (0, 0) of nothing."""
    return (0, 0) if stored is None else (int.from_bytes(stored[3:11]), int.from_bytes(stored[12:20]))


def write(
    subject: str,
    read: bytes | tuple[int, int] | None = None,
    *,
    nonce: int,
    body: bytes = b"",
    end: int | None = None,
    marks: tuple[Mark, ...] | None = None,
    pending: bool = False,
) -> Write:
    """The write of somebody who read `read` (a blob, a version, or nothing)."""
    number, seen = read if isinstance(read, tuple) else version(read)
    return Write(subject, number, seen, blob(nonce, body), end, marks, pending)


def block(value: bytes | None, end: int | None = None) -> Mark:
    return Mark("block", value, end)


async def put_first(store: SubjectStore, subject: str = "ip:203.0.113.7", nonce: int = 1 << 40) -> bytes:
    """Writes a first version and returns what is stored."""
    (result,) = await store.write([write(subject, nonce=nonce)])
    assert isinstance(result, Written)
    return blob(nonce, number=result.number)
