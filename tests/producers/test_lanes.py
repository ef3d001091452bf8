"""Lanes with a client whose answers the test gives: one partition's trouble is its own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import LeaderNotAvailableError, MessageSizeTooLargeError
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder

from penaltybox.producers import lanes as module
from penaltybox.producers.lanes import Lanes
from penaltybox.producers.sealed import Sealed
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence


class Client:
    """As much of AIOKafkaProducer as the lanes use: two partitions, answers by hand, batches of at most 4 KiB."""

    def __init__(self) -> None:
        self.partitions: set[int] | None = {0, 1}
        self.client = SimpleNamespace(cluster=SimpleNamespace(partitions_for_topic=lambda _: self.partitions))
        self.sent: list[tuple[int, int, asyncio.Future[None]]] = []
        self.limit = 1_000_000

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(4096, 0, is_transactional=False)

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> asyncio.Future[None]:
        assert topic == "t"
        answer = asyncio.get_running_loop().create_future()
        if batch.record_count() > self.limit:
            answer.set_exception(MessageSizeTooLargeError())
        self.sent.append((partition, batch.record_count(), answer))
        return answer

    def answer(self, partition: int, error: Exception | None = None) -> None:
        """All that is open on a partition."""
        for number, _, answer in self.sent:
            if number == partition and not answer.done():
                answer.set_result(None) if error is None else answer.set_exception(error)


class Ledger:
    """Writes down what the lanes give back."""

    def __init__(self) -> None:
        self.published = 0
        self.left: list[Sealed] = []
        self.failed = 0
        self.troubles: list[tuple[type[BaseException], bool]] = []

    def confirmed(self, count: int) -> None:
        self.published += count

    def unsent(self, records: Sequence[Sealed]) -> None:
        self.left += records

    def refused(self, count: int, error: BaseException) -> None:
        assert isinstance(error, MessageSizeTooLargeError)
        self.failed += count

    def stuck(self, error: BaseException, *, alone: bool) -> None:
        self.troubles.append((type(error), alone))


def key_on(partition: int) -> bytes:
    return next(key for key in (b"user:%d" % n for n in range(99)) if (murmur2(key) & 0x7FFFFFFF) % 2 == partition)


def records(partition: int, count: int, *, kept: bool) -> list[Sealed]:
    return [Sealed("t", key_on(partition), b"%d" % number, kept) for number in range(count)]


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


async def test_a_partition_without_a_leader_is_its_own_trouble(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition never answers: its refusals are handed back soon, the other partition's records go on."""
    monkeypatch.setattr(module, "SECURE_S", 0.05)
    lanes = Lanes(client, ledger, 100)
    lanes.put([*records(0, 3, kept=True), *records(0, 4, kept=False), *records(1, 5, kept=True)])
    await wait_until(lambda: len(client.sent) == 2)
    client.answer(1)
    await wait_until(lambda: ledger.published == 5)

    def secured() -> bool:
        lanes.sweep()
        return len(ledger.left) == 3

    await wait_until(secured)
    assert all(record.kept for record in ledger.left)
    lanes.put(records(0, 1, kept=True))
    assert len(ledger.left) == 4, "a slow lane takes no refusals: disk is safer"
    lanes.put(records(1, 1, kept=True))
    await wait_until(lambda: len(client.sent) == 3)
    client.answer(1)
    await wait_until(lambda: ledger.published == 6)
    client.answer(0, LeaderNotAvailableError())
    await wait_until(lambda: ledger.troubles)
    assert ledger.troubles == [(LeaderNotAvailableError, True)]
    assert (len(ledger.left), lanes.held) == (8, 0)


async def test_a_failed_lane_rests_and_is_tried_with_one_record(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure the lane hands everything back for a while; then one record tries it, and success opens it."""
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    lanes = Lanes(client, ledger, 100)
    lanes.put(records(0, 2, kept=False))
    await wait_until(lambda: client.sent)
    client.answer(0, LeaderNotAvailableError())
    await wait_until(lambda: len(ledger.left) == 2)
    assert ledger.troubles == [(LeaderNotAvailableError, False)]
    lanes.put(records(0, 3, kept=False))
    assert len(ledger.left) == 5
    now += module.FIRST_REST_S
    lanes.put(records(0, 3, kept=False))
    assert (len(ledger.left), lanes.held) == (7, 1)
    await wait_until(lambda: len(client.sent) == 2)
    client.answer(0)
    await wait_until(lambda: ledger.published == 1)
    lanes.put(records(0, 3, kept=False))
    assert lanes.held == 3
    lanes.abandon()


async def test_a_topic_that_takes_small_batches(client: Client, ledger: Ledger) -> None:
    """A batch that is refused as too large is sent in halves; what is too large alone fails, and only that."""
    client.limit = 3
    lanes = Lanes(client, ledger, 100)
    lanes.put(records(0, 8, kept=True))

    def answered() -> bool:
        client.answer(0)
        return ledger.published == 8

    await wait_until(answered)
    assert [count for _, count, _ in client.sent] == [8, 4, 2, 2, 4, 2, 2]
    client.limit = 0
    lanes.put(records(0, 2, kept=True))
    await wait_until(lambda: ledger.failed == 2)
    assert (ledger.published, ledger.left, lanes.held) == (8, [], 0)


async def test_room_is_bounded(client: Client, ledger: Ledger) -> None:
    """No more records than there is room for, and half of it for one partition; the rest is handed back at once."""
    lanes = Lanes(client, ledger, 10)
    lanes.put(records(0, 20, kept=False))
    assert (lanes.held, len(ledger.left)) == (5, 15)
    lanes.put(records(1, 20, kept=False))
    assert lanes.held == 10
    assert len(lanes.abandon()) == 10
    assert lanes.held == 0


async def test_a_topic_that_is_gone(client: Client, ledger: Ledger) -> None:
    """No partitions are known any more: everything is handed back and the trouble told."""
    lanes = Lanes(client, ledger, 10)
    client.partitions = None
    lanes.put(records(0, 2, kept=True))
    assert len(ledger.left) == 2
    assert ledger.troubles
    assert await lanes.deliver(records(0, 2, kept=True)) == (0, records(0, 2, kept=True))


async def test_deliver_gives_back_what_failed(client: Client, ledger: Ledger) -> None:
    """Sending beside the lanes: the failed partition's records come back, nothing goes to the ledger."""
    lanes = Lanes(client, ledger, 10)
    sending = asyncio.ensure_future(lanes.deliver([*records(0, 300, kept=True), *records(1, 2, kept=True)]))
    await wait_until(lambda: len(client.sent) == 2)
    client.answer(1)
    client.answer(0)
    await wait_until(lambda: len(client.sent) == 3)
    client.answer(0, LeaderNotAvailableError())
    confirmed, left = await sending
    assert confirmed == client.sent[0][1] + 2
    assert left == records(0, 300, kept=True)[client.sent[0][1] :]
    assert (ledger.left, ledger.published) == ([], 0)
