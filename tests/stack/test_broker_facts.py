"""What the brokers do and don't, as our code relies on it: the embedded one, and Apache Kafka with --kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penaltybox.processors.topic_log import end_offsets
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.servers import AnyBroker, FreshTopic

pytestmark = pytest.mark.stack


async def test_records_of_a_key_stay_together_and_in_order(broker: AnyBroker, fresh_topic: FreshTopic) -> None:
    """Keyed records land in one partition each, in order, with headers and a broker's timestamp."""
    topic = await fresh_topic(partitions=4, configs={"message.timestamp.type": "LogAppendTime"})
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(200):
            await producer.send(topic, key=b"k%d" % (number % 10), value=b"%d" % number, headers=[("h", b"1")])
        await producer.flush()
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    async with consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(4)])
        seen: dict[bytes, list[int]] = {}
        homes: dict[bytes, set[int]] = {}

        async def all_read() -> bool:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    seen.setdefault(record.key, []).append(int(record.value))
                    homes.setdefault(record.key, set()).add(record.partition)
                    assert record.headers == (("h", b"1"),)
            return sum(map(len, seen.values())) == 200

        await wait_until(all_read)
    assert all(len(home) == 1 for home in homes.values())
    assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_a_group_shares_partitions_and_keeps_its_offsets(broker: AnyBroker, fresh_topic: FreshTopic) -> None:
    """Two members get a partition each; what one committed is where the next begins."""
    topic = await fresh_topic(partitions=2)
    options = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": f"group-of-{topic}",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 2000,
        "heartbeat_interval_ms": 500,
        "rebalance_timeout_ms": 3000,
    }
    async with AIOKafkaConsumer(topic, **options) as one, AIOKafkaConsumer(topic, **options) as two:

        async def shared() -> bool:
            await one.getmany(timeout_ms=50)
            await two.getmany(timeout_ms=50)
            return len(one.assignment()) == len(two.assignment()) == 1

        await wait_until(shared, deadline_s=30)
        partition = next(iter(one.assignment()))
        await one.commit({partition: 7})
        assert await one.committed(partition) == 7


async def test_a_fetch_tells_where_a_partition_ends(broker: AnyBroker, fresh_topic: FreshTopic) -> None:
    """`end_offsets` of ours counts the last batch whole, which ListOffsets(latest) of the embedded broker doesn't."""
    topic = await fresh_topic(partitions=2)
    full, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=100) as producer:
        for number in (1, 10, 5):
            for sent in [await producer.send(topic, b"x", partition=0) for _ in range(number)]:
                await sent
    async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
        assert await end_offsets(consumer, [full, empty]) == {full: 16, empty: 0}
        assert await end_offsets(consumer, [full, empty]) == {full: 16, empty: 0}
