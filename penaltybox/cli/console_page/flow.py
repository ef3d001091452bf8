"""How decisions flow, by the offsets of their topic and of the workers' group: published, judged, waiting."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka.errors import KafkaError

from penaltybox.cli.console_page.answers import Flow
from penaltybox.contracts.errors import PenaltyboxError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from penaltybox.cli.fleet import GroupLag

EVERY_S: Final = 1.0
_SMOOTH_S: Final = 5.0
_MINUTES_2: Final = 120
_RETRY_S: Final = 2.0
STANDING_S: Final = 15.0
"""Workers that acknowledge nothing for so long while decisions wait are told to stand still."""
_log = logging.getLogger("penaltybox.console")


class Look(NamedTuple):
    """One look at Kafka: when (monotonic seconds), where the topic ends, how far the group is (None: nowhere yet)."""

    at_s: float
    published: int
    judged: int | None


class Meter:
    """Rates from looks; pure.

    A topic that is made anew begins at 0 again: rates are never negative.
    """

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()
        self._history: deque[int] = deque(maxlen=_MINUTES_2)
        self._moved_s: float | None = None

    def look(self, look: Look) -> None:
        """Takes in one look, about a second after the last."""
        if self._looks:
            last = self._looks[-1]
            self._history.append(_per_s(look.published - last.published, look.at_s - last.at_s))
            if look.judged != last.judged or look.judged is None or look.published <= look.judged:
                self._moved_s = look.at_s
        else:
            self._moved_s = look.at_s
        self._looks.append(look)
        while look.at_s - self._looks[0].at_s > _SMOOTH_S:
            self._looks.popleft()

    def lost(self) -> None:
        """Kafka is away: what was measured says nothing about now."""
        self._looks.clear()
        self._history.clear()

    @property
    def flow(self) -> Flow:
        """What is known now."""
        if not self._looks:
            return Flow(history=list(self._history))
        first, last = self._looks[0], self._looks[-1]
        elapsed_s = last.at_s - first.at_s
        published = judged = lag = None
        if elapsed_s > 0:
            published = _per_s(last.published - first.published, elapsed_s)
            if first.judged is not None and last.judged is not None:
                judged = _per_s(last.judged - first.judged, elapsed_s)
        if last.judged is not None:
            lag = max(0, last.published - last.judged)
        return Flow(published_per_s=published, judged_per_s=judged, lag=lag, history=list(self._history))

    @property
    def standing_s(self) -> float:
        """For how long the workers have acknowledged nothing although decisions wait."""
        if not self._looks or self._moved_s is None:
            return 0.0
        return self._looks[-1].at_s - self._moved_s


def _per_s(count: int, elapsed_s: float) -> int:
    return max(0, round(count / elapsed_s)) if elapsed_s > 0 else 0


class FlowWatch:
    """Looks at Kafka every second.

    Args:
        open_lag: a fresh look at the topic and the group, see `fleet.group_lag`.
    """

    def __init__(self, open_lag: Callable[[], AbstractAsyncContextManager[GroupLag]]) -> None:
        self._open_lag = open_lag
        self.meter = Meter()
        self.failure: str | None = None
        """Why Kafka is not read; empty when it is, None before the first look."""

    async def keep(self) -> None:
        """Looks until it is cancelled; while Kafka is away it tries again."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with self._open_lag() as lag:
                    while True:
                        published, judged = await lag.offsets()
                        self.meter.look(Look(loop.time(), published, judged))
                        self.failure = ""
                        await asyncio.sleep(EVERY_S)
            except (PenaltyboxError, KafkaError, OSError) as error:
                if not self.failure:
                    _log.warning("Kafka is not read: %s", error)
                self.failure = str(error) or repr(error)
                self.meter.lost()
            await asyncio.sleep(_RETRY_S)
