"""TLS and SASL to a Kafka that demands them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.links.kafka import Connection
from penaltybox.processors.app import make_app, run_app
from penaltybox.processors.broker import TopicPlan, ensure_topics, probe, topic_incarnations
from penaltybox.processors.ending import Ending
from tests.kafka.apache_kafka import USER, ApacheKafka
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.stack, pytest.mark.apache_kafka]


@pytest.fixture(scope="module")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Apache Kafka with a listener that wants TLS and a password."""
    with ApacheKafka(tmp_path_factory.mktemp("secure"), secure=True) as server:
        yield server


def connection(server: ApacheKafka, mechanism: str = "PLAIN", password: str = "", ca: Path | None = None) -> Connection:
    return Connection(
        server.secure_bootstrap,
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        username=USER,
        password=password or server.password,
        ca=str(ca or server.certificate),
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_all_clients_get_in(secure_kafka: ApacheKafka, mechanism: str) -> None:
    """Set-up, probe, incarnations, a producer and a consumer work over TLS with either kind of password."""
    secure = connection(secure_kafka, mechanism)
    topics = Topics.named(f"pbx-{mechanism}")
    assert len((await ensure_topics(secure, topics, TopicPlan(partitions=1))).created) == 6
    assert all(await probe(secure, topics.decisions))
    assert len(await topic_incarnations(secure, list(topics))) == 6
    async with AIOKafkaProducer(**secure.client_options()) as producer:
        await producer.send_and_wait(topics.outcomes, b"x")
    options = secure.client_options() | {"auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer(topics.outcomes, **options) as consumer:
        assert (await consumer.getone()).value == b"x"


async def test_a_wrong_password_is_a_sentence_without_it(secure_kafka: ApacheKafka) -> None:
    """A refused password: the error says where and what to check, and not the password."""
    with pytest.raises(StoreUnavailable, match=r"SASL_SSL.*does not answer.*security settings") as refused:
        await ensure_topics(connection(secure_kafka, password="wrong-one"), Topics.named(), TopicPlan())  # noqa: S106 - wrong on purpose
    assert "wrong-one" not in str(refused.value)


async def test_an_unknown_certificate_is_refused(secure_kafka: ApacheKafka) -> None:
    """A broker whose certificate no authority of ours signed is not talked to."""
    unknown = Connection(secure_kafka.secure_bootstrap, security_protocol="SASL_SSL", username=USER, password="x")  # noqa: S106 - any
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await ensure_topics(unknown, Topics.named(), TopicPlan())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_role_gets_in(secure_kafka: ApacheKafka, mechanism: str) -> None:
    """The app of a role reads its topic over TLS with the settings' password, through our own transport."""
    settings = Settings(
        kafka=secure_kafka.secure_bootstrap,
        kafka_security_protocol="SASL_SSL",
        kafka_sasl_mechanism=mechanism,
        kafka_username=USER,
        kafka_password=secure_kafka.password,
        kafka_ca=str(secure_kafka.certificate),
        topic_prefix=f"role-{mechanism}",
        kafka_session_timeout_ms=2000,
        stop_timeout_s=2,
    )
    topics = Topics.named(settings.topic_prefix)
    secure = Connection.of(settings)
    await ensure_topics(secure, topics, TopicPlan(partitions=1))
    async with AIOKafkaProducer(**secure.client_options()) as producer:
        await producer.send_and_wait(topics.outcomes, b"x")
    app, ending, got = make_app(settings, "test"), Ending(), []

    @app.agent(app.run_topic(topics.outcomes))
    async def agent(stream: Any) -> None:
        async for event in stream.noack().events():
            got.extend(record.value for record in event.value)
            event.ack()

    role = asyncio.create_task(run_app(app, ending))
    try:
        await wait_until(lambda: got == [b"x"], deadline_s=30)
    finally:
        ending.request()
        await role
