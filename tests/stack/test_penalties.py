from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Penalty, encode
from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.processors.ending import Ending
from penaltybox.processors.penalties import run_penalties
from penaltybox.sinks.redis_store import RedisSubjectStore
from tests.processors.worker_driver import denial
from tests.stack.stack_settings import settings_on, written
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penaltybox.contracts.settings import Settings

pytestmark = pytest.mark.stack

POLICY = """
limits: {}
rules:
  abuse: {on: user, count: 3, window: 10m, then: {level: 5m}}
ladder: {rungs: [warn, 5m, 1h, permanent], warn: 10m, forgive: 8h, memory: 72h}
"""


@pytest.fixture
async def stack(broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path) -> Settings:
    policy = written(POLICY, tmp_path)
    return await settings_on(broker, fresh_prefix, redis=redis_server, policy=policy, kafka_partitions=4)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Ending]:
    ending = Ending()
    task = asyncio.create_task(run_penalties(settings, ending=ending))
    try:
        yield ending
    finally:
        ending.request()
        await task


async def publish(settings: Settings, values: list[bytes], key: bytes = b"user:u1") -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka)
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(Topics.named(settings.topic_prefix).decisions, value, key=key)
    finally:
        await producer.stop()


async def read_all(settings: Settings, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=settings.kafka, auto_offset_reset="earliest")
    await consumer.start()
    found: list[bytes] = []
    try:
        async with asyncio.timeout(20):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [record.value for record in records]
    finally:
        await consumer.stop()
    return found


async def test_denials_become_a_block_with_a_ttl_and_a_penalty(stack: Settings) -> None:
    """From Kafka to Redis and back to Kafka: the block has a TTL, a penalty tells it, garbage is a dead letter."""
    topics = Topics.named(stack.topic_prefix)
    store = RedisSubjectStore(open_link(endpoint_of(stack)), stack.redis_prefix)
    block_key = f"{stack.redis_prefix}:{{user:u1}}:block"
    async with running(stack):
        at = now_ms()
        await publish(stack, [encode(denial(n, at=at)) for n in range(2)] + [b"garbage", encode(denial(2, at=at))])

        async def block() -> Any:
            return (await store.link.exchange([("GET", block_key)]))[0]

        found = msgspec.json.decode(await wait_until(block, deadline_s=30, what="the block"))
        (ttl_ms,) = await store.link.exchange([("PTTL", block_key)])
        assert found["rung"] == "5m"
        assert 0 < ttl_ms <= 5 * 60_000
        (penalty,) = [msgspec.json.decode(v, type=Penalty) for v in await read_all(stack, topics.penalties, 1)]
        assert (penalty.subject, penalty.to, penalty.until) == ("user:u1", "5m", found["until"])
        (letter,) = await read_all(stack, topics.dead_letters, 1)
        assert msgspec.json.decode(letter)["reason"] == "not_json"
    assert await store.pending(0) == []
    await store.close()


async def test_a_stopped_worker_has_committed_all_that_it_did(stack: Settings) -> None:
    """A stop in good order leaves nothing to redeliver: the next worker steps nothing again."""
    async with running(stack):
        await publish(stack, [encode(denial(n, at=now_ms())) for n in range(3)])
        await read_all(stack, Topics.named(stack.topic_prefix).penalties, 1)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=stack.kafka, group_id=f"{stack.topic_prefix}-penalties", enable_auto_commit=False
    )
    await consumer.start()
    try:
        partitions = [TopicPartition(Topics.named(stack.topic_prefix).decisions, n) for n in range(4)]
        committed = {tp: await consumer.committed(tp) or 0 for tp in partitions}
        assert committed == await consumer.end_offsets(partitions)
    finally:
        await consumer.stop()
