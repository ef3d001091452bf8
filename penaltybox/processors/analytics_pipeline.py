"""From runs of records to rows in ClickHouse: gather by partition, prepare, store, acknowledge; in that order.

Two coroutines: one prepares batches (CPU, in a thread), the other stores the one before (waiting, in another), so that
decoding and inserting overlap. Free of Faust.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.processors.seams import no_seam
from penaltybox.sinks.clickhouse.migrations import migrate
from penaltybox.sinks.clickhouse.records import Batch, Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from penaltybox.processors.cycle import Run
    from penaltybox.processors.seams import Seam
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.records import Table
    from penaltybox.sinks.clickhouse.writer import Prepared

log = logging.getLogger(__name__)
T = TypeVar("T")
POLL_S = 0.01
TRUSTED_S = 1.0
"""For how long what the broker said of a topic's incarnation is taken for true after offsets have jumped."""


class Limits(NamedTuple):
    """Sizes and times.

    Attributes:
        rows: an insert has at least as many, unless its oldest record has lingered.
        linger_s: how long a record waits for company.
        held: records in memory and not stored, larger ones counted by the KiB; taking runs waits behind it.
        first_retry_s, longest_retry_s: backoff while ClickHouse or the broker is away.
    """

    rows: int = 20_000
    linger_s: float = 1.0
    held: int = 100_000
    first_retry_s: float = 0.1
    longest_retry_s: float = 5.0


def weight(run: Run) -> int:
    """What a run counts towards `Limits.held`: its records, or its KiB if they are more."""
    return max(len(run.records), sum([len(record.value or b"") for record in run.records]) >> 10)


class BatchWriter(Protocol):
    """What prepares and stores batches; see `penaltybox.sinks.clickhouse.writer.Writer`."""

    def prepare(self, batch: Batch) -> Prepared:
        """What to insert of a batch."""

    def store(self, prepared: Prepared) -> None:
        """Insert it."""


