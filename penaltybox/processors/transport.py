"""Kafka transport for Faust that delivers runs: one message = the records of one partition as they were fetched.

Stock Faust makes two tasks per record and tops out near ten thousand records a second; a message per fetched run
moves several hundred thousand.  Installed behind the entry point ``faust.transports`` as ``pbx+kafka``; only the
topics that an app names in `run_topics` arrive in runs, all others record by record.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, cast

from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage
from mode.services import Service
from mode.threads import WorkerThread

from penaltybox.processors.fetched import FetchedRecords
from penaltybox.processors.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

FETCH_WAIT_MS = 25
"""How long a broker may hold a fetch. Faust says 1,500; the embedded broker uses all of it even when it has records,
and a block waited 0.3 s for them. Apache Kafka answers at once when it has any."""
IDLE_S = 1.0
THREAD_ENDS_S = 5.0
"""It has left its group by then; what is left closes connections."""


class RunMessage(ConsumerMessage):
    """A run of records of one partition. `value`: list of records, `offset`: the last one's.

    A record has ``key``, ``value``, ``offset``, ``timestamp`` (ms) and ``headers``.
    """

    def ack(self, consumer: Any, n: int = 1) -> bool:
        """Acknowledge the whole run. A run that no agent has seen (a stream skips stale ones) is never acknowledged."""
        return bool(super().ack(consumer, n)) if self.tracked else False


class FetchingThread(WorkerThread):
    """A thread that the end of the process does not wait for."""

    def __init__(self, service: Any, **options: Any) -> None:
        super().__init__(service, **options)
        self.daemon = True


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """The fetching thread, and what its event loop does."""

    Worker = FetchingThread

    async def on_start(self) -> None:
        """Start fetching, with bare records for run topics, and answers that are not held back."""
        await super().on_start()
        fetcher = self._ensure_consumer()._fetcher  # noqa: SLF001 - no public way, tested
        fetcher._records = FetchedRecords(cast("Consumer", self.consumer).run_topics)  # noqa: SLF001
        fetcher._fetch_max_wait_ms = FETCH_WAIT_MS  # noqa: SLF001

    async def stop(self) -> None:
        """Leave the group and end the thread. It is waited for in a thread: a broker that hangs must not hold the loop.

        Raises:
            TimeoutError: it has not left within Faust's `shutdown_timeout`.
        """
        if self._started.is_set():
            await Service.stop(self)
            if self._thread is not None:
                await asyncio.to_thread(self._thread.join, THREAD_ENDS_S)

    def look_again(self) -> None:
        """Have a call that waits for new records see those that were fetched before and were not wanted then.

        aiokafka wakes it for nothing but an answer of the broker, and what lies fetched is not asked for again: with
        a second topic in which nothing happens, the call stays for all of its second.
        """
        with suppress(RuntimeError):  # the thread has ended, and its loop is closed
            self.thread_loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._consumer is not None:
            fetcher = self._consumer._fetcher  # noqa: SLF001 - no public way, tested
            for waiter in tuple(fetcher._fetch_waiters):  # noqa: SLF001 - as above
                fetcher._notify(waiter)  # noqa: SLF001 - as above

    async def _fetch_records(self, *args: Any, **kwargs: Any) -> Any:
        fetched = await super()._fetch_records(*args, **kwargs)
        return {TP(partition.topic, partition.partition): records for partition, records in fetched.items()}


class Consumer(driver.Consumer):
    """Faust consumer with runs and an offset tracker that never commits past an unacknowledged run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.tracker: Tracker[TP] = Tracker()
        self._fetchable = asyncio.Event()
        super().__init__(*args, **kwargs)
        self.run_topics: frozenset[str] = getattr(self.app, "run_topics", frozenset())

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    # -- delivery

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:  # noqa: ASYNC109 - Faust's signature
        """Yield what was fetched as (partition, message); every message is tracked before it is yielded.

        A message that is tracked and not yielded (flow stopped in between) holds back commits of its partition until
        the seek that follows has it delivered again.
        """
        records, active = await self._wait_next_records(timeout)
        generation = self.app.consumer_generation_id
        if records is None or self.should_stop:
            return
        if not self.flow_active:
            await self._seek_after_stopped_flow()
            return
        messages = list(self._messages(records))
        for tp, message in messages:
            if self.app.topics.acks_enabled_for(tp.topic):
                self.tracker.deliver(tp, message)
        for tp, message in messages:
            if not self.flow_active or self.app.consumer_generation_id != generation:
                self.log.info("Flow stopped or generation %s ended: runs not delivered are read again", generation)
                break
            if active is None or tp in active or tp in self._buffered_partitions:
                self.app.monitor.track_tp_end_offset(tp, self.highwater(tp))
                yield tp, message

    def _messages(self, records: Mapping[TP, list[Any]]) -> Iterator[tuple[TP, Any]]:
        note_run = getattr(self.app, "note_run", None)
        for tp, run in records.items():
            read = self._read_offset[tp]
            if tp.topic in self.run_topics:
                # Faust would drop, without a trace, what lies before its read offset.
                if run and (read is None or run[-1].offset >= read):
                    if note_run is not None:
                        note_run(tp.topic, len(run))
                    yield tp, self._run_message(tp, run)
            else:
                for record in run:
                    if read is None or record.offset >= read:
                        yield tp, self._to_message(tp, record)

    def _run_message(self, tp: TP, run: list[Any]) -> RunMessage:
        last = run[-1]
        return RunMessage(
            tp.topic,
            tp.partition,
            last.offset,
            last.timestamp / 1000.0,
            last.timestamp_type,
            [],
            None,
            cast("bytes", run),  # the agent gets the list; Faust only passes it on
            None,
            0,
            len(run),
            tp,
            generation_id=self.app.consumer_generation_id,
        )

    async def _wait_next_records(self, timeout: float) -> tuple[Any, Any]:  # noqa: ASYNC109 - Faust's signature
        # Stock sleeps a whole second when every partition's buffer is full; here the first that drains ends the wait.
        if not self.flow_active:
            await self.wait(cast("Any", self.can_resume_flow))
        active = None if self.app.client_only else self._get_active_partitions()
        if active is None or active:
            return await self._getmany(active_partitions=active, timeout=timeout), active
        self._fetchable.clear()
        await self.wait(cast("Any", self._fetchable), timeout=IDLE_S)
        return {}, active

    def on_buffer_drop(self, tp: TP) -> None:
        """Fetch the partition again: its buffer has drained."""
        super().on_buffer_drop(tp)
        self._wanted_again()

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Fetch these partitions (again)."""
        super().resume_partitions(tps)
        self._wanted_again()

    def _wanted_again(self) -> None:
        # The partitions that a waiting call may return are this very set: it sees what was added.
        self._fetchable.set()
        cast("ConsumerThread", self._thread).look_again()

    async def _seek_after_stopped_flow(self) -> None:
        try:
            await self.perform_seek()
        except Exception as error:  # noqa: BLE001 - as stock: the next assignment seeks again
            self.log.warning("Seek with the flow stopped failed, the next assignment seeks again: %r", error)

    # -- offsets

    async def perform_seek(self) -> None:
        """Go back to the committed offsets; what was delivered since will be delivered again."""
        await super().perform_seek()
        self.tracker.forget()

    async def seek(self, partition: TP, offset: int) -> None:
        """Go to an offset; what was delivered of the partition no longer counts."""
        await super().seek(partition, offset)
        self.tracker.forget([partition])

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Drain and commit (in `super`), then forget what was delivered and not acknowledged."""
        await super().on_partitions_revoked(revoked)
        self.tracker.forget(revoked)

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return (tp for tp in self.tracker.partitions() if topics is None or tp in topics or tp.topic in topics)

    def _new_offset(self, tp: TP) -> int | None:
        # Stock bookkeeping is filled by the Cython stream too; nothing reads it here, so it must not grow.
        self._acked.pop(tp, None)
        self._acked_index.pop(tp, None)
        return self.tracker.reached(tp)

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Nothing: a run's offset is its last record's, so what lies between two of them is no gap."""

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        seam = getattr(self.app, "seam", None)
        if seam is not None:
            seam("before_commit")
        return bool(await super()._commit(offsets))

    # -- leaving

    async def wait_empty(self) -> None:
        """Let the agents finish what they hold, within the app's drain deadline, and commit it.

        What is still unacknowledged then (a store outage, a pause) is given up: whoever gets the partition next reads
        it again.
        """
        deadline = self.loop.time() + getattr(self.app, "drain_s", 10.0)
        drain = getattr(self.app, "drain", None)
        if drain is not None:
            await drain(deadline)
        while self._held() and not self.should_stop and self.loop.time() < deadline:
            await self._acknowledgement(min(0.2, deadline - self.loop.time()))
        if self._held():
            self.log.warning("%d delivered messages given up unacknowledged; they are read again", self._held())
        self._unacked_messages.clear()
        await self.commit_and_end_transactions()

    def _held(self) -> int:
        self._clean_unacked_messages()
        return len(self._unacked_messages)

    async def _acknowledgement(self, timeout_s: float) -> None:
        self._waiting_for_ack = self.loop.create_future()
        try:
            await asyncio.wait([self._waiting_for_ack], timeout=max(0.0, timeout_s))
        finally:
            self._waiting_for_ack = None


class Transport(driver.Transport):
    """``pbx+kafka://``: aiokafka with runs. `app.run_topics` names the topics that arrive in runs."""

    Consumer: ClassVar[type[Consumer]] = Consumer
