"""Publishes from a request's path: `offer` appends to a queue and returns, whatever the broker does.

Everything else happens on the process's loop thread. It works the same in an async program, in threads and after a
fork: a forked child begins empty, and what its parent had accepted stays the parent's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from penaltybox.contracts.events import Decision
from penaltybox.links.kafka import Connection
from penaltybox.producers.dispatch import Counters, Dispatch
from penaltybox.producers.loop_thread import PROCESS_LOOP

if TYPE_CHECKING:
    from types import TracebackType

    from penaltybox.contracts.events import Outcome
    from penaltybox.contracts.settings import Settings
    from penaltybox.producers.loop_thread import LoopThread

LINGER_MS: Final = 200
ENOUGH: Final = 200
"""Records that wait for no more company. A batch costs as much as some thirty records, and each partition needs one."""
IDLE_TICKS: Final = 20
"""So many looks at an empty queue, and the thread sleeps until it is woken: waking it costs more than a look."""
AT_ONCE: Final = 50
"""Records handled without letting other threads run; half a millisecond."""
MOST: Final = 1000
"""Records that wait for no more of the queue."""
GRACE_S: Final = 1.0
BREATH_S: Final = 0.005


class BackgroundPublisher:
    """`offer` records from anywhere.

    Delivery is at least once: a record that was in flight when the broker went away may be spilled and sent again; its
    id is the same, and consumers count an id once.

    Args:
        settings: where Kafka is, what is hashed, how much is kept (`publisher_buffer`, `spill_dir`, `spill_max_mb`).
        linger_ms: how long a record waits for company, at most; half of it where there is plenty. Less costs more CPU
            per record.
        loop: where it lives; tests have their own.

    Raises:
        ConfigurationError: SASL without a user name, certificates that cannot be read.
    """

    def __init__(self, settings: Settings, *, linger_ms: int = LINGER_MS, loop: LoopThread = PROCESS_LOOP) -> None:
        self._settings = settings
        self._linger_s = linger_ms / 1000
        self._loop = loop
        self._limit = settings.publisher_buffer
        self._options = Connection.of(settings).client_options()
        self._inherited: list[object] = []
        self._clear()
        _alive.add(self)

    def _clear(self) -> None:
        self._pid = os.getpid()
        self._queue: deque[Any] = deque()
        self._counters = Counters()
        self._dispatch = Dispatch(self._settings, self._options, self._counters)
        self._turned_away = 0
        self._counting = threading.Lock()
        self._idle = True
        self._closed = False
        self._awake = asyncio.Event()
        self._pump_task: asyncio.Task[None] | None = None

    def offer(self, record: Decision | Outcome) -> None:
        """Takes a record to publish. Never blocks and never raises; the record must not be changed afterwards."""
        if os.getpid() != self._pid:
            self._forget()
        queue = self._queue
        if len(queue) >= self._limit and self._no_room(record):
            return
        queue.append(record)
        if self._idle:
            self._wake()

    @property
    def counters(self) -> Counters:
        """A snapshot."""
        found: Counters = msgspec.structs.replace(self._counters)
        found.offered += len(self._queue) + self._turned_away
        found.dropped += self._turned_away
        found.spilled_bytes = self._dispatch.spill.size
        return found

    def flush(self, deadline_s: float | None = None) -> bool:
        """Waits until no record is left in memory: each is published, spilled or dropped. False: not in time.

        For threads; blocks. Call it on no event loop.
        """
        return self._await(self._emptied(), self._settings.publisher_stop_s if deadline_s is None else deadline_s)

    def close(self, deadline_s: float | None = None) -> bool:
        """Sends what is left, spills what cannot be sent in time; whether that was done within about `deadline_s`.

        Called at exit by itself. Blocks; in async programs use `aclose`. A record offered later is dropped.
        """
        if self._closed:
            return True
        self._closed = True
        if self._pump_task is None and not self._queue:
            return True
        limit_s = self._settings.publisher_stop_s if deadline_s is None else deadline_s
        self._loop.not_at_exit(self.close)
        return self._await(self._finished(limit_s), limit_s + GRACE_S)

    async def aclose(self, deadline_s: float | None = None) -> bool:
        """`close` for async programs."""
        return await asyncio.to_thread(self.close, deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- any thread

    def _no_room(self, record: Any) -> bool:
        """A full queue: allowed requests go, others may use as much room again."""
        if len(self._queue) < 2 * self._limit and not (isinstance(record, Decision) and record.action == "allow"):
            return False
        with self._counting:
            self._turned_away += 1
        return True

    def _wake(self) -> None:
        if self._closed:
            self._turn_away()
            return
        self._idle = False
        try:
            loop = self._loop.loop()
            self._loop.at_exit(self.close)  # here: the end may come before `_begin`
            loop.call_soon_threadsafe(self._begin)
        except RuntimeError:  # the interpreter ends, or the loop was stopped under us
            self._idle = True

    def _turn_away(self) -> None:
        with self._counting:
            self._turned_away += len(self._queue)
            self._queue.clear()

    def _await(self, coroutine: Any, timeout: float) -> bool:
        try:
            return bool(self._loop.run(coroutine, timeout))
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            return False

    def _forget(self) -> None:
        """In a forked child: what was accepted is the parent's to send, and so are its connections and files."""
        old = self._dispatch
        self._inherited.append((old, self._queue, self._pump_task))
        old.disown()
        self._clear()

    # --- the loop thread

    def _begin(self) -> None:
        if self._pump_task is None:
            self._dispatch.start()
            self._pump_task = asyncio.get_running_loop().create_task(self._pump())
        self._awake.set()

    async def _pump(self) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            empty, looked = 0, False
            while empty < IDLE_TICKS:
                await asyncio.sleep(self._linger_s / 2)
                empty = 0 if self._queue else empty + 1
                looked = not looked and 0 < len(self._queue) < ENOUGH
                if not looked:
                    await self._drain()
            self._idle = True
            if self._queue:  # offered between the look and the flag
                self._idle = False
                self._awake.set()

    async def _drain(self) -> None:
        queue, taken = self._queue, 0
        while queue and self._dispatch.ready:
            records = [queue.popleft() for _ in range(min(AT_ONCE, len(queue)))]
            self._counters.offered += len(records)
            taken += len(records)
            try:
                self._dispatch.take(records)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next records have their own fate
                self._dispatch.refused(len(records), error)
            if taken >= MOST:
                self._dispatch.go()
                taken = 0
            await asyncio.sleep(0)
        self._dispatch.go()

    async def _emptied(self) -> bool:
        if self._pump_task is None and self._queue:
            self._begin()
        while self._queue or self._dispatch.held:  # noqa: ASYNC110 - once, at a flush
            await asyncio.sleep(BREATH_S)
        return True

    async def _finished(self, limit_s: float) -> bool:
        loop = asyncio.get_running_loop()
        if self._pump_task is None:
            self._begin()
        end = loop.time() + limit_s
        while (self._queue or self._dispatch.held) and loop.time() < end:
            await self._drain()
            await asyncio.sleep(BREATH_S)
        if self._pump_task is not None:
            self._pump_task.cancel()
        in_time = not self._queue and not self._dispatch.held
        left = list(self._queue)
        self._queue.clear()
        self._counters.offered += len(left)
        self._dispatch.let_go()
        self._dispatch.take(left)
        await self._dispatch.finish()
        self._idle = True
        return in_time


_alive: weakref.WeakSet[BackgroundPublisher] = weakref.WeakSet()


def _after_fork() -> None:
    for publisher in list(_alive):
        publisher._forget()  # noqa: SLF001 - ours


os.register_at_fork(after_in_child=_after_fork)
