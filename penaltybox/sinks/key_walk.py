"""Keys by a pattern, from every server that holds some: by SCAN, never by KEYS, so that nobody else has to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.links.exchange import Link

SCAN_COUNT = 1000
"""Keys that the server looks at per SCAN call: below 1 ms, so that writers hardly notice a walk."""


class Found(NamedTuple):
    """One step of a walk.

    Attributes:
        node: the server that holds the keys.
        keys: that match and were not given before.
        examined: keys looked at so far; SCAN tells it roughly.
        total: keys there were at the start.
    """

    node: Link
    keys: list[bytes]
    examined: int
    total: int


async def walk(link: Link, pattern: str) -> AsyncIterator[Found]:
    """Every key that matches and stays from start to end once, in no order, while others write on.

    Raises:
        StoreUnavailable: a server did not answer; the walk is incomplete.
    """
    examined = total = 0
    nodes = await link.nodes()
    for node in nodes:
        total += (await node.exchange([("DBSIZE",)]))[0]
    for node in nodes:
        seen: set[bytes] = set()  # SCAN may return a key twice
        cursor: bytes | int = 0
        while True:
            ((cursor, keys),) = await node.exchange([("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)])
            fresh = [key for key in dict.fromkeys(keys) if key not in seen]
            seen.update(fresh)
            examined = min(examined + SCAN_COUNT, total)
            done = int(cursor) == 0
            yield Found(node, fresh, total if done and node is nodes[-1] else examined, total)
            if done:
                break


def literally(text: str) -> str:
    """`text` in a glob pattern of SCAN."""
    return "".join(f"\\{char}" if char in "*?[]^\\-" else char for char in text)
