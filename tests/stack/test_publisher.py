"""The publisher against a real broker."""

from __future__ import annotations

import socket

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.partitioner import murmur2

from penaltybox.contracts.errors import BadEvent, ConfigurationError, StoreUnavailable
from penaltybox.contracts.events import Decision, Outcome, encode
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import hash_value
from penaltybox.contracts.topics import Topics
from penaltybox.links.kafka import Connection
from penaltybox.producers.publisher import Publisher
from tests.servers import AnyBroker, fresh_name

pytestmark = pytest.mark.stack


def decision(number: int, **subjects: str) -> Decision:
    """An allowed request."""
    given = subjects or {"user": f"u{number % 50}", "ip": "192.0.2.1"}
    return Decision(v=1, id=f"d{number}", ts=1_000, source="test/1", action="allow", subjects=given)


async def consume(broker: AnyBroker, topic: str, partitions: int, count: int) -> list[tuple[int, bytes, bytes]]:
    """(partition, key, value) of all records of a topic; fails by the test's deadline when there are fewer."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        records: list[tuple[int, bytes, bytes]] = []
        while len(records) < count:
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                records += [(record.partition, record.key, record.value) for record in batch]
        return records
    finally:
        await consumer.stop()


@pytest.fixture
async def settings(broker: AnyBroker) -> Settings:
    """Settings whose decisions and outcomes topics exist."""
    prefix = fresh_name("pub")
    topics = Topics.named(prefix)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, 4, 1) for name in (topics.decisions, topics.outcomes)])
    await admin.close()
    return Settings(kafka=broker.bootstrap, topic_prefix=prefix)


async def test_records_arrive_keyed_and_partitioned(broker: AnyBroker, settings: Settings) -> None:
    """Every record arrives once, in its subject's order, on the partition that Java's hash of the key says."""
    sent = [decision(number) for number in range(2_000)]
    async with Publisher(settings, linger_ms=5) as publisher:
        for one in sent:
            await publisher.send(one)
        await publisher.flush()
        assert publisher.published == 2_000
    records = await consume(broker, f"{settings.topic_prefix}.decisions", 4, 2_000)
    assert sorted(value for _, _, value in records) == sorted(encode(one) for one in sent)
    assert {key for _, key, _ in records} == {f"user:u{number}".encode() for number in range(50)}
    assert all(partition == (murmur2(key) & 0x7FFFFFFF) % 4 for partition, key, _ in records)
    assert [value for _, key, value in records if key == b"user:u7"] == [
        encode(one) for one in sent if one.subjects["user"] == "u7"
    ]


async def test_few_in_flight(settings: Settings) -> None:
    """With a bound of ten unanswered records all are still sent and confirmed."""
    async with Publisher(settings, linger_ms=0, max_in_flight=10) as publisher:
        for number in range(300):
            await publisher.send(decision(number))
    assert publisher.published == 300


async def test_outcomes_and_hashing(broker: AnyBroker, settings: Settings) -> None:
    """Outcomes go to their topic, and a hashed dimension leaves as its HMAC only."""
    hashed = Settings(
        kafka=broker.bootstrap, topic_prefix=settings.topic_prefix, hashed_dimensions=("ip",), hash_key="k"
    )
    async with Publisher(hashed) as publisher:
        await publisher.send(Outcome(v=1, id="o1", ts=1, label="payment_ok", subjects={"ip": "::ffff:192.0.2.1"}))
    ((_, key, value),) = await consume(broker, f"{settings.topic_prefix}.outcomes", 4, 1)
    assert key.decode() == f"ip:{hash_value(b'k', 'ip', '192.0.2.1')}"
    assert b"192.0.2.1" not in value


async def test_a_bad_record_is_refused_here(settings: Settings) -> None:
    """What would be a dead letter is an error before it is sent, and the publisher goes on."""
    async with Publisher(settings) as publisher:
        for wrong in (decision(1, ip="no address"), decision(1, user="x" * 129)):
            with pytest.raises(BadEvent):
                await publisher.send(wrong)
        await publisher.send(decision(2))
    assert publisher.published == 1


async def test_no_broker_is_a_sentence() -> None:
    """Nobody at the address: one sentence that names it and the setting."""
    with socket.socket() as closed:  # bound and not listening: a port where nobody answers
        closed.bind(("127.0.0.1", 0))
        nowhere = Settings(kafka=f"127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(
            StoreUnavailable, match=r"Kafka at 127\.0\.0\.1:\d+ does not take records.*PENALTYBOX_KAFKA"
        ):
            await Publisher(nowhere).start()


async def test_no_topic_is_a_sentence(broker: AnyBroker) -> None:
    """A broker without our topics: told at once, with the command that makes them."""
    with pytest.raises(ConfigurationError, match=r"has no topic none\.decisions; run `penaltybox setup` once"):
        await Publisher(Settings(kafka=broker.bootstrap, topic_prefix="none")).start()


def test_sasl_and_tls_are_passed_on() -> None:
    """Credentials reach the client; a missing user name or file is an error that names the setting."""
    options = Connection.of(Settings(kafka_security_protocol="SASL_SSL", kafka_username="u")).client_options()
    assert options["sasl_plain_username"] == "u"
    assert options["ssl_context"].check_hostname
    with pytest.raises(ConfigurationError, match="PENALTYBOX_KAFKA_USERNAME"):
        Connection.of(Settings(kafka_security_protocol="SASL_PLAINTEXT")).client_options()
    with pytest.raises(ConfigurationError, match="_CA"):
        Connection.of(Settings(kafka_security_protocol="SSL", kafka_ca="/nowhere/ca.pem")).client_options()
