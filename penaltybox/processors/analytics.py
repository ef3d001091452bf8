"""Role `analytics`: decisions, outcomes, penalties and dead letters from Kafka to ClickHouse, in a group of its own.

ClickHouse down delays no block: this role has its own app id, offsets and process, and simply waits.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.contracts.topics import Topics
from penaltybox.links.exposition import exposed
from penaltybox.links.kafka import Connection
from penaltybox.processors.analytics_pipeline import Pipeline
from penaltybox.processors.app import make_app, run_app
from penaltybox.processors.broker import topic_incarnations
from penaltybox.processors.cycle import Run
from penaltybox.processors.ending import run_process
from penaltybox.processors.metered import metered_writer
from penaltybox.processors.meters import meter_pipeline, meter_role
from penaltybox.processors.rollup_keeper import keep_rollups
from penaltybox.processors.seams import no_seam
from penaltybox.processors.watchdog import consumer_lag, watch
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.records import table_topics
from penaltybox.sinks.clickhouse.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.analytics_pipeline import Limits
    from penaltybox.processors.app import App
    from penaltybox.processors.ending import Ending
    from penaltybox.processors.seams import Seam

ROLE = "analytics"
GC_THRESHOLD = (100_000, 50, 100)
"""A batch is tens of thousands of records without cycles; collecting them over and over would find nothing."""


async def run_analytics(
    settings: Settings,
    *,
    ending: Ending,
    clickhouse: ClickHouse | None = None,
    limits: Limits | None = None,
    seam: Seam = no_seam,
) -> None:
    """Run the role until `ending`; the topics must exist.

    Args:
        settings: brokers, topic names, ClickHouse, how subjects are read.
        ending: set it to stop: what is held is stored, acknowledged and committed first, within `stop_timeout_s`.
        clickhouse: the database, if not that of the settings.
        limits: sizes and times of batches.
        seam: fault injection.

    Raises:
        ConfigurationError: settings that no connection can be made from.
        StalledError: nothing was stored for `watchdog_s` while records wait and no outage explains it.
    """
    database = clickhouse or ClickHouse.of(settings)
    tables = table_topics(Topics.named(settings.topic_prefix))
    connection = Connection.of(settings)
    canonicaliser = Canonicaliser(settings.ipv6_prefix, settings.hashed_dimensions)

    async def incarnations() -> Mapping[str, str]:
        return await topic_incarnations(connection, list(tables))

    with exposed(settings, ROLE) as registry:
        writer = metered_writer(Writer(database, canonicaliser), registry)
        pipeline = Pipeline(database, writer, tables, incarnations, limits=limits, seam=seam)
        app = make_app(settings, ROLE, seam=seam)
        feed(app, pipeline, list(tables), ending)
        meter_pipeline(registry, pipeline)
        watching = watch(
            settings.watchdog_s,
            progress=lambda: pipeline.acknowledged,
            lag=consumer_lag(app),
            exempt=lambda: pipeline.waiting,
        )
        keeping = keep_rollups(clickhouse or ClickHouse.of(settings, answer_s=PATIENT_S))
        storing = (pipeline.prepare_batches(), pipeline.store_batches())
        jobs = [*storing, keeping, watching, *meter_role(registry, app, pipeline)]
        try:
            await run_app(app, ending, jobs)
        finally:
            pipeline.close()


def feed(app: App, pipeline: Pipeline, topics: list[str], ending: Ending) -> None:
    """Have the app hand every run of these topics to the pipeline, and drain it before partitions are given up."""

    async def analytics(stream: Any) -> None:
        try:
            async for event in stream.noack().events():
                message = event.message
                await pipeline.take(Run(message.topic, message.partition, event.value, event.ack))
        except Exception as error:  # noqa: BLE001 - Faust would acknowledge what the agent failed on
            ending.fail(error)
            await asyncio.Event().wait()

    app.agent(app.run_topic(*topics), name=ROLE)(analytics)
    app.drain = pipeline.drain


def main(settings: Settings) -> None:
    """The role as a process of its own: returns after a stop in good order, raises after anything else."""
    gc.set_threshold(*GC_THRESHOLD)
    run_process(lambda ending: run_analytics(settings, ending=ending), settings.stop_timeout_s)
