"""Cyclic garbage of a worker: looked for seldom, because there is hardly any and looking costs more than all stepping.

The interpreter's collector walks through every new object that holds others, a hundred thousand at a time: in a worker
these are states and names, which live long and hold no cycles. It found nothing in a million decisions and took an
eighth of the time. What it is for, cycles that outages and errors leave behind, can wait.
"""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_S: Final = 60.0
LONGEST_S: Final = 3600.0
"""At the latest after this time everything is looked through: half a second for 200,000 subjects."""
MOST: Final = 2_000_000
"""Or when there are so many more objects than after the last time: more than the states' own number explains."""


def collect_seldom() -> None:
    """Switch the collector off; what there is now, modules and settings, is never looked at. Once per process."""
    gc.disable()
    gc.freeze()


@contextmanager
def collector_off() -> Iterator[None]:
    """For a job that ends, such as a replay: its states hold no cycles. Afterwards the collector is as before."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class Collecting:
    """Decides when to collect.

    Args:
        now_s: monotonic time of the start.
    """

    def __init__(self, now_s: float) -> None:
        self._last_s = now_s
        self._most = MOST

    def look(self, now_s: float, *, more: int) -> bool:
        """Collect if it is time to; whether it was.

        Args:
            now_s: monotonic time.
            more: how many more objects there are than after the last time.
        """
        if now_s - self._last_s < LONGEST_S and more < self._most:
            return False
        found = gc.collect()
        # When they are no garbage there are simply many states; the next look is worth it when there are many more.
        self._most = MOST if found > more // 2 else max(MOST, 2 * more)
        self._last_s = now_s
        return True


async def keep_collecting() -> None:
    """Collect when it is time to, for ever."""
    collecting = Collecting(time.monotonic())
    while True:
        await asyncio.sleep(LOOK_S)
        collecting.look(time.monotonic(), more=gc.get_count()[0])
