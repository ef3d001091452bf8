"""What a worker tells the world: penalties, ladders, dead letters. Delivered when `send` returns."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import DeadLetter, encode
from penaltybox.processors.broker import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.errors import BadEvent
    from penaltybox.contracts.events import Ladder, Penalty
    from penaltybox.contracts.settings import Settings
    from penaltybox.contracts.topics import Topics

log = logging.getLogger("penaltybox.penalties")


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

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def start(self) -> None:
        """Connect."""
        await self._producer.start()

    async def stop(self) -> None:
        """Flush and disconnect."""
        await self._producer.stop()

    async def send(self, messages: Sequence[Message]) -> None:
        """Send in order and wait for each one's delivery."""
        try:
            futures = [await self._producer.send(m.topic, m.value, key=m.key) for m in messages]
            await asyncio.gather(*futures)
        except KafkaError as error:
            if not (error.retriable or error.invalid_metadata):
                raise
            raise StoreUnavailable(f"Kafka did not take {len(messages)} messages: {error!r}") from error


def kafka_sender(settings: Settings) -> KafkaSender:
    """A sender for these settings, not started."""
    options = Connection.of(settings).client_options()
    return KafkaSender(AIOKafkaProducer(**options, acks="all", linger_ms=0, max_batch_size=256 * 1024))


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
    """A record that could not be judged: raw bytes, reason, where it was.

    Args:
        topics: names.
        record: as it was fetched.
        place: topic and partition.
        error: why.
        now_ms: wall time.
    """
    topic, partition = place
    letter = DeadLetter(
        ts=now_ms,
        reason=error.reason,
        detail=error.detail[:512],
        topic=topic,
        partition=partition,
        offset=record.offset,
        raw=record.value or b"",
    )
    return Message(topics.dead_letters, None, encode(letter))
