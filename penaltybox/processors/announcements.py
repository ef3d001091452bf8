"""What a worker tells the world: penalties, ladders, dead letters. Delivered when `send` returns."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError
from aiokafka.partitioner import DefaultPartitioner

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import DeadLetter, encode
from penaltybox.links.kafka import Connection, stop_producer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.errors import BadEvent
    from penaltybox.contracts.events import Ladder, Penalty
    from penaltybox.contracts.settings import Settings
    from penaltybox.contracts.topics import Topics

log = logging.getLogger("penaltybox.penalties")
MAX_LETTER_BYTES: Final = 512 * 1024
"""Most raw bytes in a dead letter: with base64 it must pass the broker's limit of 1 MiB a message, or one huge record
would stop its partition for ever."""
REQUEST_TIMEOUT_MS: Final = 10_000
"""An answer that is lost holds the messages of its partition back for so long; who sends is ready to send again."""
STOP_S: Final = 5.0
_partition = DefaultPartitioner()


class Message(NamedTuple):
    """One record to send; a value of None is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None


class Sender(Protocol):
    """Where messages go."""

    async def send(self, messages: Sequence[Message]) -> None:
        """Return when every message is delivered, in order within a key.

        Raises:
            StoreUnavailable: some were not; send all of them again.
        """


class KafkaSender:
    """Sends through aiokafka: partitioned by murmur2 as the Java client does, acknowledged by all replicas."""

    def __init__(self, producer: AIOKafkaProducer, stop_s: float = STOP_S) -> None:
        self._producer = producer
        self._stop_s = stop_s

    async def start(self) -> None:
        """Connect."""
        await self._producer.start()

    async def stop(self) -> None:
        """Flush and disconnect; a broker that does not answer is left after a while. What is unsent stays pending."""
        if not await stop_producer(self._producer, self._stop_s):
            log.warning("Kafka did not take the last messages within %g s; they stay pending", self._stop_s)

    async def send(self, messages: Sequence[Message]) -> None:
        """Send a batch per partition and wait until all are delivered; a future per message would cost much more."""
        try:
            delivered = []
            for (topic, partition), batches in (await self._batches(messages)).items():
                for batch in batches:
                    batch.close()
                    delivered.append(await self._producer.send_batch(batch, topic, partition=partition))
            await asyncio.gather(*delivered)
        except KafkaError as error:
            if not (error.retriable or error.invalid_metadata or isinstance(error, KafkaTimeoutError)):
                raise
            raise StoreUnavailable(f"Kafka did not take {len(messages)} messages: {error!r}") from error

    async def _batches(self, messages: Sequence[Message]) -> dict[tuple[str, int], list[Any]]:
        """(topic, partition) -> batches in the order of the messages."""
        numbers = {
            topic: sorted(await self._producer.partitions_for(topic))
            for topic in {message.topic for message in messages}
        }
        found: dict[tuple[str, int], list[Any]] = {}
        for topic, key, value in messages:
            batches = found.setdefault((topic, _partition(key, numbers[topic], numbers[topic])), [])
            if not batches or batches[-1].append(key=key, value=value, timestamp=None) is None:
                batches.append(self._producer.create_batch())
                batches[-1].append(key=key, value=value, timestamp=None)
        return found


def kafka_sender(settings: Settings) -> KafkaSender:
    """A sender for these settings, not started."""
    options = Connection.of(settings).client_options()
    producer = AIOKafkaProducer(
        **options, acks="all", linger_ms=0, max_batch_size=256 * 1024, request_timeout_ms=REQUEST_TIMEOUT_MS
    )
    return KafkaSender(producer, min(STOP_S, settings.stop_timeout_s / 4))


def penalty_messages(topics: Topics, penalties: Sequence[Penalty]) -> list[Message]:
    """Penalties in their order, and one JSON log line for each."""
    messages = []
    for penalty in penalties:
        value = encode(penalty)
        log.info("%s", value.decode())
        messages.append(Message(topics.penalties, penalty.subject.encode(), value))
    return messages


def ladder_message(topics: Topics, subject: str, ladder: Ladder | None) -> Message:
    """The ladder after a step, a tombstone when nothing is left of it."""
    return Message(topics.ladders, subject.encode(), None if ladder is None else encode(ladder))


def dead_letter(topics: Topics, record: Any, place: tuple[str, int], error: BadEvent, now_ms: int) -> Message:
    """A record that could not be judged: raw bytes (the first `MAX_LETTER_BYTES`), reason, where it was.

    Args:
        topics: names.
        record: as it was fetched.
        place: topic and partition.
        error: why.
        now_ms: wall time.
    """
    topic, partition = place
    raw = record.value or b""
    detail = error.detail[:512]
    if len(raw) > MAX_LETTER_BYTES:
        detail += f"; only its first {MAX_LETTER_BYTES} bytes are kept here"
    letter = DeadLetter(
        ts=now_ms,
        reason=error.reason,
        detail=detail,
        topic=topic,
        partition=partition,
        offset=record.offset,
        raw=raw[:MAX_LETTER_BYTES],
    )
    return Message(topics.dead_letters, None, encode(letter))
