"""SIGTERM ends a role's process within a stated time, whichever server hangs, and the log says what was not waited for.

The time is `stop_timeout_s` and, for what hangs even then, `MARGIN_S` more. A machine under load may start and stop
processes slowly: the tests allow that `SLOW_S` on top.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from penaltybox.cli.fleet import environment_of
from penaltybox.cli.setup import create_tables, create_topics
from penaltybox.contracts.settings import Settings
from penaltybox.embedded.process import GuardedProcess
from penaltybox.processors.ending import MARGIN_S
from tests.servers import AnyBroker, fresh_name
from tests.waiting import wait_until

if TYPE_CHECKING:
    from penaltybox.embedded.clickhouse_server import ClickHouseServer
    from penaltybox.embedded.redis_server import RedisServer

pytestmark = [pytest.mark.stack, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
ROLES = ("penalties", "analytics", "alerts")
STOP_S = 6
SLOW_S = 10
PATIENCE_S = 90


@pytest.fixture
async def settings(
    private_broker: AnyBroker, redis_server: RedisServer, private_clickhouse: ClickHouseServer
) -> Settings:
    """Servers with topics and tables; broker and ClickHouse are this test's own, to be frozen."""
    name = fresh_name("end")
    values = Settings(
        kafka=private_broker.bootstrap,
        kafka_partitions=2,
        topic_prefix=name,
        redis_url=redis_server.url,
        redis_prefix=name,
        clickhouse_url=private_clickhouse.url,
        clickhouse_database=name.replace("-", "_"),
        stop_timeout_s=STOP_S,
    )
    await create_topics(values)
    await asyncio.to_thread(create_tables, values)
    return values


async def started(command: list[str], log: Path, settings: Settings) -> GuardedProcess:
    process = GuardedProcess(
        [sys.executable, *command],
        log_path=log,
        environment={**environment_of(settings), "PYTHONPATH": str(ROOT)},
        grace_s=1,
    )
    await asyncio.to_thread(process.start)
    return process


async def end_time(process: GuardedProcess, limit_s: float) -> float:
    """Seconds from SIGTERM to the end; fails after `limit_s` and kills it."""
    began = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    try:
        assert await asyncio.to_thread(process.wait, limit_s), f"alive {limit_s} s after SIGTERM: {log_of(process)}"
        return time.monotonic() - began
    finally:
        await asyncio.to_thread(process.kill)


def log_of(process: GuardedProcess) -> str:
    return process.log_path.read_text(encoding="utf-8")


async def test_a_broker_frozen_while_the_app_starts_keeps_no_role(
    settings: Settings, private_broker: AnyBroker, tmp_path: Path
) -> None:
    """Nothing was consumed yet, so there is nothing to wait for: each role leaves soon, in good order, and says so."""

    async def ended(role: str) -> tuple[float, str, int | None]:
        folder = tmp_path / role
        folder.mkdir()
        script = str(Path(__file__).with_name("starting_process.py"))
        process = await started(
            [script, role, msgspec.json.encode(settings).decode(), str(folder)], folder / "log", settings
        )
        await wait_until((folder / "ready").exists, PATIENCE_S, f"{role} about to connect")
        ready.append(role)
        await wait_until(lambda: len(ready) == len(ROLES), PATIENCE_S, "all roles about to connect")
        await asyncio.to_thread(private_broker.pause)
        (folder / "go").touch()
        return await end_time(process, STOP_S + MARGIN_S + SLOW_S), log_of(process), process.exit_code

    ready: list[str] = []
    for role, (_, log, code) in zip(ROLES, await asyncio.gather(*map(ended, ROLES)), strict=True):
        assert "Ending without waiting for the start of Kafka's consumer" in log, (role, log)
        assert code == 0, (role, log)
        assert "Traceback" not in log, (role, log)


async def test_a_server_frozen_from_the_beginning_keeps_no_role(
    settings: Settings, private_broker: AnyBroker, tmp_path: Path
) -> None:
    """As soon as a process listens for signals, a broker that answers nobody keeps it no longer than stated."""
    await asyncio.to_thread(private_broker.pause)

    async def ended(role: str) -> tuple[str, int | None]:
        process = await started(["-m", "penaltybox", "run", role], tmp_path / role, settings)
        await wait_until(lambda: handles_sigterm(process.pid), PATIENCE_S, f"{role} listening for SIGTERM")
        await end_time(process, STOP_S + MARGIN_S + SLOW_S)
        return log_of(process), process.exit_code

    for role, (log, code) in zip(ROLES, await asyncio.gather(*map(ended, ROLES)), strict=True):
        assert "Ending without waiting for" in log, (role, log)
        assert code == 0, (role, log)
        assert "Traceback" not in log, (role, log)


def handles_sigterm(pid: int) -> bool:
    """Whether the process has a handler for SIGTERM (the kernel's mask of caught signals), and is not its guard's."""
    if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] != [b"-m", b"penaltybox"]:
        return False
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


async def test_clickhouse_frozen_in_mid_answer_keeps_no_process(
    settings: Settings, private_clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    """Threads that wait for ClickHouse for minutes are left behind, and named."""
    process = await started(["-m", "penaltybox", "run", "analytics"], tmp_path / "log", settings)
    await wait_until(lambda: connections_to(private_clickhouse, process.pid), PATIENCE_S, "a connection to ClickHouse")
    await asyncio.to_thread(private_clickhouse.pause)
    await end_time(process, STOP_S + MARGIN_S + SLOW_S)


def connections_to(server: ClickHouseServer, pid: int) -> bool:
    found = psutil.Process(pid).net_connections(kind="tcp")
    return any(one.raddr and one.raddr.port == server.port and one.status == "ESTABLISHED" for one in found)


async def test_everything_on_one_machine_ends_with_a_frozen_broker(tmp_path: Path) -> None:
    """`penaltybox run --embedded` ends its roles and its servers, the frozen one too, within the stated time."""
    here = Settings(stop_timeout_s=STOP_S)
    command = ["-m", "penaltybox", "run", "--embedded", "--data-dir", str(tmp_path / "data")]
    process = await started(command, tmp_path / "log", here)
    await wait_until(lambda: "Ctrl-C ends all of it" in log_of(process), PATIENCE_S, "everything up")
    everyone = psutil.Process(process.pid).children(recursive=True)
    broker = next(one for one in everyone if "--storage-engine" in (line := one.cmdline()) and "-I" not in line)
    os.kill(broker.pid, signal.SIGSTOP)
    await end_time(process, STOP_S + MARGIN_S + 2 * SLOW_S)
    await wait_until(lambda: not psutil.wait_procs(everyone, 0)[1], PATIENCE_S, "no process left")
