"""Follows a feed, comes back after every end of it, and keeps a copy on disk for a start without it."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.producers.feed.lines import Line, change, encoded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence

    from penaltybox.producers.feed.lines import InForce, Name
    from penaltybox.producers.feed.mirror import Mirror

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.2
_LAST_PAUSE_S: Final = 30.0
SILENCE_S: Final = 15.0
"""A feed beats every five seconds; one that is silent for so long is dead."""
_decoder = msgspec.json.Decoder(Line)


class Source(Protocol):
    """Where lines come from."""

    def lines(self, since: str) -> AsyncGenerator[bytes, None]:
        """Whole lines, some at a time; see `Feed.follow`. Raises PenaltyboxError and OSError."""


class Follower:
    """Keeps a mirror current, as long as its source is there; it holds what it knows while the source is not.

    Args:
        source: of lines.
        mirror: takes them up.
        on_change: called when what is in force has changed.
    """

    def __init__(self, source: Source, mirror: Mirror, on_change: Callable[[], None]) -> None:
        self._source = source
        self._mirror = mirror
        self._on_change = on_change
        self._pause_s = _FIRST_PAUSE_S
        self._told = False

    async def run(self) -> None:
        """Follows until it is cancelled."""
        while True:
            after_s: float | None = None
            try:
                after_s = await self._once()
                reason = "the feed ended"
            except (PenaltyboxError, OSError, TimeoutError, ValueError) as error:
                reason = str(error) or "the feed is silent"
            self._mirror.broken_off()
            if after_s is None:
                if not self._told:
                    self._told = True
                    _log.warning("what is known holds until it runs out, and the feed is asked again: %s", reason)
                after_s = random.uniform(0, self._pause_s)  # noqa: S311 - no secret
                self._pause_s = min(2 * self._pause_s, _LAST_PAUSE_S)
            await asyncio.sleep(after_s)

    async def _once(self) -> float | None:
        """One answer; after how many seconds the feed wants to be asked again, if it says that."""
        async with aclosing(self._source.lines(self._mirror.cursor)) as pieces:
            while True:
                async with asyncio.timeout(SILENCE_S):
                    piece = await anext(pieces, None)
                if piece is None:
                    return None
                changed = False
                for text in piece.splitlines():
                    line = understood(text)
                    if line is None:
                        continue
                    if line.op == "again":
                        if changed:
                            self._on_change()
                        return line.after_ms / 1000
                    changed |= self._mirror.take(line)
                if self._mirror.cursor and self._told:
                    self._told = False
                    _log.info("the feed is back")
                self._pause_s = _FIRST_PAUSE_S
                if changed:
                    self._on_change()


def understood(text: bytes) -> Line | None:
    """A line; None for one of a later version, or nonsense."""
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError:
        return None


def kept(names: Mapping[Name, Sequence[InForce]], cursor: str) -> Iterator[bytes]:
    """What a mirror knows as lines, for a file."""
    yield encoded(Line("resync", reason="kept"))
    for name, in_force in names.items():
        yield change(name, in_force)
    yield encoded(Line("synced", cursor=cursor))


def restore(mirror: Mirror, lines: Iterable[bytes]) -> bool:
    """What was kept; False if it is not whole, and then nothing is known."""
    for text in lines:
        line = understood(text)
        if line is not None:
            mirror.take(line)
    mirror.broken_off()
    return bool(mirror.cursor)
