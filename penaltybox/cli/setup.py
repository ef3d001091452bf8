"""`penaltybox setup`: topics and tables."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penaltybox.cli.console import AsJson, out, print_json, settings
from penaltybox.contracts.topics import Topics

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings


def setup(
    *,
    topics: Annotated[bool, typer.Option(help="Create the topics in Kafka.")] = True,
    tables: Annotated[bool, typer.Option(help="Create or migrate the tables in ClickHouse.")] = True,
    as_json: AsJson = False,
) -> None:
    """Create what is missing: six topics in Kafka, database and tables in ClickHouse.

    Repeating it does no harm: nothing that exists is changed, differences are told. Partition count, replication and
    retentions are settings (PENALTYBOX_KAFKA_PARTITIONS, _KAFKA_REPLICATION, _DECISIONS_RETENTION, …).
    """
    values = settings()
    report: dict[str, Any] = {}
    if topics:
        report["topics"] = asyncio.run(create_topics(values))
    if tables:
        report["tables"] = {"applied": create_tables(values)}
    if as_json:
        print_json(report)
        return
    if topics:
        made = report["topics"]["created"]
        out.print(f"Kafka at {values.kafka}: created {', '.join(made) if made else 'nothing, all topics are there'}.")
        for sentence in report["topics"]["differences"]:
            out.print(f"  {sentence}", markup=False)
    if tables:
        made = report["tables"]["applied"]
        what = f"applied {', '.join(made)}" if made else "nothing to do, the schema is current"
        out.print(f"ClickHouse, database {values.clickhouse_database}: {what}.")


async def create_topics(values: Settings) -> dict[str, list[str]]:
    """Creates the missing topics; names of the created ones, and sentences about those that differ."""
    from penaltybox.links.kafka import Connection
    from penaltybox.processors.broker import TopicPlan, ensure_topics

    found = await ensure_topics(Connection.of(values), Topics.named(values.topic_prefix), TopicPlan.of(values))
    return {"created": list(found.created), "differences": list(found.differences)}


def create_tables(values: Settings) -> list[str]:
    """Migrates the database; names of what was applied."""
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.migrations import migrate

    clickhouse = ClickHouse.of(values)
    try:
        return migrate(clickhouse)
    finally:
        clickhouse.close()
