"""Commands that act on real servers: pause and resume, restore after a wipe, everything with --embedded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penaltybox.cli.fleet import environment_of
from penaltybox.cli.setup import create_tables, create_topics
from penaltybox.contracts.settings import Settings
from tests.servers import AnyBroker, fresh_name
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.embedded.clickhouse_server import ClickHouseServer
    from penaltybox.embedded.redis_server import RedisServer

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
async def settings(broker: AnyBroker, private_redis: RedisServer, clickhouse_server: ClickHouseServer) -> Settings:
    """Settings of real servers with topics and tables."""
    values = Settings(
        kafka=broker.bootstrap,
        kafka_partitions=2,
        topic_prefix=fresh_name("cmd"),
        redis_url=private_redis.url,
        clickhouse_url=clickhouse_server.url,
        clickhouse_database=fresh_name("cmd").replace("-", "_"),
    )
    await create_topics(values)
    create_tables(values)
    return values


WHY = ("--reason", "a test", "--actor", "ann")


def command(values: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command with these settings."""
    return subprocess.run(
        [sys.executable, "-m", "penaltybox", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment_of(values)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


async def test_pause_and_resume(settings: Settings) -> None:
    """A pause is seen by the doctor, told twice it stays one, and ends with resume; restore puts it back."""
    assert "Paused by ann: too strict" in command(settings, "pause", "--reason", "too strict", "--actor", "ann").stdout
    findings = json.loads(command(settings, "doctor", "--json").stdout)["findings"]
    assert [one["says"] for one in findings if "paused" in one["says"]] == ["new blocks are paused: too strict"]
    done = command(settings, "restore", "--yes", "--json", *WHY)
    assert json.loads(done.stdout)["paused"] == "too strict", done.stderr
    assert "it was paused: too strict" in command(settings, "resume", *WHY).stdout
    assert "It was not paused." in command(settings, "resume", *WHY).stdout
    assert json.loads(command(settings, "restore", "--yes", "--json", *WHY).stdout)["paused"] is None


async def test_restore_asks_first(settings: Settings) -> None:
    """Without --yes it asks, and no answer is no."""
    done = command(settings, "restore", *WHY)
    assert done.returncode == 1
    assert "Restore pbx:*" in done.stdout


async def test_setup_can_be_repeated(settings: Settings) -> None:
    """A second setup finds everything there and changes nothing."""
    report = json.loads(command(settings, "setup", "--json").stdout)
    assert report["topics"]["created"] == []
    assert report["tables"] == {"applied": []}
    assert "schema is current" in command(settings, "setup").stdout


@pytest.fixture
def everything(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`penaltybox run --embedded` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penaltybox", "run", "--embedded", "--data-dir", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    yield process
    process.kill()
    process.communicate()


def test_everything_on_this_machine(everything: subprocess.Popen[str]) -> None:
    """It says how to reach it, the doctor finds nothing wrong there, and SIGTERM ends all of it with code 0."""
    assert everything.stdout is not None
    environment, lines = {}, []
    for line in everything.stdout:
        lines.append(line)
        if line.strip().startswith("export "):
            name, _, value = line.strip().removeprefix("export ").partition("=")
            environment[name] = value
        if line.startswith("Ctrl-C"):
            break
    assert len(environment) == 3, lines
    done = subprocess.run(
        [sys.executable, "-m", "penaltybox", "doctor", "--json"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    findings = json.loads(done.stdout)["findings"]
    assert [one for one in findings if one["state"] == "wrong"] == []
    everything.send_signal(signal.SIGTERM)
    block_until(lambda: everything.poll() is not None, deadline_s=30)
    assert everything.returncode == 0, everything.stdout.read()
