"""What a worker tells the world gets there: sizes of messages, failures that pass and failures that don't."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, TopicAuthorizationFailedError

from penaltybox.contracts.errors import BadEvent, StoreUnavailable
from penaltybox.contracts.events import DeadLetter
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.processors.announcements import MAX_LETTER_BYTES, KafkaSender, Message, dead_letter, kafka_sender

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiokafka import AIOKafkaProducer

TOPICS = Topics.named("penaltybox")
LARGEST_MESSAGE = 1_048_576
"""What Apache Kafka takes by default is 12 bytes more."""


@pytest.fixture
async def producer() -> AsyncIterator[AIOKafkaProducer]:
    """The worker's own producer, not connected."""
    sender = kafka_sender(Settings())
    yield sender._producer
    await sender.stop()


@pytest.mark.parametrize("size", [4097, 786_000, 800_000, 1_048_000, 8 << 20])
async def test_the_letter_of_a_record_of_any_size_can_be_sent(producer: AIOKafkaProducer, size: int) -> None:
    """A record as large as brokers take does not make a letter that no broker takes: the worker would end for ever."""
    record = SimpleNamespace(value=b"\xff" * size, offset=7)
    error = BadEvent("too_large", f"the record has {size} bytes, the limit is 4096")
    message = dead_letter(TOPICS, record, (TOPICS.decisions, 3), error, 1)
    assert message.value is not None
    batch = producer.create_batch()
    assert batch.append(key=message.key, value=message.value, timestamp=None) is not None
    assert batch.size() < LARGEST_MESSAGE
    letter = msgspec.json.decode(message.value, type=DeadLetter)
    assert letter.raw == record.value[:MAX_LETTER_BYTES]
    assert (letter.partition, letter.offset) == (3, 7)
    assert ("only its first" in letter.detail) == (size > MAX_LETTER_BYTES)
    assert f"{size} bytes" in letter.detail


class _Refusing:
    """A producer whose deliveries fail."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    async def partitions_for(self, _topic: str) -> set[int]:
        return {0}

    def create_batch(self) -> Any:
        return SimpleNamespace(append=lambda **_: object(), close=lambda: None)

    async def send_batch(self, *_: Any, **__: Any) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.set_exception(self._error)
        return answer


@pytest.mark.parametrize("error", [KafkaConnectionError(), KafkaTimeoutError()])
async def test_a_broker_that_is_away_is_waited_for(error: KafkaError) -> None:
    """However long it is away: also when the producer's own patience ends."""
    sender = KafkaSender(_Refusing(error))  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        await sender.send([Message("t", None, b"")])


async def test_a_broker_that_refuses_is_not_waited_for() -> None:
    """Missing rights do not pass by waiting: the process ends with the error."""
    sender = KafkaSender(_Refusing(TopicAuthorizationFailedError()))  # type: ignore[arg-type]
    with pytest.raises(TopicAuthorizationFailedError):
        await sender.send([Message("t", None, b"")])
