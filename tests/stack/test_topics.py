"""The six topics, what the broker can do, and incarnations: on the embedded broker, and Apache Kafka with --kafka."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penaltybox.cli.checks import check_kafka
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.embedded.broker import Broker
from penaltybox.embedded.ports import Reservation
from penaltybox.links.kafka import Connection
from penaltybox.processors.broker import (
    TopicPlan,
    ensure_topics,
    probe,
    topic_incarnations,
)
from tests.servers import fresh_name
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.servers import AnyBroker, FreshTopic

pytestmark = pytest.mark.stack
SECRET = "s3" + "cret"


async def test_setup_creates_the_topics_and_then_nothing(broker: AnyBroker) -> None:
    """The first setup creates all six; the second creates none and finds no difference."""
    topics = Topics.named(fresh_name("pbx"))
    connection = Connection(broker.bootstrap)
    first = await ensure_topics(connection, topics, TopicPlan(partitions=4))
    assert sorted(first.created) == sorted(topics)
    second = await ensure_topics(connection, topics, TopicPlan(partitions=4))
    assert second == ((), ())


async def test_setup_says_how_existing_topics_differ(broker: AnyBroker) -> None:
    """Fewer partitions or another retention are told in sentences; nothing is changed; more partitions are fine."""
    topics = Topics.named(fresh_name("pbx"))
    connection = Connection(broker.bootstrap)
    await ensure_topics(connection, topics, TopicPlan(partitions=2))
    other = await ensure_topics(connection, topics, TopicPlan(partitions=3, decisions_ms=86_400_000))
    assert other.created == ()
    assert any(f"{topics.decisions} has 2 partitions, wanted 3" in sentence for sentence in other.differences)
    retention = "has retention.ms=604800000 (1w), wanted 86400000 (1d)"
    assert sum(retention in sentence for sentence in other.differences) == 1
    longer = await ensure_topics(connection, topics, TopicPlan(partitions=1, penalties_ms=91 * 86_400_000))
    trail = f"{topics.control} has min.compaction.lag.ms=7776000000 (90d), wanted 7862400000 (13w)"
    assert sum(trail in sentence for sentence in longer.differences) == 1  # or the audit trail would end before theirs
    prefix = topics.control.removesuffix(".control")
    values = Settings(kafka=broker.bootstrap, topic_prefix=prefix, kafka_partitions=2, penalties_retention="91d")
    found = [one for one in await check_kafka(values) if trail in one.says]
    assert [one.state for one in found] == ["warning"]  # doctor says so, too, why, and how to mend it
    assert "compacted away before the penalties are" in found[0].says
    assert f"--entity-name {topics.control} --add-config min.compaction.lag.ms=7862400000" in found[0].advice
    shorter = await ensure_topics(connection, topics, TopicPlan(partitions=1, penalties_ms=86_400_000))
    assert not any("min.compaction.lag.ms" in sentence for sentence in shorter.differences)  # more is fine
    assert await ensure_topics(connection, topics, TopicPlan(partitions=1)) == ((), ())


async def test_concurrent_setups_are_one(broker: AnyBroker) -> None:
    """Two setups at the same time create each topic once and neither fails."""
    topics = Topics.named(fresh_name("pbx"))
    connection = Connection(broker.bootstrap)
    reports = await asyncio.gather(*[ensure_topics(connection, topics, TopicPlan()) for _ in range(2)])
    assert sorted(name for report in reports for name in report.created) == sorted(topics)


async def test_what_the_broker_can_do(broker: AnyBroker, fresh_topic: FreshTopic) -> None:
    """The probe tells the embedded broker's gaps, and that Apache Kafka has none."""
    capabilities = await probe(Connection(broker.bootstrap), await fresh_topic())
    if isinstance(broker, Broker):
        assert capabilities._asdict() == dict.fromkeys(capabilities._fields, False) | {"topic_ids": True}
    else:
        assert all(capabilities)


