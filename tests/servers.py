"""Fixtures with real servers: shared ones (a test takes a fresh topic, prefix or database), private ones to kill.

`broker` is the embedded broker, or Apache Kafka with `--kafka`. Both have `.bootstrap`, and `start`, `stop`, `kill`,
`restart`, `pause`, `resume` (blocking; the shared ones are not yours to stop).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import clickhouse_connect
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from penaltybox.embedded.broker import Broker
from penaltybox.embedded.clickhouse_server import ClickHouseServer
from penaltybox.embedded.redis_server import RedisServer
from tests.kafka.apache_kafka import ApacheKafka
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from _pytest.fixtures import FixtureRequest

AnyBroker = Broker | ApacheKafka
FreshTopic = Callable[..., Awaitable[str]]
_numbers = itertools.count(1)


def fresh_name(kind: str) -> str:
    """A name that no other test of any running session has: `kind-PID-N`."""
    return f"{kind}-{os.getpid()}-{next(_numbers)}"


def make_broker(request: FixtureRequest, data_dir: Path) -> AnyBroker:
    """The kind of broker that the command line asks for, not started."""
    return ApacheKafka(data_dir) if request.config.getoption("--kafka") else Broker(data_dir)


@pytest.fixture(scope="session")
def broker(request: FixtureRequest, servers_dir: Path) -> Iterator[AnyBroker]:
    """The session's broker."""
    with make_broker(request, servers_dir / "broker") as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(servers_dir: Path) -> Iterator[RedisServer]:
    """The session's Valkey or Redis; `.url`."""
    with RedisServer(servers_dir / "redis") as server:
        yield server


@pytest.fixture(scope="session")
def clickhouse_server(servers_dir: Path) -> Iterator[ClickHouseServer]:
    """The session's ClickHouse endpoint; `.port`, `.url`, `.reader_url`."""
    with ClickHouseServer(servers_dir / "clickhouse") as server:
        yield server


@pytest.fixture
def private_broker(request: FixtureRequest, tmp_path: Path) -> Iterator[AnyBroker]:
    """A broker of this test's own, to kill and restart (the embedded one forgets everything, Apache Kafka nothing)."""
    with make_broker(request, tmp_path / "broker") as server:
        yield server


@pytest.fixture
def private_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of this test's own, to kill, pause or wipe."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def private_clickhouse(tmp_path: Path) -> Iterator[ClickHouseServer]:
    """A ClickHouse endpoint of this test's own."""
    with ClickHouseServer(tmp_path / "clickhouse") as server:
        yield server


@pytest.fixture
def fresh_topic(broker: AnyBroker) -> FreshTopic:
    """`await fresh_topic(partitions=4, configs={"cleanup.policy": "compact"})` -> the new topic's name."""

    async def create(partitions: int = 1, configs: Mapping[str, str] | None = None, kind: str = "topic") -> str:
        name = fresh_name(kind)
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            topic = NewTopic(name, num_partitions=partitions, replication_factor=1, topic_configs=dict(configs or {}))
            answer = await admin.create_topics([topic])
            assert all(error[1] == 0 for error in answer.topic_errors), answer

            async def led() -> bool:
                found = [topic for topic in await admin.describe_topics() if topic["topic"] == name]
                return bool(found) and all(partition["leader"] >= 0 for partition in found[0]["partitions"])

            await wait_until(led)
        finally:
            await admin.close()
        return name

    return create


@pytest.fixture
def fresh_prefix() -> str:
    """A key prefix for this test on the shared Redis."""
    return fresh_name("pbx")


@pytest.fixture
def fresh_database(clickhouse_server: ClickHouseServer) -> Iterator[str]:
    """An empty ClickHouse database for this test; dropped afterwards."""
    name = fresh_name("db").replace("-", "_")
    client = clickhouse_connect.get_client(host="127.0.0.1", port=clickhouse_server.port)
    try:
        client.command(f"CREATE DATABASE {name}")
        yield name
        client.command(f"DROP DATABASE {name}")
    finally:
        client.close()
