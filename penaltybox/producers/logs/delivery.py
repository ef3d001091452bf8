"""From logs to Kafka: a checkpoint moves when Kafka has confirmed, a slow Kafka slows reading."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from penaltybox.contracts.errors import BadEvent, PenaltyboxError, StoreUnavailable
from penaltybox.producers.logs.files import Damaged
from penaltybox.producers.logs.ordering import Ordering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penaltybox.contracts.events import Decision
    from penaltybox.producers.logs.checkpoint import Checkpoint
    from penaltybox.producers.logs.follow import Follower, Pipe
    from penaltybox.producers.logs.passage import Stretch
    from penaltybox.producers.logs.progress import Progress
    from penaltybox.producers.logs.reader import Found
    from penaltybox.producers.logs.whole import WholeLogs

POLL_S: Final = 0.1
SAVE_EVERY_S: Final = 1.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_REFUSED: Final = "a decision larger than a record may be"


class Outlet(Protocol):
    """Where decisions go: a `Publisher`, or standard output."""

    async def start(self) -> None:
        """Before the first `send`."""

    async def send(self, record: Decision, /) -> None:
        """Takes a decision; may wait for room."""

    async def flush(self) -> None:
        """Returns when all that was sent has arrived."""

    async def close(self) -> None:
        """After the last."""


class Delivery:
    """Publishes what logs say.

    Args:
        outlet: makes one; another one when it failed.
        checkpoint: moved on behind Kafka's confirmations.
        progress: counts what could not be sent.
        tell: called with a sentence when Kafka is away while a log is followed, and when it is back.
    """

    def __init__(
        self, outlet: Callable[[], Outlet], checkpoint: Checkpoint, progress: Progress, tell: Callable[[str], None]
    ) -> None:
        self._outlet = outlet
        self._checkpoint = checkpoint
        self._progress = progress
        self._tell = tell
        self._saved_s = float("-inf")

    async def whole(self, logs: WholeLogs) -> None:
        """Publishes logs that are read once through.

        Raises:
            StoreUnavailable: Kafka is away: what it has confirmed is in the checkpoint.
            ConfigurationError: a log cannot be read, or Kafka refuses for good.
        """
        publisher = self._outlet()
        await publisher.start()
        try:
            self._saved_s = time.monotonic()
            for number, decision in enumerate(logs.decisions()):
                await self._send(publisher, decision)
                if number % 1_000 == 0 and time.monotonic() - self._saved_s > SAVE_EVERY_S:
                    await publisher.flush()
                    self._checkpoint.save(logs.places())
                    self._saved_s = time.monotonic()
            await publisher.flush()
            self._checkpoint.save(logs.places())
        finally:
            await publisher.close()

    async def piped(self, runs: Iterable[Stretch], lateness_ms: int) -> None:
        """Publishes what comes through a pipe that is read to its end, or as far as that goes; raises as `whole`."""
        order: Ordering[Found] = Ordering(lateness_ms)
        publisher = self._outlet()
        await publisher.start()
        try:
            try:
                for run in runs:
                    for one in order.add(run.found):
                        await self._send(publisher, one.decision)
            except Damaged as error:
                self._progress.damaged.append(str(error))
            for one in order.rest():
                await self._send(publisher, one.decision)
            await publisher.flush()
        finally:
            self._progress.late += order.late
            await publisher.close()

    async def followed(self, logs: Follower | Pipe, stop: asyncio.Event) -> None:
        """Publishes what is new in logs until `stop` is set, or the pipe ends. Waits for a Kafka that is away.

        Raises:
            StoreUnavailable: Kafka was away at the beginning.
            ConfigurationError: a log cannot be read, or Kafka refuses for good.
        """
        publisher = self._outlet()
        await publisher.start()
        try:
            while not (stop.is_set() or logs.ended):
                found = logs.poll(time.monotonic())
                self._tell_of_damage()
                if found:
                    publisher = await self._certainly(publisher, [one.decision for one in found], stop)
                if not stop.is_set():
                    self._save(logs)
                if not logs.more:
                    await _pause(stop, POLL_S)
            if not self._unconfirmed:
                self._save(logs, at_once=True)
        finally:
            logs.close()
            with suppress(PenaltyboxError):
                await publisher.close()

    _unconfirmed = False
    _told = 0

    def _tell_of_damage(self) -> None:
        """Logs that could not be read on, each once, as it is met."""
        damaged = self._progress.damaged
        for sentence in damaged[self._told :]:
            self._tell(sentence)
        self._told = len(damaged)

    async def _certainly(self, publisher: Outlet, run: Sequence[Decision], stop: asyncio.Event) -> Outlet:
        """Sends a run until Kafka has confirmed all of it, with another publisher if need be; or until `stop`."""
        pause_s = 0.0
        self._unconfirmed = True
        while True:
            try:
                if pause_s:
                    publisher = self._outlet()
                    await publisher.start()
                for decision in run:
                    await self._send(publisher, decision)
                await publisher.flush()
            except StoreUnavailable as error:
                if not pause_s:
                    self._tell(f"{error} Reading waits.")
                with suppress(PenaltyboxError):
                    await publisher.close()
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 2 or _FIRST_PAUSE_S)
                await _pause(stop, pause_s)
                if stop.is_set():
                    return publisher
                continue
            if pause_s:
                self._tell("Kafka is back; reading goes on.")
            self._unconfirmed = False
            return publisher

    async def _send(self, publisher: Outlet, decision: Decision) -> None:
        try:
            await publisher.send(decision)
        except BadEvent:
            self._progress.unmatched[_REFUSED] += 1

    def _save(self, logs: Follower | Pipe, *, at_once: bool = False) -> None:
        if at_once or time.monotonic() - self._saved_s > SAVE_EVERY_S:
            self._checkpoint.save(logs.places())
            self._saved_s = time.monotonic()


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
