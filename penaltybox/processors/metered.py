"""A worker's store, sender and ClickHouse writer with a clock and counters around them. Once per call, never per event.

Penalties and dead letters are read back out of the messages that tell them: there are few of them, and the loops that
make them stay free of counting.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import Counter, Gauge, Histogram

from penaltybox.contracts.errors import GenerationMismatch, StoreUnavailable
from penaltybox.contracts.events import DeadLetter, Penalty
from penaltybox.links.exposition import SECONDS, SIZES, Bounded
from penaltybox.sinks.subject_store import Lost, Rewound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry

    from penaltybox.contracts.topics import Topics
    from penaltybox.processors.announcements import Message, Sender
    from penaltybox.sinks.clickhouse.records import Batch
    from penaltybox.sinks.clickhouse.writer import Prepared, Writer
    from penaltybox.sinks.subject_store import SubjectStore, Write, WriteResult

_penalty = msgspec.json.Decoder(Penalty).decode
_letter = msgspec.json.Decoder(DeadLetter).decode


class MeteredStore:
    """A `SubjectStore`; see there for what each method does.

    Args:
        store: does it.
        registry: where the figures are found.
    """

    def __init__(self, store: SubjectStore, registry: CollectorRegistry) -> None:
        self._store = store
        self._seconds = Histogram(
            "penaltybox_store_seconds",
            "Calls of Redis for states, by operation.",
            ["operation"],
            buckets=SECONDS,
            registry=registry,
        )
        self._subjects = Histogram(
            "penaltybox_store_subjects",
            "Subjects in one call of Redis, by operation.",
            ["operation"],
            buckets=SIZES,
            registry=registry,
        )
        self._errors = Counter(
            "penaltybox_store_errors",
            "Calls of Redis that failed; kind generation: it was wiped or swapped.",
            ["operation", "kind"],
            registry=registry,
        )
        self._races = Counter(
            "penaltybox_store_races", "Writes that another worker forestalled; stepped again.", registry=registry
        )
        self._rewound = Counter(
            "penaltybox_store_rewound", "Writes that found less in Redis than was read.", registry=registry
        )
        self._pending = Gauge(
            "penaltybox_outbox_subjects",
            "Subjects whose penalties wait in Redis to be told, at the last look; at most 1,000 are seen.",
            registry=registry,
        )
        self._trips = Counter("penaltybox_breaker_trips", "Times the breaker paused new blocks.", registry=registry)
        for operation in ("read", "write"):
            self._seconds.labels(operation)
            self._subjects.labels(operation)
            for kind in ("unavailable", "generation"):
                self._errors.labels(operation, kind)

    @contextmanager
    def _timed(self, operation: str, subjects: int) -> Iterator[None]:
        began_s = time.perf_counter()
        try:
            yield
        except StoreUnavailable as error:
            kind = "generation" if isinstance(error, GenerationMismatch) else "unavailable"
            self._errors.labels(operation, kind).inc()
            raise
        self._seconds.labels(operation).observe(time.perf_counter() - began_s)
        self._subjects.labels(operation).observe(subjects)

    async def read(self, subjects: Sequence[str]) -> list[bytes | None]:
        """See `SubjectStore`."""
        with self._timed("read", len(subjects)):
            return await self._store.read(subjects)

    async def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        """See `SubjectStore`."""
        with self._timed("write", len(writes)):
            results = await self._store.write(writes)
        kinds = list(map(type, results))
        self._races.inc(kinds.count(Lost))
        self._rewound.inc(kinds.count(Rewound))
        return results

    async def pending(self, older_than_ms: int, limit: int = 1000) -> list[str]:
        """See `SubjectStore`."""
        subjects = await self._store.pending(older_than_ms, limit)
        self._pending.set(len(subjects))
        return subjects

    async def settle(self, subjects: Sequence[str]) -> None:
        """See `SubjectStore`."""
        await self._store.settle(subjects)

    async def generation(self) -> str | None:
        """See `SubjectStore`."""
        return await self._store.generation()

    async def begin_generation(self, value: str) -> None:
        """See `SubjectStore`."""
        await self._store.begin_generation(value)

    async def join_generation(self, known: str | None = None) -> str:
        """See `SubjectStore`."""
        return await self._store.join_generation(known)

    async def pause_reason(self) -> str | None:
        """See `SubjectStore`."""
        return await self._store.pause_reason()

    async def pause(self, reason: str, actor: str, at_ms: int) -> None:
        """See `SubjectStore`; a worker pauses when its breaker has tripped."""
        await self._store.pause(reason, actor, at_ms)
        self._trips.inc()

    async def resume(self) -> None:
        """See `SubjectStore`."""
        await self._store.resume()

    async def close(self) -> None:
        """See `SubjectStore`."""
        await self._store.close()


class MeteredSender:
    """A `Sender` that counts what Kafka has taken: penalties by what they are, dead letters by reason.

    Args:
        sender: sends.
        topics: their names.
        registry: where the figures are found.
    """

    def __init__(self, sender: Sender, topics: Topics, registry: CollectorRegistry) -> None:
        self._sender = sender
        self._topics = topics
        self._bounded = Bounded()
        self._seconds = Histogram(
            "penaltybox_tell_seconds",
            "Deliveries of a batch of penalties, ladders or dead letters to Kafka.",
            buckets=SECONDS,
            registry=registry,
        )
        self._errors = Counter(
            "penaltybox_tell_errors", "Deliveries that Kafka did not take; they are tried again.", registry=registry
        )
        self._penalties = Counter(
            "penaltybox_penalties",
            "Penalties told to Kafka; one that is told again counts again.",
            ["rule", "rung", "dimension", "action", "shadow", "origin"],
            registry=registry,
        )
        self._letters = Counter(
            "penaltybox_dead_letters", "Records that could not be judged.", ["reason"], registry=registry
        )
        self._ladders = Counter("penaltybox_ladders", "Ladders told to Kafka.", registry=registry)

    async def send(self, messages: Sequence[Message]) -> None:
        """See `Sender`."""
        began_s = time.perf_counter()
        try:
            await self._sender.send(messages)
        except StoreUnavailable:
            self._errors.inc()
            raise
        self._seconds.observe(time.perf_counter() - began_s)
        for topic, _, value in messages:
            if topic == self._topics.ladders:
                self._ladders.inc()
            elif value is not None and topic == self._topics.penalties:
                self._count_penalty(_penalty(value))
            elif value is not None and topic == self._topics.dead_letters:
                self._letters.labels(_letter(value).reason).inc()

    def _count_penalty(self, penalty: Penalty) -> None:
        dimension = penalty.subject.partition(":")[0]
        shadow = "true" if penalty.shadow else "false"
        values = (penalty.rule, penalty.to, dimension, penalty.action, shadow, penalty.origin)
        self._penalties.labels(*self._bounded.of(*values)).inc()


class MeteredWriter:
    """Prepares and stores batches as a `Writer` does, and counts rows.

    Args:
        writer: does it.
        registry: where the figures are found.
    """

    def __init__(self, writer: Writer, registry: CollectorRegistry) -> None:
        self._writer = writer
        self._rows = Counter("penaltybox_stored_rows", "Rows stored in ClickHouse.", ["table"], registry=registry)
        self._repeated = Counter(
            "penaltybox_repeated_rows", "Records that ClickHouse had already.", ["table"], registry=registry
        )
        self._skipped = Counter(
            "penaltybox_skipped_records",
            "Records that analytics could not read, by reason.",
            ["table", "reason"],
            registry=registry,
        )
        self._seconds = Histogram(
            "penaltybox_insert_seconds", "Inserts of one batch.", ["table"], buckets=SECONDS, registry=registry
        )
        self._sizes = Histogram("penaltybox_insert_rows", "Rows of one batch.", buckets=SIZES, registry=registry)
        self._errors = Counter(
            "penaltybox_clickhouse_errors", "Calls of ClickHouse that failed; they are tried again.", registry=registry
        )

    def prepare(self, batch: Batch) -> Prepared:
        """See `Writer`."""
        with self._counted():
            prepared = self._writer.prepare(batch)
        self._repeated.labels(prepared.table).inc(prepared.repeated)
        for reason, number in prepared.skipped.items():
            self._skipped.labels(prepared.table, reason).inc(number)
        return prepared

    def store(self, prepared: Prepared) -> None:
        """See `Writer`."""
        began_s = time.perf_counter()
        with self._counted():
            self._writer.store(prepared)
        self._seconds.labels(prepared.table).observe(time.perf_counter() - began_s)
        self._sizes.observe(prepared.rows)
        self._rows.labels(prepared.table).inc(prepared.rows)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable:
            self._errors.inc()
            raise


def metered_store(store: SubjectStore, registry: CollectorRegistry | None) -> SubjectStore:
    """The store, metered if anybody wants to know."""
    return store if registry is None else MeteredStore(store, registry)


def metered_sender(sender: Sender, topics: Topics, registry: CollectorRegistry | None) -> Sender:
    """The sender, metered if anybody wants to know."""
    return sender if registry is None else MeteredSender(sender, topics, registry)


def metered_writer(writer: Writer, registry: CollectorRegistry | None) -> Writer | MeteredWriter:
    """The writer, metered if anybody wants to know."""
    return writer if registry is None else MeteredWriter(writer, registry)
