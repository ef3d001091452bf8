"""The README's blocks against Apache Kafka, kcat's among them, with worker and analytics beside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penaltybox.cli.fleet import Fleet, environment_of
from penaltybox.cli.setup import create_tables, create_topics
from penaltybox.contracts.settings import Settings
from tests.docs.fenced_blocks import RUNNABLE, Block, fenced_blocks
from tests.docs.reader import Reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.embedded.clickhouse_server import ClickHouseServer
    from penaltybox.embedded.redis_server import RedisServer
    from tests.servers import AnyBroker

pytestmark = [
    pytest.mark.stack,
    pytest.mark.apache_kafka,
    pytest.mark.programs("node", "npm", "kcat", "redis-cli", "curl"),
]
BLOCKS = fenced_blocks(Path(__file__).parent.parent.parent / "README.md")
FARMS = ("farm-1", "farm-2", "farm-3")
SHOWN = next(block.expected for block in BLOCKS if "redis-cli" in block.text)
COUNT = """
curl -sS --fail "$PENALTYBOX_CLICKHOUSE_URL/?database=penaltybox" --data-binary "
SELECT uniqExact(source), uniqExact(kafka_partition) FROM decisions FINAL
WHERE device IN ('farm-1', 'farm-2', 'farm-3') GROUP BY user FORMAT TSV"
"""
"""How many languages each farm user's claims came in, and in how many partitions they lie."""


@pytest.fixture
async def reader(
    private_broker: AnyBroker, private_redis: RedisServer, private_clickhouse: ClickHouseServer, tmp_path: Path
) -> AsyncIterator[Reader]:
    """A reader with servers of his own, under the names that the page takes for granted."""
    settings = Settings(
        kafka=private_broker.bootstrap, redis_url=private_redis.url, clickhouse_url=private_clickhouse.url
    )
    await create_topics(settings)
    create_tables(settings)
    fleet = Fleet(settings, ["penalties", "analytics"], tmp_path / "logs")
    await fleet.start()
    try:
        yield Reader(tmp_path / "reader", environment_of(settings))
    finally:
        await fleet.stop()


async def test_what_the_readme_says_happens_on_apache_kafka(reader: Reader) -> None:
    """Python, Node and kcat each publish a farm's claims, and each device gets its block;
    a user's claims share a partition, whoever published them."""
    for block in BLOCKS:
        if block.language in RUNNABLE and not block.shown and "run --embedded" not in block.text:
            reader.follow(block)
    for farm in FARMS:
        ask = f"redis-cli -u \"$PENALTYBOX_REDIS_URL\" GET 'pbx:{{device:{farm}}}:block'\n"
        reader.follow(Block(0, "sh", ask, expected=SHOWN))
    reader.follow(Block(0, "sh", COUNT, expected="3\t1\n" * 4))
