from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from penaltybox.sinks.clickhouse.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.embedded.clickhouse_server import ClickHouseServer


@pytest.fixture
def clickhouse(clickhouse_server: ClickHouseServer, fresh_database: str) -> Iterator[ClickHouse]:
    """A migrated, empty database."""
    made = ClickHouse(clickhouse_server.url, fresh_database, answer_s=PATIENT_S)
    migrate(made)
    yield made
    made.close()


@pytest.fixture
def writer(clickhouse: ClickHouse) -> Writer:
    return new_writer(clickhouse)


def new_writer(clickhouse: ClickHouse) -> Writer:
    """A writer as a process has it that just started: it knows nothing."""
    return Writer(clickhouse, Canonicaliser())
