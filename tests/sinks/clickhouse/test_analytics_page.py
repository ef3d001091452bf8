from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penaltybox.sinks.clickhouse.queries import QUERIES
from tests.sinks.clickhouse.worlds import batch, decision, letter, probed, random_world

if TYPE_CHECKING:
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.writer import Writer

pytestmark = pytest.mark.stack
PAGE = (Path(__file__).parents[3] / "docs" / "analytics.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def clickhouse(own_clickhouse: ClickHouse) -> ClickHouse:
    """The page's examples change tables."""
    return own_clickhouse


def test_every_shipped_query_is_on_the_page() -> None:
    """Each has a paragraph of its own and an example, and no other is promised."""
    assert set(re.findall(r"^\*\*`(\w+)`\*\*", PAGE, re.MULTILINE)) == set(QUERIES)
    assert all(any(f"penaltybox.{name}(" in example for example in EXAMPLES) for name in QUERIES)


def test_the_examples_run(clickhouse: ClickHouse, writer: Writer) -> None:
    """Every statement of the page, pasted into a database with a day of traffic, gives rows."""
    world = random_world(2)
    farm = [decision(20_000 + n, subjects={"user": f"f{n % 9}", "device": "farm"}) for n in range(40)]
    for one in (
        batch("decisions", [*world.decisions, *farm, *probed()]),
        batch("outcomes", list(world.outcomes)),
        batch("penalties", list(world.penalties)),
        batch("dead_letters", [letter(n) for n in range(3)]),
    ):
        writer.store(writer.prepare(one))
    for example in EXAMPLES:
        sql = example.replace("penaltybox.", f"{clickhouse.database}.").strip()
        if sql.startswith("INSERT"):
            clickhouse.command(sql)
        else:
            assert clickhouse.rows(sql), example
    (ttl,) = re.findall(r"`(ALTER TABLE [^`]*)`", PAGE)
    clickhouse.command(ttl.replace("penaltybox.", f"{clickhouse.database}."))


def test_tables_and_columns_named_on_the_page_exist(clickhouse: ClickHouse) -> None:
    """The page's table of tables names only what the schema has."""
    for table, columns in re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", PAGE, re.MULTILINE):
        present = {
            row["name"]
            for row in clickhouse.rows(
                "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = {table:String}",
                {"table": table},
            )
        }
        assert present, table
        named = set(re.findall(r"`([a-z_]+)`", columns))
        assert named <= present, (table, named - present)