async def test_probed_timestamps_are_what_happens(broker: AnyBroker, fresh_topic: FreshTopic) -> None:
    """What the probe says of the broker's clock and of offsets by time is what records show."""
    topic = await fresh_topic(configs={"message.timestamp.type": "LogAppendTime"})
    capabilities = await probe(Connection(broker.bootstrap), topic)
    partition = TopicPartition(topic, 0)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        sent = [await producer.send_and_wait(topic, b"x", timestamp_ms=1_000_000 * at) for at in (1, 2, 3)]
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    async with consumer:
        consumer.assign([partition])
        record = await consumer.getone()
        assert (record.timestamp != 1_000_000) is capabilities.log_append_time
        assert (record.timestamp_type == 1) is capabilities.log_append_time
        beyond = (await consumer.offsets_for_times({partition: sent[-1].timestamp + 10**12}))[partition]
        assert (beyond is None) is capabilities.timestamp_offsets


async def test_compaction_and_idempotence_where_promised(broker: AnyBroker, fresh_topic: FreshTopic) -> None:
    """An idempotent producer works and old values of a key go where the probe promises both; else it is refused."""
    topic = await fresh_topic(
        configs={"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    )
    capabilities = await probe(Connection(broker.bootstrap), topic)
    assert capabilities.compaction is capabilities.idempotence is not isinstance(broker, Broker)
    if not capabilities.compaction:
        return
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer:
        for number in range(64):
            await producer.send(topic, key=b"k%d" % (number % 2), value=bytes([number]) * 60_000)
        await producer.flush()
    partition = TopicPartition(topic, 0)

    async def compacted() -> bool:
        async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[partition]
            count = 0
            while await consumer.position(partition) < end:
                count += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
            return count < 64

    await wait_until(compacted, deadline_s=60)


async def test_an_incarnation_lasts_as_long_as_its_topic(private_broker: AnyBroker) -> None:
    """Asked twice it is the same; after a restart it is another one exactly if the broker forgot the topic."""
    connection = Connection(private_broker.bootstrap)
    topics = Topics.named("pbx")
    await ensure_topics(connection, topics, TopicPlan(partitions=1))
    first = await topic_incarnations(connection, list(topics))
    assert set(first) == set(topics)
    assert len(set(first.values())) == 6
    assert await topic_incarnations(connection, [topics.control, "absent"]) == {topics.control: first[topics.control]}
    await asyncio.to_thread(private_broker.restart)
    report = await ensure_topics(connection, topics, TopicPlan(partitions=1))
    second = await topic_incarnations(connection, list(topics))
    forgot = isinstance(private_broker, Broker)
    assert bool(report.created) is forgot
    assert not set(first.values()) & set(second.values()) if forgot else first == second


async def test_no_broker_is_a_sentence() -> None:
    """An address where nothing listens gives an error that says where and what to check."""
    reservation = Reservation()
    with pytest.raises(StoreUnavailable, match=f"Kafka at 127.0.0.1:{reservation.port} .* does not answer.*PENALTYBOX"):
        await ensure_topics(Connection(f"127.0.0.1:{reservation.port}"), Topics.named(), TopicPlan())
    reservation.close()


def test_security_options() -> None:
    """Settings become client options; SASL without a user and absent files are errors; no password shows."""
    settings = Settings(
        kafka="k:1", kafka_security_protocol="SASL_PLAINTEXT", kafka_username="u", kafka_password=SECRET
    )
    connection = Connection.of(settings)
    assert SECRET not in repr(connection)
    assert connection.client_options() == {
        "bootstrap_servers": "k:1",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": SECRET,
    }
    with pytest.raises(ConfigurationError, match="KAFKA_USERNAME"):
        Connection("k:1", security_protocol="SASL_SSL").client_options()
    with pytest.raises(ConfigurationError, match="KAFKA_CA"):
        Connection("k:1", security_protocol="SSL", ca="/absent/ca.pem").client_options()
    assert Connection("k:1", security_protocol="SSL").client_options()["ssl_context"] is not None


def test_what_senders_outside_write_has_the_brokers_time() -> None:
    """Their clocks are bounded: an outcome from the year 2100 would make its subject immune until then."""
    topics = Topics.named("penaltybox")
    wanted = TopicPlan().wanted(topics)
    bounded = {name for name, (_, config) in wanted.items() if config.get("message.timestamp.type") == "LogAppendTime"}
    assert bounded == {topics.decisions, topics.outcomes}
