"""10,000 real requests the whole way: access log, Kafka, workers, Redis and ClickHouse, by the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.cli.fleet import Fleet, environment_of, group_lag
from penaltybox.cli.offline import Offline
from penaltybox.cli.setup import create_tables, create_topics
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.producers.ingest import LogIngest, end_of_log, open_log, read_lines
from penaltybox.producers.limiter import Limiter
from penaltybox.sinks.clickhouse.client import ClickHouse
from tests.servers import AnyBroker, fresh_name
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from penaltybox.contracts.events import Penalty
    from penaltybox.embedded.clickhouse_server import ClickHouseServer
    from penaltybox.embedded.redis_server import RedisServer

pytestmark = [pytest.mark.stack, pytest.mark.slow]
ROOT = Path(__file__).parent.parent.parent
LOG = ROOT / "tests" / "data" / "apache_access.log"
# Blocks of four days: what the log's busiest robot did two and a half days before its end is still in force then.
POLICY = """
limits: {web: {ip: [{name: pages, limit: 40, window: 1m}]}}
rules: {web_flood: {on: ip, count: 5, window: 10m, then: {level: 96h}}}
ladder: {rungs: [warn, 5m, 96h], caps: {ip: 96h}}
"""


@pytest.fixture
async def settings(
    broker: AnyBroker, redis_server: RedisServer, clickhouse_server: ClickHouseServer, tmp_path: Path
) -> AsyncIterator[Settings]:
    """Settings with topics, tables and both roles running."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    values = Settings(
        kafka=broker.bootstrap,
        kafka_partitions=4,
        topic_prefix=fresh_name("log"),
        redis_url=redis_server.url,
        redis_prefix=fresh_name("log"),
        clickhouse_url=clickhouse_server.url,
        clickhouse_database=fresh_name("log").replace("-", "_"),
        policy=str(policy),
        linger_ms=5,
    )
    await create_topics(values)
    create_tables(values)
    fleet = Fleet(values, ["penalties", "analytics"], tmp_path / "logs")
    await fleet.start()
    yield values
    fleet.check()
    await fleet.stop()
    clickhouse = ClickHouse.of(values)
    clickhouse.command(f"DROP DATABASE {values.clickhouse_database}")
    clickhouse.close()


def command(values: Settings, *arguments: str) -> str:
    """Standard output of a command, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "penaltybox", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment_of(values)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def finished(values: Settings) -> None:
    """Wait until both roles have committed all that is in the topics."""
    topics = Topics.named(values.topic_prefix)
    for role, names in (
        ("penalties", [topics.decisions]),
        ("analytics", [topics.decisions, topics.penalties]),
    ):
        async with group_lag(values, role, names) as group:

            async def done(group: Any = group) -> bool:
                return bool(await group.records() == 0)

            await wait_until(done, deadline_s=60, what=f"{role} has finished")


def rows(values: Settings, sql: str) -> list[dict[str, Any]]:
    """A query's rows."""
    clickhouse = ClickHouse.of(values)
    try:
        return clickhouse.rows(sql)
    finally:
        clickhouse.close()


def expected() -> tuple[list[Penalty], int]:
    """What the engine alone makes of the log, and the log's end."""
    policy = parse_policy(POLICY)
    judged = Offline(policy)
    ingest = LogIngest(Limiter(policy.limits, source="access-log/1"))
    with open_log(LOG) as log:
        for decision in ingest.decisions(read_lines(log)):
            judged.judge(decision)
    with open_log(LOG) as log:
        return judged.penalties, end_of_log(read_lines(log))


def steps(found: Sequence[dict[str, Any]], end_ms: int) -> list[tuple[str, int, int]]:
    """(subject, step, end of the block), both relative to the log's end, in order."""
    return sorted((row["subject"], row["at"] - end_ms, row["until_ms"] - end_ms) for row in found)


PENALTIES = """
SELECT subject, toUnixTimestamp64Milli(ts) AS at, toUnixTimestamp64Milli(assumeNotNull(until)) AS until_ms
FROM penalties FINAL ORDER BY ts
"""


async def test_the_whole_way(settings: Settings) -> None:
    """In its own time the log is reported and blocks nobody now; read twice it counts once; shifted, it blocks."""
    wanted, end_ms = expected()
    mine = [{"subject": p.subject, "at": p.ts, "until_ms": p.until} for p in wanted]
    assert len(wanted) == 4

    said = command(settings, "ingest", "combined", str(LOG))
    assert "Published 10,000 decisions" in said
    assert "blocks that have ended meanwhile are not written" in " ".join(said.split())
    command(settings, "ingest", "combined", str(LOG))
    await finished(settings)
    (count,) = rows(settings, "SELECT count() AS n, uniqExact(ip) AS addresses FROM decisions FINAL")
    assert count == {"n": 10_000, "addresses": 1_753}
    assert steps(rows(settings, PENALTIES), end_ms) == steps(mine, end_ms)
    assert command(settings, "blocks").strip() == "Nobody is denied or challenged."

    command(settings, "ingest", "combined", str(LOG), "--shift", "now")
    await finished(settings)
    (newest,) = rows(settings, "SELECT toUnixTimestamp64Milli(max(ts)) AS at, count() AS n FROM decisions FINAL")
    assert newest["n"] == 20_000
    shifted = [row for row in rows(settings, PENALTIES) if row["at"] > end_ms]
    assert steps(shifted, newest["at"]) == steps(mine, end_ms)

    blocks = [json.loads(line) for line in command(settings, "blocks", "--json").splitlines()]
    in_force = {row["subject"]: row["until_ms"] for row in shifted if row["until_ms"] > newest["at"] + 60_000}
    assert in_force
    assert {block["subject"]: block["until"] for block in blocks} == in_force
    assert all(block["rung"] == "96h" and 0 < block["ttl_ms"] <= 96 * 3_600_000 for block in blocks)
    explain_and_doctor(settings, next(iter(in_force)), in_force)


def explain_and_doctor(settings: Settings, subject: str, in_force: dict[str, int]) -> None:
    """The block is explained by its rule and its decisions, and the doctor finds nothing wrong."""
    told = json.loads(command(settings, "explain", subject, "--json"))
    (hold,) = told["now"]["in_force"]
    assert (hold["action"], hold["rule"], hold["until"]) == ("deny", "web_flood", in_force[subject])
    penalty = told["history"][0]
    assert penalty["decisions"][0]["id"] == penalty["trigger_id"]
    assert told["history_missing"] == ""
    text = command(settings, "explain", subject)
    assert "denied until" in text
    assert "trigger" in text
    findings = json.loads(command(settings, "doctor", "--json"))["findings"]
    assert [finding for finding in findings if finding["state"] == "wrong"] == []
