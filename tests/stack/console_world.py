"""A small world behind a console, on real servers: people over limits, an office, hostile names; and the console."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest

from penaltybox.cli.fleet import Fleet, environment_of
from penaltybox.cli.setup import create_tables, create_topics
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Decision, Outcome
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.settings import Settings
from penaltybox.producers.publisher import Publisher
from penaltybox.sinks.clickhouse.client import ClickHouse
from tests.servers import fresh_name
from tests.stack.decision_service import ROOT, Got, fetch
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping
    from pathlib import Path

TOKEN = "opens-nothing-but-tests"  # noqa: S105 - that is all
OFFICE = "203.0.113.7"
POLICY = """
limits: {}
rules:
  user_abuse: {on: user, count: 6, window: 10m, then: step}
  device_farm: {on: device, distinct: user, n: 4, window: 10m, then: {level: 1h}}
  ip_accounts: {on: ip, distinct: user, n: 20, window: 1h, then: {challenge: 15m}}
  stricter: {on: user, count: 4, window: 10m, then: {level: permanent}, shadow: true}
"""
HOSTILE = (
    "<img src=x onerror=window.pwned=1>",
    '"><script>window.pwned=2</script>',
    "' onmouseover='window.pwned=3",
    "${window.pwned=4}",
    "../../../etc/passwd#subject=user:amy",
    "javascript:window.pwned=5",
)


def beside(work: Coroutine[Any, Any, object]) -> None:
    """Runs a coroutine to its end in a thread of its own: Playwright keeps an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


class World:
    """Topics, tables, two workers, and what happened.

    Args:
        broker, redis, clickhouse: running servers.
        folder: for policy and logs.
    """

    def __init__(self, broker: Any, redis: Any, clickhouse: Any, folder: Path) -> None:
        name = fresh_name("console")
        (folder / "policy.yaml").write_text(POLICY)
        self.folder = folder
        self.settings = Settings(
            kafka=broker.bootstrap,
            kafka_partitions=2,
            kafka_session_timeout_ms=2000,
            topic_prefix=name,
            redis_url=redis.url,
            redis_prefix=name,
            clickhouse_url=clickhouse.url,
            clickhouse_database=name.replace("-", "_"),
            policy=str(folder / "policy.yaml"),
            stop_timeout_s=6,
            actor="night shift",
        )
        self.fleet = Fleet(self.settings, ["penalties", "analytics"], folder / "logs")

    def start(self) -> None:
        """Creates topics and tables, and starts the workers."""
        beside(create_topics(self.settings))
        create_tables(self.settings)
        beside(self.fleet.start())

    def stop(self) -> None:
        """Ends the workers."""
        beside(self.fleet.stop())

    def happen(self, records: list[Decision | Outcome]) -> None:
        """Publishes, and waits until ClickHouse has all decisions that were ever published."""
        before = self.count("decisions")
        beside(self._publish(records))
        wanted = before + sum(isinstance(record, Decision) for record in records)
        block_until(lambda: self.count("decisions") >= wanted, 60, f"{wanted} decisions in ClickHouse")

    async def _publish(self, records: list[Decision | Outcome]) -> None:
        async with Publisher(self.settings) as publisher:
            for record in records:
                await publisher.send(record)

    def count(self, table: str, where: str = "1") -> int:
        """Rows of a table."""
        clickhouse = ClickHouse.of(self.settings)
        try:
            rows = clickhouse.rows(f"SELECT count() AS n FROM {table} FINAL WHERE {where}")  # noqa: S608 - ours
        finally:
            clickhouse.close()
        return int(rows[0]["n"])

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.stop)
            self.start()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def decision(subjects: Mapping[str, str], at_ms: int, violated: str = "", **more: Any) -> Decision:
    """One decision; over a limit when one is named."""
    refused: dict[str, Any] = {"reason": "over_limit", "violated": (violated,)} if violated else {}
    action = more.pop("action", "deny" if violated else "allow")
    return Decision(
        v=1, id=ulid(at_ms), ts=at_ms, source="shop/1", scenario="coupon_claim", route="POST /coupons/{id}/claim",
        action=action, subjects=dict(subjects), **refused, **more,
    )  # fmt: skip


