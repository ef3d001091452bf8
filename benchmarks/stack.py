"""The servers of a benchmark: the embedded broker and Redis, topics made, decisions published beforehand."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.embedded.broker import Broker
from penaltybox.embedded.redis_server import RedisServer
from penaltybox.links.kafka import Connection
from penaltybox.processors.broker import TopicPlan, ensure_topics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


def report(bench: str, value: float, unit: str, peer: str = "", peer_value: float | None = None) -> None:
    """Print one result as a JSON line; the ratio is value / peer."""
    ratio = round(value / peer_value, 2) if peer_value else None
    line = {
        "bench": bench,
        "value": round(value, 1),
        "unit": unit,
        "peer": peer,
        "peer_value": None if peer_value is None else round(peer_value, 1),
        "ratio": ratio,
    }
    print(json.dumps(line), flush=True)


@asynccontextmanager
async def stack(**settings: object) -> AsyncIterator[Settings]:
    """A broker and a Redis of this benchmark's own, with the topics; their settings."""
    with (
        tempfile.TemporaryDirectory(prefix="pbx-bench-") as directory,
        Broker(Path(directory) / "broker") as broker,
        RedisServer(Path(directory) / "redis") as redis,
    ):
        made = Settings(
            kafka=broker.bootstrap,
            redis_url=redis.url,
            kafka_session_timeout_ms=3000,
            **settings,  # type: ignore[arg-type]
        )
        await ensure_topics(Connection.of(made), Topics.named(made.topic_prefix), TopicPlan.of(made))
        yield made


async def publish(settings: Settings, messages: Sequence[tuple[bytes, bytes]], topic: str = "") -> None:
    """Publish (key, value) pairs to the decisions topic, and wait until the broker has all of them."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka, acks="all", linger_ms=20, max_batch_size=512 * 1024)
    await producer.start()
    try:
        name = topic or Topics.named(settings.topic_prefix).decisions
        for key, value in messages:
            await producer.send(name, value, key=key)
        await producer.flush()
    finally:
        await producer.stop()


async def caught_up(settings: Settings, count: int) -> None:
    """Return when the penalties role has committed so many decisions."""
    topic = Topics.named(settings.topic_prefix)
    group = f"{settings.topic_prefix}-penalties"
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.kafka, group_id=group, enable_auto_commit=False)
    partitions = [TopicPartition(topic.decisions, number) for number in range(settings.kafka_partitions)]
    await consumer.start()
    try:
        while sum([await consumer.committed(partition) or 0 for partition in partitions]) < count:  # noqa: ASYNC110 - Kafka announces no commits
            await asyncio.sleep(0.2)
    finally:
        await consumer.stop()
