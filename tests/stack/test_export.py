"""`penaltybox export` from a topic of a real broker."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.cli.fleet import environment_of
from penaltybox.contracts.events import Penalty, encode
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.links.kafka import Connection
from penaltybox.processors.broker import TopicPlan, ensure_topics
from tests.servers import fresh_name

if TYPE_CHECKING:
    from tests.servers import AnyBroker

pytestmark = pytest.mark.stack
AT_MS = 1_779_012_303_123


def _penalty(number: int) -> bytes:
    return encode(
        Penalty(
            id=f"p{number}", ts=AT_MS + number * 60_000, subject=f"user:{number}", from_="none", to="1h", action="deny",
            until=AT_MS + 3_600_000, rule="r", policy_version="v", trigger_id=f"d{number}",
        )
    )  # fmt: skip


async def _publish(values: Settings, records: list[bytes]) -> None:
    topics = Topics.named(values.topic_prefix)
    await ensure_topics(Connection.of(values), topics, TopicPlan(partitions=2))
    async with AIOKafkaProducer(bootstrap_servers=values.kafka) as producer:
        for number, record in enumerate(records):
            await producer.send_and_wait(topics.penalties, record, partition=number % 2)


def test_a_topic_is_exported_to_its_end(broker: AnyBroker) -> None:
    """All partitions, from a time on; a record that is none is told with its place, and the exit code is 1."""
    values = Settings(kafka=broker.bootstrap, topic_prefix=fresh_name("export"))
    asyncio.run(_publish(values, [*map(_penalty, range(6)), b"{}"]))
    result = CliRunner().invoke(
        app, ["export", "ocsf", "penalties", "--since", "2026-05-17T10:07:00Z"], env=environment_of(values)
    )
    assert result.exit_code == 1
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted(one["finding_info"]["uid"] for one in found) == [f"user:{number}" for number in (2, 3, 4, 5)]
    result = CliRunner().invoke(app, ["export", "cloudevents", "decisions"], env=environment_of(values))
    assert (result.exit_code, result.stdout) == (0, "")
