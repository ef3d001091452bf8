"""Publishes decisions and outcomes to Kafka: keyed, batched, bounded in flight, and every result looked at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError
from penaltybox.links.kafka import Connection
from penaltybox.links.kafka_outages import explained
from penaltybox.producers.sealed import Sealer

if TYPE_CHECKING:
    from types import TracebackType

    from penaltybox.contracts.events import Decision, Outcome
    from penaltybox.contracts.settings import Settings

Compression = Literal["gzip", "snappy", "lz4", "zstd"] | None
MAX_IN_FLIGHT: Final = 20_000


class Publisher:
    """Sends records in the background. The first failure is raised by the next `send`, `flush` or `close`.

    A record's partition is the murmur2 hash of its key, as the Java client has it, so all events of one subject share
    a partition whoever sends them. Records of one subject keep their order: there is one request at a time in flight
    to a partition (aiokafka's way), and a batch that failed is sent again before the next.

    Args:
        settings: where Kafka is; topic prefix; IPv6 prefix; dimensions to hash before they leave.
        linger_ms: how long a batch waits for more.
        compression: of batches; lz4, snappy and zstd need their packages.
        max_in_flight: unanswered records at most; `send` waits at the bound.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        linger_ms: int = 20,
        compression: Compression = None,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self._where = settings.kafka
        self._options = Connection.of(settings).client_options() | {
            "linger_ms": linger_ms,
            "compression_type": compression,
            "max_batch_size": 262_144,
            "acks": "all",
            "client_id": "penaltybox-publisher",
        }
        self._sealer = Sealer(settings)
        self._max_in_flight = max_in_flight
        self._producer: AIOKafkaProducer | None = None
        self._in_flight = 0
        self._room = asyncio.Event()
        self._failure: PenaltyboxError | None = None
        self.published = 0
        """Records that Kafka has confirmed."""

    async def start(self) -> None:
        """Connects.

        Raises:
            StoreUnavailable: no broker answers.
            ConfigurationError: refused credentials, no topics, or a compression whose package is not installed.
        """
        try:
            self._producer = AIOKafkaProducer(**self._options)
        except (RuntimeError, ValueError) as error:
            raise ConfigurationError(f"publisher: {error}") from error
        try:
            await self._producer.start()
            known = (await self._producer.client.fetch_all_metadata()).topics()
            if self._sealer.topics.decisions not in known:  # aiokafka would wait for it until its timeout
                raise UnknownTopicOrPartitionError
        except (KafkaError, OSError) as error:
            await self._producer.stop()
            self._producer = None
            raise self._sentence(error) from error

    async def send(self, record: Decision | Outcome) -> None:
        """Hands one record over; returns at once unless too many are unanswered.

        Raises:
            BadEvent: a subject that is not allowed, or a record over 4 KiB: it would be a dead letter.
            StoreUnavailable: an earlier record was not taken.
            ConfigurationError: an earlier record was refused for good: no such topic, no permission.
        """
        if self._producer is None:
            raise PenaltyboxError("publisher: send before start")
        if self._failure is not None:
            raise self._failure
        sealed = self._sealer.seal(record)
        while self._in_flight >= self._max_in_flight:
            self._room.clear()
            await self._room.wait()
        try:
            answer = await self._producer.send(sealed.topic, sealed.value, sealed.key)
        except (KafkaError, OSError) as error:
            raise explained(error, self._where, sealed.topic) from error
        self._in_flight += 1
        answer.add_done_callback(self._answered)

    async def flush(self) -> None:
        """Waits until every record is answered; raises what `send` raises."""
        if self._producer is not None:
            await self._producer.flush()
        while self._in_flight:
            self._room.clear()
            await self._room.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Flushes and disconnects; raises what `send` raises, disconnected all the same."""
        producer, failed = self._producer, self._failure is not None
        if producer is None:
            return
        try:
            if not failed:
                await self.flush()
        finally:
            self._producer = None
            await producer.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        self._in_flight -= 1
        error = None if answer.cancelled() else answer.exception()
        if error is None:
            self.published += not answer.cancelled()
        elif self._failure is None:
            self._failure = self._sentence(error)
        self._room.set()

    def _sentence(self, error: BaseException) -> PenaltyboxError:
        return explained(error, self._where, self._sealer.topics.decisions)