def ordinary(at_ms: int) -> list[Decision | Outcome]:
    """Forty people over their limit, of whom some paid; a farm of devices; an office of established people."""
    found: list[Decision | Outcome] = []
    for number in range(40):
        user = f"greedy-{number}"
        for turn in range(3 + number % 5):
            at = at_ms - 60_000 + number * 200 + turn
            subjects = {"user": user, "device": f"phone-{number}", "ip": f"198.51.100.{number}"}
            found.append(decision(subjects, at, "user:daily"))
        if number % 8 == 0:
            found.append(Outcome(v=1, id=ulid(at_ms), ts=at_ms - 45_000, label="payment_ok", subjects={"user": user}))
    for number in range(12):
        for turn in range(5):
            subjects = {"user": f"farm-{number}-{turn}", "device": f"rack-{number}", "ip": f"192.0.2.{number}"}
            found.append(decision(subjects, at_ms - 50_000 + number * 100 + turn))
    for number in range(36):
        subjects = {"user": f"office-{number}", "device": f"desk-{number}", "ip": OFFICE}
        found.append(decision(subjects, at_ms - 30_000 + number * 10, established=True))
        limited = decision(subjects, at_ms - 29_000 + number * 10, "ip:soft", action="challenge", established=True)
        found.append(limited)
    return found


def hostile(at_ms: int) -> list[Decision | Outcome]:
    """People whose names would like to be markup."""
    return [decision({"user": name}, at_ms + turn, "user:daily") for name in HOSTILE for turn in range(12)]


class Console:
    """A running `penaltybox console`, on a port that it finds free unless it is given one."""

    def __init__(self, settings: Settings, *arguments: str, port: int = 0, token: str = TOKEN) -> None:
        self.port = port
        self._command = [sys.executable, "-m", "penaltybox", "console", "--port", str(port), *arguments]
        self._environment = environment_of(msgspec.structs.replace(settings, console_token=token))
        self.token = token

    @property
    def address(self) -> str:
        """What it prints for a browser."""
        return f"http://127.0.0.1:{self.port}/#token={self.token}"

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**os.environ, **self._environment, "PYTHONUNBUFFERED": "1"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        try:
            block_until(self._alive, 60, "a console that is alive")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.log
        said = re.search(r"Console: http://127\.0\.0\.1:(\d+)/", self.log)
        if said is None:
            return False
        self.port = int(said[1])
        try:
            return fetch(self.port, "/healthz").status == 200
        except (OSError, http.client.HTTPException):
            return False

    @property
    def log(self) -> str:
        """What it printed."""
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(20)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()

    def ask(self, path: str, body: Any = None, **headers: str) -> Got:
        """One call of the API, with the token unless `authorization` is given."""
        given = {
            "authorization": f"Bearer {self.token}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            given.setdefault("content-type", "application/json")
        return fetch(self.port, path, method="GET" if data is None else "POST", headers=given, body=data, patience_s=60)

    def get(self, path: str) -> Any:
        """The JSON of an answer that must be one."""
        got = self.ask(path)
        assert got.status == 200, got
        return json.loads(got.body)


def wait_for_blocks(console: Console, wanted: int) -> None:
    """Until the console knows of so many denials."""
    block_until(lambda: console.get("/api/v1/status")["denied"] >= wanted, 30, f"{wanted} denied")


@pytest.fixture(scope="module")
def world(
    broker: Any, redis_server: Any, clickhouse_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A module's own world, in which everything has happened that these tests look at."""
    with World(broker, redis_server, clickhouse_server, tmp_path_factory.mktemp("world")) as made:
        made.happen(ordinary(now_ms()) + hostile(now_ms()))
        yield made


@pytest.fixture(scope="module")
def console(world: World) -> Iterator[Console]:
    """The console of that world."""
    with Console(world.settings, "--matures", "30s") as made:
        wait_for_blocks(made, 18)
        yield made
