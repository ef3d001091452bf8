"""The publisher's side on the loop thread: to Kafka while it is there, refusals to disk while it is not."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, UnknownTopicOrPartitionError

from penaltybox.contracts.errors import BadEvent, PenaltyboxError, StoreUnavailable
from penaltybox.links.kafka_outages import explained
from penaltybox.producers.diary import Diary, Mistakes, silence_client
from penaltybox.producers.lanes import SECURE_S, Lanes
from penaltybox.producers.loop_thread import DaemonExecutor
from penaltybox.producers.sealed import Sealer
from penaltybox.producers.spill import Spill, spill_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penaltybox.contracts.settings import Settings
    from penaltybox.producers.diary import Silence
    from penaltybox.producers.sealed import Sealed
    from penaltybox.producers.spill import Segment

REQUEST_TIMEOUT_MS: Final = 6_000
BATCH_BYTES: Final = 131_072
FIRST_REST_S: Final = 0.5
LONGEST_REST_S: Final = 8.0
SWEEP_S: Final = 0.25
TICK_S: Final = 1.0
ADOPT_S: Final = 30.0
RESENT_AT_ONCE: Final = 100
BREATH_S: Final = 0.005
"""Between runs of resent records: an application's own threads go first."""


class Counters(msgspec.Struct):
    """What became of the records that were offered, since the start of this process.

    Each ends as published, dropped, failed, or in the spill. Records that other processes left and this one sent count
    as published and resent here.

    Attributes:
        offered: all.
        published: Kafka has confirmed them; resent ones too.
        dropped: allowed requests while Kafka was away or the buffer full; others when the spill took no more.
        failed: never to be published: a subject that is not allowed, too large, no record at all.
        spilled: written to the spill.
        spilled_bytes: in the spill now, adopted files included.
        resent: those of the published ones that came out of the spill.
        corrupt: lines of the spill that could not be read: cut by a crash, or damaged.
        adopted: files taken over from processes that are gone.
    """

    offered: int = 0
    published: int = 0
    dropped: int = 0
    failed: int = 0
    spilled: int = 0
    spilled_bytes: int = 0
    resent: int = 0
    corrupt: int = 0
    adopted: int = 0


