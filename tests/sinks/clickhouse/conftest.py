from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from penaltybox.sinks.clickhouse.writer import Writer
from tests.servers import fresh_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.embedded.clickhouse_server import ClickHouseServer


SEEDED = ("label_weights", "rollup_settings")
KEPT = {"migrations"}


@pytest.fixture(scope="session")
def migrated(clickhouse_server: ClickHouseServer) -> Iterator[str]:
    """A database with the schema, which takes a second or two to make; `clickhouse` empties it for each test."""
    with closing(ClickHouse(clickhouse_server.url, fresh_name("db").replace("-", "_"))) as made:
        migrate(made)
        for table in SEEDED:
            made.command(f"CREATE TABLE first_{table} ENGINE = Memory AS SELECT * FROM {table}")  # noqa: S608 - ours
        yield made.database
        made.command(f"DROP DATABASE {made.database}")


@pytest.fixture
def clickhouse(clickhouse_server: ClickHouseServer, migrated: str) -> Iterator[ClickHouse]:
    """A migrated database without a row but those that migrations insert. Who changes its schema takes his own."""
    with closing(ClickHouse(clickhouse_server.url, migrated, answer_s=PATIENT_S)) as made:
        tables = made.rows(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
        )
        for name in {row["name"] for row in tables} - KEPT:
            made.command(f"TRUNCATE TABLE {name}")
        for table in SEEDED:
            made.command(f"INSERT INTO {table} SELECT * FROM first_{table}")  # noqa: S608 - ours
        yield made


@pytest.fixture
def own_clickhouse(clickhouse_server: ClickHouseServer, fresh_database: str) -> Iterator[ClickHouse]:
    """A migrated database of this test's own."""
    with closing(ClickHouse(clickhouse_server.url, fresh_database, answer_s=PATIENT_S)) as made:
        migrate(made)
        yield made


@pytest.fixture
def writer(clickhouse: ClickHouse) -> Writer:
    return new_writer(clickhouse)


def new_writer(clickhouse: ClickHouse) -> Writer:
    """A writer as a process has it that just started: it knows nothing."""
    return Writer(clickhouse, Canonicaliser())
