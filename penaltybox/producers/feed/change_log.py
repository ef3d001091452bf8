"""The last changes, numbered, in a ring: who asks from too far back, or from another start, has to resync."""

from __future__ import annotations

import asyncio
import re
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penaltybox.producers.feed.lines import change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.producers.feed.lines import InForce, Name

SIZE: Final = 65_536
"""Changes that are kept: about 15 MB, and some seconds of the largest import of bans."""
_CURSOR: Final = re.compile(r"([0-9a-f]{16})-([0-9]{1,18})")


class ChangeLog:
    """A log of one process. Its numbers mean nothing elsewhere, nor after `restart`: each epoch has a random name.

    Args:
        size: how many changes are kept.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._ring: list[bytes] = [b""] * size
        self._first = 1
        self._news = asyncio.Event()
        self.last = 0
        """Number of the last change."""
        self.epoch = secrets.token_hex(8)

    def restart(self) -> None:
        """Something may have been missed: no cursor from before is good any more."""
        self.epoch = secrets.token_hex(8)
        self._ring = [b""] * len(self._ring)
        self._first, self.last = 1, 0
        self.wake()

    def cursor(self, number: int) -> str:
        """What somebody who knows everything up to this change asks on from."""
        return f"{self.epoch}-{number}"

    def position(self, cursor: str) -> int | None:
        """The number in a cursor; None if the changes after it are not all here."""
        found = _CURSOR.fullmatch(cursor)
        if found is None or found[1] != self.epoch:
            return None
        number = int(found[2])
        return number if self._first - 1 <= number <= self.last else None

    def append(self, name: Name, in_force: Sequence[InForce]) -> None:
        """One more change. `wake` tells those who wait."""
        self.last += 1
        size = len(self._ring)
        self._ring[self.last % size] = change(name, in_force, self.cursor(self.last))
        self._first = max(self._first, self.last - size + 1)

    def after(self, number: int, most: int) -> list[bytes] | None:
        """The lines after a change, at most so many; None if they are not all here."""
        if not self._first - 1 <= number <= self.last:
            return None
        end = min(self.last, number + most)
        return [self._ring[one % len(self._ring)] for one in range(number + 1, end + 1)]

    def wake(self) -> None:
        """Whoever waits looks again."""
        self._news.set()
        self._news = asyncio.Event()

    async def changed(self, number: int, epoch: str, patience_s: float) -> None:
        """Waits until there is a change after this one, or another epoch, or `patience_s` is over, or `wake`."""
        if self.last > number or self.epoch != epoch:
            return
        news = self._news
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await news.wait()
