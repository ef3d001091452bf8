"""A replay of what ClickHouse has is the replay of the topics that it was stored from."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.cli.replay_job import Job, run_job
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.events import Outcome
from penaltybox.processors.analytics import run_analytics
from penaltybox.processors.analytics_pipeline import Limits
from penaltybox.processors.ending import Ending
from penaltybox.sinks.clickhouse.client import ClickHouse
from tests.processors.replay.traffic import HOUSEHOLDS, Recorder, households
from tests.stack.test_replay import made, publish
from tests.waiting import wait_until

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


async def test_the_same_as_the_topics(
    broker: Any, clickhouse_server: Any, fresh_prefix: str, fresh_database: str
) -> None:
    """Decisions and outcomes come back from ClickHouse in the same order, with the same result hash."""
    topics = await made(broker, fresh_prefix)
    settings: Settings = msgspec.structs.replace(
        topics,
        clickhouse_url=clickhouse_server.url,
        clickhouse_database=fresh_database,
        kafka_session_timeout_ms=2000,
        stop_timeout_s=6,
    )
    events = households()
    renamed = {event.subjects["user"]: f"ü+{event.subjects['user']}@x" for event in events if "user" in event.subjects}
    events = [
        msgspec.structs.replace(
            event, subjects={name: renamed.get(value, value) for name, value in event.subjects.items()}
        )
        for event in events
    ]
    user = renamed["u0-0"]
    outcome = Outcome(v=1, id="o1", ts=now_ms(), label="challenge_passed", subjects={"user": user, "ip": "2001:db8::1"})
    await publish(settings, events, None)
    await publish(settings, [outcome], 0)
    ending = Ending()
    task = asyncio.create_task(run_analytics(settings, ending=ending, limits=Limits(linger_s=0.05)))
    clickhouse = ClickHouse.of(settings)
    try:

        async def stored() -> bool:
            counts = "SELECT (SELECT count() FROM decisions) + (SELECT count() FROM outcomes) AS rows"
            try:
                (row,) = await asyncio.to_thread(clickhouse.rows, counts)
            except StoreUnavailable:  # no tables yet
                return False
            return bool(row["rows"] == len(events) + 1)

        await wait_until(stored, 60, "all rows in ClickHouse")
    finally:
        ending.request()
        await task
        await asyncio.to_thread(clickhouse.close)
    expected = await run_job(Job(settings, HOUSEHOLDS))
    found = await run_job(Job(settings, HOUSEHOLDS, source="clickhouse"))
    assert (found.decisions, found.outcomes, found.refused) == (len(events), 1, {})
    assert found.candidate.by_rule == expected.candidate.by_rule
    assert found.result_hash == expected.result_hash
    recorder = Recorder()
    before = await run_job(Job(settings, HOUSEHOLDS, source="clickhouse", to_ms=expected.last_ms), observer=recorder)
    labelled = [one for one in recorder.told if one[0] == "outcome"]
    assert (before.outcomes, labelled) == (0, [("outcome", "o1", True)])  # it came last: a label, beyond the range
    with pytest.raises(ConfigurationError, match=r"nothing to replay .*Its records are from 20"):
        await run_job(Job(settings, HOUSEHOLDS, source="clickhouse", to_ms=1000))
