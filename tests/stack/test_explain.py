"""`explain` on real servers: the timeline from ClickHouse, what it says without it, steps by hand."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import redis.asyncio
from aiokafka import AIOKafkaProducer

from penaltybox.cli.fleet import environment_of
from penaltybox.cli.setup import create_tables
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Decision, encode
from penaltybox.contracts.topics import Topics
from penaltybox.processors.analytics import run_analytics
from penaltybox.processors.analytics_pipeline import Limits
from penaltybox.processors.ending import Ending
from penaltybox.processors.penalties import run_penalties
from penaltybox.sinks.clickhouse.client import ClickHouse
from tests.stack.stack_settings import settings_on, written
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.contracts.settings import Settings

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parents[2]
POLICY = """
limits: {}
rules:
  abuse: {on: user, count: 3, window: 10m, then: {level: 5m}}
  stricter: {on: user, count: 2, window: 10m, then: {level: permanent}, shadow: true}
  doomed: {on: "user+scenario", count: 2, window: 10m, then: {level: permanent},
           when: {scenario: [pay], violated: ["user:*"]}}
"""


@pytest.fixture
async def settings(
    broker: Any, redis_server: Any, clickhouse_server: Any, fresh_prefix: str, fresh_database: str, tmp_path: Path
) -> Settings:
    made = await settings_on(
        broker,
        fresh_prefix,
        redis=redis_server,
        policy=written(POLICY, tmp_path),
        clickhouse_url=clickhouse_server.url,
        clickhouse_database=fresh_database,
        stop_timeout_s=6,
    )
    create_tables(made)
    return made


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[None]:
    endings = Ending(), Ending()
    tasks = [
        asyncio.create_task(run_penalties(settings, ending=endings[0])),
        asyncio.create_task(run_analytics(settings, ending=endings[1], limits=Limits(linger_s=0.05))),
    ]
    try:
        yield
    finally:
        for ending in endings:
            ending.request()
        await asyncio.gather(*tasks)


def denial(number: int, ts: int, scenario: str = "claim") -> Decision:
    """User a@b over a limit of its own."""
    return Decision(
        v=1,
        id=f"d{number}",
        ts=ts,
        source="t/1",
        scenario=scenario,
        action="deny",
        reason="over_limit",
        violated=("user:daily",),
        subjects={"user": "a@b", "device": "d"},
    )


async def publish(settings: Settings, decisions: list[Decision]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka)
    await producer.start()
    try:
        for decision in decisions:
            topic = Topics.named(settings.topic_prefix).decisions
            await producer.send_and_wait(topic, encode(decision), key=b"user:a%40b")
    finally:
        await producer.stop()


async def command(values: Settings, *arguments: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "penaltybox", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment_of(values), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def count(settings: Settings, table: str) -> int:
    clickhouse = ClickHouse.of(settings)
    try:
        return int(clickhouse.rows(f"SELECT count() AS n FROM {table} FINAL")[0]["n"])  # noqa: S608 - ours
    finally:
        clickhouse.close()


async def stored(settings: Settings, table: str, rows: int) -> None:
    async def done() -> bool:
        return await asyncio.to_thread(count, settings, table) >= rows

    await wait_until(done, deadline_s=30, what=f"{table} has {rows} rows")


async def test_a_timeline(settings: Settings) -> None:
    """Each decision has its verdict, live and re-run agree, shadow is marked, and the way out is the exact command."""
    begin = now_ms() - 10_000
    async with running(settings):
        await publish(settings, [denial(n, begin + n * 1000) for n in range(5)])
        await publish(settings, [denial(9, begin + 1500), denial(10, begin + 1600, "pay"), denial(11, begin + 9000)])
        await stored(settings, "decisions", 8)
        await stored(settings, "penalties", 2)
        told = json.loads(await command(settings, "explain", "user:a@b", "--json"))
        timeline = told["timeline"]
        assert [(one["id"], one["verdict"]) for one in timeline["moments"]] == [
            ("d0", "counted"),
            ("d1", "trigger"),
            ("d2", "trigger"),
            ("d3", "suppressed"),
            ("d4", "suppressed"),
            ("d9", "history"),
            ("d10", "history"),
            ("d11", "suppressed"),
        ]
        assert timeline["differences"] == []
        steps = [step for one in timeline["moments"] for step in one["steps"]]
        assert {step["told"] for step in steps} == {"both"}
        assert [step["penalty"].get("shadow", False) for step in steps] == [True, False]
        assert told["now"]["strays"] == []
        assert [way["by"] for way in told["ways_out"]] == ["time", "command"]
        assert told["ways_out"][1]["command"] == 'penaltybox unban user:a%40b --reason "…" --grace 1h'

        text = await command(settings, "explain", "user:a@b")
        assert "denied until" in text
        assert "would deny  none → permanent" in text
        assert "[shadow]" in text
        assert "suppressed" in text
        assert max(map(len, text.splitlines())) <= 80

        await command(settings, "unban", "user:a@b", "--reason", "a mistake", "--actor", "ann", "--grace", "1h")
        await publish(settings, [denial(20, now_ms())])
        await stored(settings, "decisions", 9)
        await stored(settings, "penalties", 3)
        told = json.loads(await command(settings, "explain", "user:a@b", "--json"))
        assert [one["verdict"] for one in told["timeline"]["moments"]][-2:] == ["hand", "grace"]
        assert told["timeline"]["differences"] == []
        assert told["now"]["in_force"] == told["ways_out"] == []
        assert "by hand (ann: a mistake)" in " ".join((await command(settings, "explain", "user:a@b")).split())
        assert len(json.loads(await command(settings, "explain", "user:nobody", "--json"))["timeline"]["moments"]) == 0


async def test_a_combination_that_is_banned_for_ever(settings: Settings) -> None:
    """A combination has a timeline, too; a permanent block is said not to end by itself."""
    async with running(settings):
        await publish(settings, [denial(n, now_ms(), "pay") for n in range(2)])
        await stored(settings, "decisions", 2)
        await stored(settings, "penalties", 2)
        told = json.loads(await command(settings, "explain", "user+scenario:a@b+pay", "--json"))
        assert [one["verdict"] for one in told["timeline"]["moments"]] == ["counted", "trigger"]
        assert told["timeline"]["differences"] == []
        assert "does not end by itself" in told["ways_out"][0]["says"]


async def test_without_clickhouse(settings: Settings) -> None:
    """Without ClickHouse the live part is shown, and what is missing is said."""
    async with running(settings):
        await publish(settings, [denial(n, now_ms()) for n in range(3)])
        await stored(settings, "penalties", 2)
        away = msgspec.structs.replace(settings, clickhouse_url="http://127.0.0.1:1")
        told = json.loads(await command(away, "explain", "user:a@b", "--json"))
        assert (told["timeline"], told["history"]) == (None, [])
        assert "ClickHouse" in told["history_missing"]
        assert told["now"]["in_force"][0]["action"] == "deny"
        assert "are not shown: ClickHouse" in " ".join((await command(away, "explain", "user:a@b")).split())


@pytest.mark.parametrize("value", ['{"until":4102444800000,"rung":"x","rule":"mine","penalty":"p"}', "by hand"])
async def test_a_block_that_no_worker_wrote(settings: Settings, value: str) -> None:
    """A key that somebody else wrote denies, so it is told, with the command that lifts it; and that one lifts it."""
    away = msgspec.structs.replace(settings, clickhouse_url="http://127.0.0.1:1")
    key = f"{settings.redis_prefix}:{{user:foreign}}:block"
    client = redis.asyncio.Redis.from_url(settings.redis_url)
    try:
        async with running(settings):
            await client.set(key, value, ex=3600)
            told = json.loads(await command(away, "explain", "user:foreign", "--json"))
            assert [(one["action"], one["left_ms"] > 0) for one in told["now"]["strays"]] == [("deny", True)]
            assert told["ways_out"][-1]["command"] == 'penaltybox unban user:foreign --reason "…" --grace 1h'
            text = " ".join((await command(away, "explain", "user:foreign")).split())
            assert "no worker wrote that" in text
            assert "neither denied" not in text
            await command(away, "unban", "user:foreign", "--reason", "not ours", "--actor", "ann")
            assert await client.exists(key) == 0
    finally:
        await client.aclose()