class Lane:
    """Runs of one partition that wait to be inserted."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.incarnation = ""
        self.next_offset = -1
        self.rows = 0
        self.since_s = 0.0
        self._runs: deque[Run] = deque()

    def add(self, run: Run, now_s: float) -> None:
        """Queue a run."""
        if not self._runs:
            self.since_s = now_s
        self._runs.append(run)
        self.rows += len(run.records)

    def cut(self, rows: int, now_s: float) -> list[Run]:
        """Take runs for one insert: until `rows` are reached, or offsets go back (the partition is read again)."""
        taken: list[Run] = []
        size = 0
        while self._runs and size < rows:
            if taken and self._runs[0].records[0].offset <= taken[-1].records[-1].offset:
                break
            taken.append(self._runs.popleft())
            size += len(taken[-1].records)
        self.rows -= size
        self.since_s = now_s
        return taken


class Pipeline:
    """Stores what `take` is given and acknowledges it afterwards; `prepare_batches` and `store_batches` run beside.

    Args:
        clickhouse: the database; its schema is brought up to date first.
        writer: prepares and stores.
        tables: topic name -> table.
        incarnations: asks the broker which incarnation each of our topics is.
        limits: sizes and times.
        seam: fault injection.

    Attributes:
        acknowledged: records done.
        skipped: records that could not be judged, by (table, reason).
        waiting: an outage is being waited out now.
    """

    def __init__(
        self,
        clickhouse: ClickHouse,
        writer: BatchWriter,
        tables: Mapping[str, Table],
        incarnations: Callable[[], Awaitable[Mapping[str, str]]],
        *,
        limits: Limits | None = None,
        seam: Seam = no_seam,
    ) -> None:
        self._clickhouse = clickhouse
        self._writer = writer
        self._tables = tables
        self._ask_incarnations = incarnations
        self._limits = limits or Limits()
        self._seam = seam
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._known: Mapping[str, str] = {}
        self._known_s = float("-inf")
        self._queue: asyncio.Queue[tuple[Prepared, list[Run]]] = asyncio.Queue(maxsize=1)
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._held = 0
        self._urgent = False
        self._outages = 0
        self._preparer = ThreadPoolExecutor(1, "analytics-prepare")
        self._storer = ThreadPoolExecutor(1, "analytics-store")
        self.acknowledged = 0
        self.skipped: Counter[tuple[Table, str]] = Counter()

    @property
    def waiting(self) -> bool:
        """Whether an outage is being waited out."""
        return self._outages > 0

    @property
    def held(self) -> int:
        """Records in memory that are not stored yet, larger ones counted by the KiB."""
        return self._held

    async def take(self, run: Run) -> None:
        """Queue a run; it is acknowledged when all of it is stored. Waits while too much is held."""
        if not run.records:
            run.ack()
            return
        while self._held >= self._limits.held:
            self._room.clear()
            await self._room.wait()
        lane = self._lanes.setdefault((run.topic, run.partition), Lane(run.topic, run.partition))
        lane.add(run, asyncio.get_running_loop().time())
        self._held += weight(run)
        self._work.set()

    async def prepare_batches(self) -> None:
        """Bring the schema up to date, then prepare batches as they become due, for ever."""
        applied = await self._patiently(partial(self._in, self._storer, migrate, self._clickhouse))
        if applied:
            log.info("ClickHouse schema brought up to date: %s", ", ".join(applied))
        while True:
            lane = await self._due()
            runs = lane.cut(self._limits.rows, asyncio.get_running_loop().time())
            batch = await self._batch(lane, runs)
            prepared = await self._patiently(partial(self._in, self._preparer, self._writer.prepare, batch))
            self._note(prepared)
            await self._queue.put((prepared, runs))

    async def store_batches(self) -> None:
        """Store prepared batches in order and acknowledge their runs, for ever."""
        while True:
            prepared, runs = await self._queue.get()
            await self._patiently(partial(self._in, self._storer, self._writer.store, prepared))
            self._seam("before_ack")
            for run in runs:
                run.ack()
                self._held -= weight(run)
                self.acknowledged += len(run.records)
            self._room.set()

    async def drain(self, deadline_s: float) -> None:
        """Store all that is held until `deadline_s` (loop time). What is not stored then is read again by someone."""
        loop = asyncio.get_running_loop()
        self._urgent = True
        try:
            while self._held and loop.time() < deadline_s:
                self._work.set()
                await asyncio.sleep(POLL_S)
        finally:
            self._urgent = False

    def close(self) -> None:
        """End the threads; what they are doing is not waited for."""
        self._preparer.shutdown(wait=False, cancel_futures=True)
        self._storer.shutdown(wait=False, cancel_futures=True)

    async def _due(self) -> Lane:
        """The next lane with enough rows, or whose oldest run has lingered; the oldest first."""
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            waiting = sorted((lane for lane in self._lanes.values() if lane.rows), key=lambda lane: lane.since_s)
            for lane in waiting:
                if lane.rows >= self._limits.rows or self._urgent or now_s >= lane.since_s + self._limits.linger_s:
                    return lane
            # With many partitions none may fill before all that may be held is held.
            if waiting and self._held >= self._limits.held:
                return max(waiting, key=lambda lane: lane.rows)
            patience_s = waiting[0].since_s + self._limits.linger_s - now_s if waiting else None
            self._work.clear()
            try:
                async with asyncio.timeout(patience_s):
                    await self._work.wait()
            except TimeoutError:
                pass

    async def _batch(self, lane: Lane, runs: Sequence[Run]) -> Batch:
        records: list[Record] = [record for run in runs for record in run.records]
        if records[0].offset != lane.next_offset:  # assigned anew, read again, or another topic by the same name
            lane.incarnation = await self._patiently(partial(self._incarnation, lane.topic))
        lane.next_offset = records[-1].offset + 1
        return Batch(self._tables[lane.topic], lane.incarnation, lane.partition, records)

    async def _incarnation(self, topic: str) -> str:
        loop = asyncio.get_running_loop()
        if topic not in self._known or loop.time() > self._known_s + TRUSTED_S:
            self._known = await self._ask_incarnations()
            self._known_s = loop.time()
        if topic not in self._known:
            raise StoreUnavailable(f"Kafka does not list the topic {topic} now")
        return self._known[topic]

    def _note(self, prepared: Prepared) -> None:
        for reason, number in prepared.skipped.items():
            self.skipped[prepared.table, reason] += number
        if prepared.skipped:
            reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(prepared.skipped.items()))
            log.warning(
                "Skipped records for %s: %s; the penalties role keeps them as dead letters", prepared.table, reasons
            )

    @staticmethod
    async def _in(executor: ThreadPoolExecutor, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)

    async def _patiently(self, operation: Callable[[], Awaitable[T]]) -> T:
        """The result of `operation`, tried until it stops raising `StoreUnavailable`."""
        try:
            return await operation()
        except StoreUnavailable as error:
            told = str(error)
        log.warning("Analytics wait, nothing is acknowledged: %s", told)
        self._outages += 1
        delay_s = self._limits.first_retry_s
        try:
            while True:
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, self._limits.longest_retry_s)
                try:
                    result = await operation()
                except StoreUnavailable as error:
                    if str(error) != told:
                        told = str(error)
                        log.warning("Analytics still wait: %s", told)
                else:
                    log.warning("Analytics go on")
                    return result
        finally:
            self._outages -= 1
