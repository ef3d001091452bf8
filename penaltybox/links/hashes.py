"""Fields of a large hash, in steps, so that neither Redis nor this process is held up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.contracts.keyspace import slot_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.links.exchange import Link

SCAN_COUNT: Final = 500
"""Fields per HSCAN: read and understood in a few milliseconds."""


async def hash_fields(link: Link, key: str) -> AsyncIterator[tuple[bytes, bytes]]:
    """(field, value) of a hash without a hash tag in its key, in no order; a field may come twice.

    Raises:
        StoreUnavailable: Redis did not answer; what came is not all.
    """
    cursor: bytes | int = 0
    while True:
        ((cursor, flat),) = await link.exchange([("HSCAN", key, cursor, "COUNT", SCAN_COUNT)], [slot_of(key)])
        for field, value in zip(flat[::2], flat[1::2], strict=True):
            yield field, value
        if int(cursor) == 0:
            return