class Dispatch:
    """Takes records on the loop thread. Everything but `counters` belongs to the loop.

    Args:
        settings: where Kafka is, room, spill.
        options: keyword arguments for any aiokafka client.
        counters: are counted up here.
    """

    def __init__(self, settings: Settings, options: dict[str, Any], counters: Counters) -> None:
        self.counters = counters
        self._where = settings.kafka
        self._options = options | {
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "max_batch_size": BATCH_BYTES,
            "acks": "all",
            "client_id": "penaltybox-publisher",
        }
        self._room = settings.publisher_buffer
        self._sealer = Sealer(settings)
        self.spill = Spill(spill_directory(settings), settings.spill_max_mb << 20)
        self._disk: DaemonExecutor | None = None
        self._storing = 0
        self._to_store: deque[bytes] = deque()
        self._store_task: asyncio.Task[None] | None = None
        self._producer: AIOKafkaProducer | None = None
        self._lanes: Lanes | None = None
        self._away = False
        self._broken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._producers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._retiring: set[asyncio.Task[None]] = set()
        meanwhile = f"Refusals wait in {self.spill.directory}, allowed requests are dropped"
        self._outage = Diary(meanwhile, self._figures)
        self._silence: Silence | None = None
        self._partial, self._mistakes = Mistakes(), Mistakes()
        self._adopted_at: float | None = None

    def start(self) -> None:
        """Begins to connect, on the running loop."""
        self._silence = silence_client(threading.get_ident())
        self._disk = DaemonExecutor("penaltybox-spill")
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work()) for work in (self._stay_connected, self._tend, self._empty_spill)]

    @property
    def ready(self) -> bool:
        """Whether `take` has somewhere to go: false only while the first connection is being made."""
        return self._lanes is not None or self._away

    @property
    def away(self) -> bool:
        """Whether Kafka does not take records."""
        return self._lanes is None and self._away

    @property
    def held(self) -> int:
        """Records in memory."""
        return (self._lanes.held if self._lanes is not None else 0) + len(self._to_store) + self._storing

    def take(self, records: Iterable[Any]) -> None:
        """Takes records of any kind; those that are none are counted. They leave when `go` says so."""
        sealed = []
        for record in records:
            try:
                sealed.append(self._sealer.seal(record))
            except Exception as error:  # noqa: BLE001 - a program offers what it likes; nothing of it may stop the others
                self.refused(1, error)
        if self._lanes is not None:
            self._lanes.hold(sealed)
        else:
            self.unsent(sealed)

    def go(self) -> None:
        """Sends what was taken."""
        if self._lanes is not None:
            self._lanes.go()

    async def finish(self) -> None:
        """Lets go: what is not confirmed is spilled or dropped, and the files are closed for others to adopt."""
        for task in self._tasks:
            task.cancel()
        self._away = True
        self.let_go()
        while self._store_task is not None and not self._store_task.done():
            await asyncio.wait({self._store_task})
        await self._on_disk(self.spill.close)
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=SECURE_S)
        if self._disk is not None:
            self._disk.shutdown()

    def disown(self) -> None:
        """In a forked child: everything here is the parent's, and must not be closed or complained about."""
        self.spill.abandon()
        for producer in self._producers:
            producer._closed = True  # noqa: SLF001 - else its finaliser calls it forgotten

    # --- the ledger of the lanes

    def confirmed(self, count: int) -> None:
        """Kafka has so many more."""
        self.counters.published += count

    def unsent(self, records: Sequence[Sealed]) -> None:
        """Refusals and outcomes go to disk, in order; allowed requests are let go."""
        kept = [record.value for record in records if record.kept]
        fits = max(0, self._room - len(self._to_store))  # a disk that hangs must not fill the memory
        self.counters.dropped += len(records) - len(kept[:fits])
        self._to_store.extend(kept[:fits])
        if self._to_store and (self._store_task is None or self._store_task.done()):
            self._store_task = asyncio.get_running_loop().create_task(self._store())

    def refused(self, count: int, error: BaseException) -> None:
        """These cannot be published at all."""
        self.counters.failed += count
        text = str(error) if isinstance(error, (BadEvent, KafkaError)) else f"{type(error).__name__}: {error}"
        self._mistakes.tell(f"A record was not published: {text[:200]}", time.monotonic())

    def stuck(self, error: BaseException, *, alone: bool) -> None:
        """A batch was not taken; nothing was, unless it is `alone`."""
        reason = self._explained(error)
        if alone:
            self._partial.tell(f"{reason}; other partitions do. {self._figures()}", time.monotonic())
            return
        self._outage.trouble(reason, time.monotonic())
        self._broken.set()

    # --- the connection

    async def _stay_connected(self) -> None:
        rest_s = FIRST_REST_S
        while True:
            starting = asyncio.ensure_future(self._connect())
            try:
                if not (await asyncio.wait({starting}, timeout=SECURE_S))[0]:
                    self._gone(StoreUnavailable(f"Kafka at {self._where} does not answer; check PENALTYBOX_KAFKA"))
                producer = await starting
            except asyncio.CancelledError:
                starting.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - aiokafka raises ValueError, RuntimeError, IndexError, … here
                self._gone(self._explained(error))
                await asyncio.sleep(rest_s * random.uniform(0.7, 1.0))  # noqa: S311 - spreads retries, guards nothing
                rest_s = min(2 * rest_s, LONGEST_REST_S)
                continue
            rest_s = FIRST_REST_S
            self._broken.clear()
            self._producer, self._lanes = producer, Lanes(producer, self, self._room)
            self._away = False
            self._outage.over(time.monotonic())
            await self._broken.wait()
            self._away = True
            self.let_go()
            await asyncio.sleep(rest_s)

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**self._options)
        self._producers.add(producer)
        try:
            await producer.start()
            await self._look_for_topics(producer)
        except BaseException:
            self._retire(producer)
            raise
        return producer

    async def _look_for_topics(self, producer: AIOKafkaProducer) -> None:
        known = (await producer.client.fetch_all_metadata()).topics()
        for topic in (self._sealer.topics.decisions, self._sealer.topics.outcomes):
            if topic not in known:  # aiokafka would wait for it until its timeout
                raise explained(UnknownTopicOrPartitionError(), self._where, topic)
            await producer.partitions_for(topic)

    def _explained(self, error: BaseException) -> PenaltyboxError:
        """A failed connection is only "unable to bootstrap" to aiokafka; why, it tells its log alone."""
        if isinstance(error, KafkaConnectionError) and self._silence is not None and self._silence.error is not None:
            error = self._silence.error
        return explained(error, self._where, self._sealer.topics.decisions)

    def _gone(self, reason: PenaltyboxError) -> None:
        self._away = True
        self._outage.trouble(reason, time.monotonic())

    def let_go(self) -> None:
        """Gives up the connection; what was on its way is spilled or dropped, and so is all that `take` gets now."""
        self._away = True
        lanes, producer = self._lanes, self._producer
        self._lanes = self._producer = None
        if lanes is not None:
            self.unsent(lanes.abandon())
        if producer is not None:
            self._retire(producer)

    def _retire(self, producer: AIOKafkaProducer) -> None:
        """A producer whose broker hangs ends when its requests time out; nobody waits for it."""

        async def stop() -> None:
            try:
                await producer.stop()
            except Exception as error:  # noqa: BLE001 - it is let go in any case
                self._mistakes.tell(f"A connection to Kafka did not end well: {error}", time.monotonic())

        task = asyncio.get_running_loop().create_task(stop())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    # --- the disk

    async def _on_disk(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._disk, call, *arguments)

    async def _store(self) -> None:
        while self._to_store:
            lines = list(self._to_store)
            self._to_store.clear()
            self._storing = len(lines)
            written = await self._on_disk(self.spill.append, lines)
            self._storing = 0
            self.counters.spilled += written
            self.counters.dropped += len(lines) - written
            if self.spill.trouble:
                self._partial.tell(f"Refusals are lost: {self.spill.trouble}. {self._figures()}", time.monotonic())

    async def _tend(self) -> None:
        """Every second: what was spilled is forced to the disk, and what is to be said is said."""
        ticks = 0
        while True:
            await asyncio.sleep(SWEEP_S)
            if self._lanes is not None:
                self._lanes.sweep()
            ticks += 1
            if ticks * SWEEP_S < TICK_S:
                continue
            ticks = 0
            try:
                if self.spill.dirty:
                    await self._on_disk(self.spill.sync)
            except OSError as error:
                self._mistakes.tell(f"{self.spill.directory}: {error}", time.monotonic())
            self._outage.tick(time.monotonic())

    async def _empty_spill(self) -> None:
        """Sends what was spilled when Kafka is there, and what processes left that are gone."""
        rest_s = TICK_S
        while True:
            whole = True
            try:
                if self._lanes is not None:
                    await self._adopt()
                    whole = not self.spill.size or await self._resend()
            except Exception as error:  # noqa: BLE001 - a disk may fail in any way; it is tried again
                self._mistakes.tell(f"{self.spill.directory}: {type(error).__name__}: {error}", time.monotonic())
            rest_s = TICK_S if whole else min(2 * rest_s, LONGEST_REST_S)
            await asyncio.sleep(rest_s)

    async def _adopt(self) -> None:
        now = time.monotonic()
        if self._adopted_at is None or now - self._adopted_at > ADOPT_S:
            self._adopted_at = now
            self.counters.adopted += await self._on_disk(self.spill.adopt)

    async def _resend(self) -> bool:
        """Sends what the spill has; whether Kafka took everything."""
        whole = True
        for segment in await self._on_disk(self.spill.waiting):
            if self._lanes is None:
                return False
            whole &= await self._resend_segment(self._lanes, segment)
        return whole

    async def _resend_segment(self, lanes: Lanes, segment: Segment) -> bool:
        lines: list[bytes] = await self._on_disk(self.spill.read, segment)
        left: list[bytes] = []
        for start in range(0, len(lines), RESENT_AT_ONCE):
            run = lines[start : start + RESENT_AT_ONCE]
            if self._lanes is not lanes:
                left += run
                continue
            done, unsent = await lanes.deliver(self._resealed(run))
            self.counters.published += done
            self.counters.resent += done
            left += [record.value for record in unsent]
            await asyncio.sleep(BREATH_S)
        if len(left) < len(lines):
            await self._on_disk(self.spill.settle, segment, left)
        return not left

    def _resealed(self, lines: Iterable[bytes]) -> list[Sealed]:
        found = []
        for line in lines:
            try:
                found.append(self._sealer.resealed(line))
            except BadEvent as error:
                self.counters.corrupt += 1
                self._mistakes.tell(f"{self.spill.directory}: a line cannot be read: {error}", time.monotonic())
        return found

    def _figures(self) -> str:
        got = self.counters
        return (
            f"So far: {got.published} published, {got.spilled} refusals kept in {self.spill.directory}, "
            f"{got.resent} of those sent later, {got.dropped} records dropped"
        )
