"""No progress while there is lag: the process ends, and whoever supervises it starts a fresh one.

Consumers that sit idle in front of a backlog exist upstream; nothing inside such a process can cure it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penaltybox.contracts.errors import PenaltyboxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOOKS = 6
ANSWER_S = 10.0


class StalledError(PenaltyboxError):
    """There is lag, and nothing has been acknowledged for too long."""


class Stall:
    """Decides whether a worker is stuck, from what it looked like before."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._progress = -1
        self._since_s: float | None = None

    def look(self, at_s: float, progress: int, lag: int, *, exempt: bool) -> float | None:
        """Seconds without progress if that is past the limit, else None.

        Args:
            at_s: monotonic seconds.
            progress: any figure that changes when work gets done.
            lag: records not done yet.
            exempt: the worker waits on purpose (a store outage, a pause).
        """
        if exempt or lag == 0 or progress != self._progress or self._since_s is None:
            self._progress = progress
            self._since_s = at_s
            return None
        stuck_s = at_s - self._since_s
        return stuck_s if stuck_s >= self._limit_s else None


async def watch(
    limit_s: float,
    *,
    progress: Callable[[], int],
    lag: Callable[[], Awaitable[int]],
    exempt: Callable[[], bool],
) -> None:
    """Look a few times within the limit, for ever.

    Raises:
        StalledError: no progress for `limit_s` while there was lag.
    """
    stall = Stall(limit_s)
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(limit_s / LOOKS)
        behind = await lag()
        stuck_s = stall.look(loop.time(), progress(), behind, exempt=exempt())
        if stuck_s is not None:
            raise StalledError(
                f"Nothing was acknowledged for {stuck_s:.0f} s while at least {behind} records wait; "
                "ending so that a fresh process takes over."
            )


def check_membership(consumer: Any) -> None:
    """Look whether the consumer still takes part in its group.

    aiokafka 0.14 ends that part of itself on an error that it did not expect, for example "Did we not perform
    bootstrap?" after an overloaded broker has told it of no brokers at all. It tells those who ask for records, but a
    consumer without partitions is not asked.

    Raises:
        StalledError: it does not.
    """
    client = getattr(getattr(consumer, "_thread", None), "_consumer", None)
    routine = getattr(getattr(client, "_coordinator", None), "_coordination_task", None)
    if routine is not None and routine.done() and not routine.cancelled() and routine.exception() is not None:
        raise StalledError(
            f"The consumer has left its group for good ({routine.exception()}); ending so that a fresh process takes "
            "over."
        )


def consumer_lags(app: Any) -> Callable[[], Awaitable[dict[Any, int] | None]]:
    """The lag of each partition of an app's consumer, as a function: records that are not acknowledged.

    None when the consumer has not started, or the broker does not answer.
    """

    async def lags() -> dict[Any, int] | None:
        consumer = app.consumer
        try:
            partitions = consumer.assignment()
            async with asyncio.timeout(ANSWER_S):
                ends = await consumer.highwaters(*partitions) if partitions else {}
                positions = {tp: await consumer.position(tp) for tp in partitions}
        except Exception as error:  # noqa: BLE001 - not started yet, or the broker is away; and it is only a look
            app.log.debug("No end offsets: %r", error)
            return None
        found = {}
        for tp in partitions:
            oldest = consumer.tracker.oldest(tp)
            next_offset = positions[tp] if oldest is None else oldest.value[0].offset
            found[tp] = max(0, ends.get(tp, 0) - (next_offset or 0))
        return found

    return lags


def consumer_lag(app: Any) -> Callable[[], Awaitable[int]]:
    """The lag of an app's consumer, as a function: records behind the broker's ends, delivered ones included.

    0 when the broker does not answer: ending the process would not bring it back. Raises `StalledError` when the
    consumer has left its group for good: then it holds nothing, has no lag, and never gets a partition again.
    """

    async def lag() -> int:
        consumer = app.consumer
        check_membership(consumer)
        held = consumer.tracker.unacknowledged()
        partitions = consumer.assignment()
        if not partitions:
            return int(held)
        try:
            async with asyncio.timeout(ANSWER_S):
                ends = await consumer.highwaters(*partitions)
                positions = {tp: await consumer.position(tp) for tp in partitions}
        except Exception as error:  # noqa: BLE001 - any failure of a look is the broker's, and only a look
            app.log.warning("The broker did not tell its end offsets: %r", error)
            return 0
        unread = sum(max(0, ends[tp] - (positions[tp] or 0)) for tp in partitions if tp in ends)
        return int(held + unread)

    return lag
