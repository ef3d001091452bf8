"""From logs to Kafka, with a Kafka that is slow, away, or back."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import BadEvent, StoreUnavailable
from penaltybox.producers.logs import delivery as delivering
from penaltybox.producers.logs.delivery import Delivery
from penaltybox.producers.logs.files import logs_of
from penaltybox.producers.logs.follow import Follower
from penaltybox.producers.logs.whole import WholeLogs
from tests.producers.logs.nginx_logs import checkpoint, common, line, lines, number_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from penaltybox.contracts.events import Decision


class _Kafka:
    """Takes decisions, unless it is away. What is not flushed is not confirmed."""

    def __init__(self) -> None:
        self.confirmed: list[int] = []
        self.sent: list[int] = []
        self.away = False
        self.too_large: set[int] = set()

    async def start(self) -> None:
        self._check()

    async def send(self, record: Decision, /) -> None:
        self._check()
        if number_of(record) in self.too_large:
            raise BadEvent("too_large", "a record of 5000 bytes")
        self.sent.append(number_of(record))

    async def flush(self) -> None:
        self._check()
        self.confirmed += self.sent
        self.sent = []

    async def close(self) -> None:
        self.sent = []

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailable("Kafka at nowhere: away.")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "POLL_S", 0.005)
    monkeypatch.setattr(delivering, "_FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(delivering, "SAVE_EVERY_S", 0.0)


async def test_a_checkpoint_follows_confirmations(tmp_path: Path) -> None:
    """Kafka goes away in the middle: what it had confirmed is not read again, all the rest is."""
    log, saved, kafka = tmp_path / "error.log", tmp_path / "saved", _Kafka()
    log.write_bytes(lines(range(30_000)))

    class _Limited(_Kafka):
        async def send(self, record: Decision, /) -> None:
            await super().send(record)
            self.away = number_of(record) == 25_000

    first = _Limited()
    shared, kept = common(), checkpoint(saved)
    with pytest.raises(StoreUnavailable):
        await Delivery(lambda: first, kept, shared.progress, print).whole(WholeLogs(logs_of(log), shared, kept))
    assert 0 < len(first.confirmed) < 25_000
    shared, kept = common(), checkpoint(saved)
    await Delivery(lambda: kafka, kept, shared.progress, print).whole(WholeLogs(logs_of(log), shared, kept))
    assert len(kafka.confirmed) < 30_000
    assert set(first.confirmed) | set(kafka.confirmed) == set(range(30_000))
    assert checkpoint(saved).places


async def test_following_waits_for_kafka(tmp_path: Path) -> None:
    """Away while a log is followed: reading waits, says so once; nothing is lost when it is back."""
    log, saved, kafka, told = tmp_path / "error.log", tmp_path / "saved", _Kafka(), []
    log.write_bytes(lines([1]))
    shared, kept, stop = common(), checkpoint(saved), asyncio.Event()
    run = asyncio.create_task(
        Delivery(lambda: kafka, kept, shared.progress, told.append).followed(Follower(log, shared, kept), stop)
    )
    await wait_until(lambda: kafka.confirmed == [1])
    await wait_until(saved.exists)
    before, kafka.away = saved.read_bytes(), True
    with log.open("ab") as writer:
        writer.write(lines([2, 3]))
    await wait_until(lambda: told)
    with log.open("ab") as writer:
        writer.write(lines([4]))
    assert saved.read_bytes() == before
    kafka.away = False
    await wait_until(lambda: kafka.confirmed == [1, 2, 3, 4])
    stop.set()
    await run
    assert len(told) == 2
    assert saved.read_bytes() != before


async def test_a_damaged_log_of_a_folder_is_told_once(tmp_path: Path) -> None:
    """Following goes on, with what could be read of it and with the others."""
    kafka, told, stop, shared = _Kafka(), list[str](), asyncio.Event(), common()
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "other.gz").write_bytes(gzip.compress(lines(range(100, 5000)))[:-2000])
    follower = Follower(folder, shared, checkpoint())
    run = asyncio.create_task(
        Delivery(lambda: kafka, checkpoint(), shared.progress, told.append).followed(follower, stop)
    )
    await wait_until(lambda: told, 30)
    (folder / "error.log").write_bytes(lines([7]))
    await wait_until(lambda: kafka.confirmed[-1:] == [7], 30)
    stop.set()
    await run
    assert ["other.gz: cannot be read on after byte" in sentence for sentence in told] == [True]
    assert kafka.confirmed[:100] == list(range(100, 200))


async def test_stopped_while_kafka_is_away_the_checkpoint_stays(tmp_path: Path) -> None:
    """What Kafka never confirmed is read again by the next run."""
    log, saved, kafka, told = tmp_path / "error.log", tmp_path / "saved", _Kafka(), []
    log.write_bytes(lines([1]))
    shared, kept, stop = common(), checkpoint(saved), asyncio.Event()
    run = asyncio.create_task(
        Delivery(lambda: kafka, kept, shared.progress, told.append).followed(Follower(log, shared, kept), stop)
    )
    await wait_until(lambda: kafka.confirmed == [1] and saved.exists())
    kafka.away = True
    with log.open("ab") as writer:
        writer.write(line(2))
    await wait_until(lambda: told)
    stop.set()
    await run
    kafka.away = False
    shared, kept, stop = common(), checkpoint(saved), asyncio.Event()
    run = asyncio.create_task(
        Delivery(lambda: kafka, kept, shared.progress, told.append).followed(Follower(log, shared, kept), stop)
    )
    await wait_until(lambda: kafka.confirmed == [1, 2])
    stop.set()
    await run


async def test_a_slow_kafka_slows_reading(tmp_path: Path) -> None:
    """While Kafka takes nothing more, nothing more is read than a block and what is held for sorting."""
    log, room = tmp_path / "error.log", asyncio.Event()
    log.write_bytes(lines(range(60_000)))

    class _Full(_Kafka):
        async def send(self, record: Decision, /) -> None:
            await super().send(record)
            if len(self.sent) == 100:
                await room.wait()

    kafka, shared, kept = _Full(), common(), checkpoint()
    run = asyncio.create_task(
        Delivery(lambda: kafka, kept, shared.progress, print).whole(WholeLogs(logs_of(log), shared, kept))
    )
    await wait_until(lambda: len(kafka.sent) == 100)
    assert 0 < shared.progress.lines < 10_000
    room.set()
    await run
    assert len(kafka.confirmed) == shared.progress.lines == 60_000


async def test_a_decision_that_is_too_large_stops_nothing(tmp_path: Path) -> None:
    """It is counted, and the others go on."""
    log, kafka = tmp_path / "error.log", _Kafka()
    kafka.too_large = {2}
    log.write_bytes(lines([1, 2, 3]))
    shared, kept = common(), checkpoint()
    await Delivery(lambda: kafka, kept, shared.progress, print).whole(WholeLogs(logs_of(log), shared, kept))
    assert kafka.confirmed == [1, 3]
    assert shared.progress.unmatched.total() == 1
