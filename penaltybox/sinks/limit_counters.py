"""The inline limiter's counters as maintenance sees them: which there are, and away with those of a campaign."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from penaltybox.contracts.keyspace import Keyspace
from penaltybox.contracts.subjects import decode_value, encode_value
from penaltybox.sinks.key_walk import literally, walk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from penaltybox.links.exchange import Command, Link

UNLINK_BATCH = 500
"""Keys a call: UNLINK frees memory in another thread, so a batch takes the server well under a millisecond."""


class Which(NamedTuple):
    """Counters to look at. Empty names stand for all.

    Attributes:
        scenario: of the policy's limits.
        dimension: or combination that the limits count, e.g. ``device``.
        limit: name of the limit.
    """

    scenario: str
    dimension: str = ""
    limit: str = ""


class LimitCounter(NamedTuple):
    """One counter.

    Attributes:
        key: in Redis.
        subject: canonical ``dimension:value``.
        limit: name of the limit.
        ttl_ms: until it goes by itself; None: never, which no counter of ours is.
        bytes: what it takes in Redis, roughly; 0 if the server does not tell.
    """

    key: str
    subject: str
    limit: str
    ttl_ms: int | None
    bytes: int


class Walked(NamedTuple):
    """How far a walk is: keys looked at, keys there are, counters found, bytes they take in Redis."""

    examined: int
    total: int
    found: int
    bytes: int


class LimitCounters:
    """Walks the counters of one scenario; states, blocks and other scenarios are never touched.

    Args:
        link: from `connections.open_link`; closed by whoever opened it.
        prefix: of all keys.
    """

    def __init__(self, link: Link, prefix: str = "pbx") -> None:
        self._link = link
        self._prefix = Keyspace(prefix).prefix
        self._key = re.compile(re.escape(self._prefix) + r":\{([^{}]+)\}:l:([^:]+):([^:]+)")

    def _pattern(self, which: Which) -> str:
        subject = f"{literally(which.dimension)}:*" if which.dimension else "*"
        limit = literally(encode_value(which.limit)) if which.limit else "*"
        return f"{literally(self._prefix)}:{{{subject}}}:l:{literally(encode_value(which.scenario))}:{limit}"

    async def counters(
        self, which: Which, progress: Callable[[Walked], None] | None = None
    ) -> AsyncIterator[LimitCounter]:
        """Every counter once, in no order, while the limiter counts on.

        Raises:
            StoreUnavailable: a server did not answer; the listing is incomplete.
        """
        async for _, counters, walked in self._steps(which):
            for counter in counters:
                yield counter
            if progress is not None:
                progress(walked)

    async def tally(self, which: Which, progress: Callable[[Walked], None] | None = None) -> Walked:
        """How many counters there are and what they take; raises as `counters` does."""
        walked = Walked(0, 0, 0, 0)
        async for _, _, walked in self._steps(which):
            if progress is not None:
                progress(walked)
        return walked

    async def clean(self, which: Which, progress: Callable[[Walked], None] | None = None) -> Walked:
        """Removes the counters: their subjects have their whole quota again. What is removed stays removed if it stops.

        Raises:
            StoreUnavailable: a server did not answer; the rest is still there, and cleaning again takes it.
        """
        walked = Walked(0, 0, 0, 0)
        async for node, counters, walked in self._steps(which):
            for first in range(0, len(counters), UNLINK_BATCH):
                # One call a key, pipelined: in a cluster the keys are in different slots.
                await node.exchange([("UNLINK", one.key) for one in counters[first : first + UNLINK_BATCH]])
            if progress is not None:
                progress(walked)
        return walked

    async def _steps(self, which: Which) -> AsyncIterator[tuple[Link, list[LimitCounter], Walked]]:
        found = used = 0
        async for node, keys, examined, total in walk(self._link, self._pattern(which)):
            counters = await self._read(node, keys)
            found += len(counters)
            used += sum(counter.bytes for counter in counters)
            yield node, counters, Walked(examined, total, found, used)

    async def _read(self, node: Link, keys: Sequence[bytes]) -> list[LimitCounter]:
        texts = [key.decode("utf-8", "replace") for key in keys]
        named = [(text, match) for text in texts if (match := self._key.fullmatch(text))]
        if not named:
            return []
        commands: list[Command] = [part for key, _ in named for part in (("PTTL", key), ("MEMORY", "USAGE", key))]
        replies = await node.exchange(commands)
        counters = []
        for (key, match), ttl, size in zip(named, replies[::2], replies[1::2], strict=True):
            if ttl != _GONE and size is not None:
                counters.append(
                    LimitCounter(key, match[1], decode_value(match[3]), None if ttl == _FOREVER else ttl, size)
                )
        return counters


# PTTL's two special answers.
_FOREVER, _GONE = -1, -2
