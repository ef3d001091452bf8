"""A log that is followed, by the command line, into a real broker: soon, and once whatever happens to the process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from penaltybox.cli.fleet import environment_of
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from tests.producers.logs.nginx_logs import line, lines
from tests.servers import AnyBroker, fresh_name
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parent.parent.parent
PARTITIONS = 2
GENEROUS_S = 120.0


@pytest.fixture
async def settings(broker: AnyBroker) -> Settings:
    """Settings whose decisions topic exists."""
    values = Settings(kafka=broker.bootstrap, topic_prefix=fresh_name("follow"))
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(Topics.named(values.topic_prefix).decisions, PARTITIONS, 1)])
    await admin.close()
    return values


@contextmanager
def _ingest(values: Settings, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penaltybox", "ingest", "nginx-error", *arguments, "--tz", "UTC", "--json"],
        cwd=ROOT,
        env={**os.environ, **environment_of(values)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


class _Arrived:
    """What has come: id -> address, and how many records there were."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self.clients: dict[str, str] = {}
        self.records = 0

    async def until(self, condition: Callable[[], bool]) -> None:
        """Takes records until the condition holds; fails after a generous time."""
        end = time.monotonic() + GENEROUS_S
        while not condition():
            assert time.monotonic() < end, f"{len(self.clients)} of {self.records} records"
            for batch in (await self._consumer.getmany(timeout_ms=200)).values():
                for record in batch:
                    decision = msgspec.json.decode(record.value)
                    self.clients[decision["id"]] = decision["subjects"]["ip"]
                    self.records += 1


@asynccontextmanager
async def _arrivals(values: Settings) -> AsyncIterator[_Arrived]:
    consumer = AIOKafkaConsumer(bootstrap_servers=values.kafka, auto_offset_reset="earliest")
    await consumer.start()
    try:
        topic = Topics.named(values.topic_prefix).decisions
        consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        yield _Arrived(consumer)
    finally:
        await consumer.stop()


async def test_a_line_is_there_soon(
    settings: Settings, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """From the moment a line is written until a consumer has it; the log is rotated meanwhile, SIGTERM ends cleanly."""
    log, took = tmp_path / "error.log", []
    log.write_bytes(line(1))
    with _ingest(settings, str(log), "--follow", "--checkpoint", str(tmp_path / "saved")) as process:
        async with _arrivals(settings) as arrived:
            await arrived.until(lambda: len(arrived.clients) == 1)
            for number in range(2, 22):
                if number == 12:
                    log.rename(tmp_path / "error.log.1")
                start = time.monotonic()
                with log.open("ab") as file:
                    file.write(line(number))
                await arrived.until(lambda number=number: len(arrived.clients) == number)
                took.append((time.monotonic() - start) * 1000)
            assert arrived.records == 21
        process.send_signal(signal.SIGTERM)
        told, complaints = await asyncio.to_thread(process.communicate, timeout=GENEROUS_S)
        assert process.returncode == 0, complaints
    assert json.loads(told)["decisions"] == 21
    record_property("follow_ms", {"median": round(statistics.median(took)), "most": round(max(took))})
    print("follow_ms", round(statistics.median(took)), round(max(took)))  # noqa: T201 - for who measures: pytest -s
    assert statistics.median(took) < 5_000


async def test_killed_in_the_middle(settings: Settings, tmp_path: Path) -> None:
    """Killed with -9 while it reads, and started again: every line is there, and all records of one have its id."""
    log, saved = tmp_path / "error.log", tmp_path / "saved"
    log.write_bytes(lines(range(1, 40_001)))
    command = (str(log), "--follow", "--checkpoint", str(saved))
    with _ingest(settings, *command) as process:
        await wait_until(saved.exists, GENEROUS_S)
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
    offset = json.loads(saved.read_bytes())["files"][0]["offset"]
    assert 0 < offset <= log.stat().st_size
    with log.open("ab") as file:
        file.write(lines(range(40_001, 41_001)))
    with _ingest(settings, *command) as process:
        async with _arrivals(settings) as arrived:
            await arrived.until(lambda: len(arrived.clients) >= 41_000)
            assert len(arrived.clients) == 41_000
            assert len(set(arrived.clients.values())) == 41_000
            assert arrived.records < 2 * 41_000
        process.send_signal(signal.SIGTERM)
        _, complaints = await asyncio.to_thread(process.communicate, timeout=GENEROUS_S)
        assert process.returncode == 0, complaints
