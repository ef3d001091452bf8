"""Options and servers for all tests. Servers are real and local; see tests/servers.py for what the fixtures hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers import (
    broker,
    clickhouse_server,
    fresh_database,
    fresh_prefix,
    fresh_topic,
    private_broker,
    private_clickhouse,
    private_redis,
    redis_server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "broker",
    "clickhouse_server",
    "fresh_database",
    "fresh_prefix",
    "fresh_topic",
    "private_broker",
    "private_clickhouse",
    "private_redis",
    "redis_server",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kafka",
        action="store_true",
        help="run the stack tests against Apache Kafka (Maven and Java required; missing ones fail, they don't skip)",
    )


@pytest.fixture(scope="session")
def servers_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("servers")
