"""Leaving a Kafka cluster: what is sent is flushed, and a broker that hangs keeps nobody."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from penaltybox.links.kafka import Connection, stop_producer
from tests.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]


async def producer_of(broker: Any) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(**Connection(broker.bootstrap).client_options(), acks="all", linger_ms=50)
    await producer.start()
    await producer.send_and_wait("leaving", b"first")
    return producer


async def test_what_waits_is_flushed(broker: Any) -> None:
    """A record that lingers is delivered before the connection ends."""
    producer = await producer_of(broker)
    answer = await producer.send("leaving", b"second")
    assert await stop_producer(producer, 20)
    assert (await answer).topic == "leaving"


@pytest.mark.parametrize("requests", [1, 20])
async def test_a_broker_that_hangs_keeps_nobody(private_broker: Any, requests: int) -> None:
    """The end comes at the deadline, the sender hears of it, and no task is left behind."""
    before = asyncio.all_tasks()
    producer = await producer_of(private_broker)
    await asyncio.to_thread(private_broker.pause)
    answers = [await producer.send("leaving", b"lost") for _ in range(requests)]
    await wait_until(lambda: producer._sender._in_flight, 10, "a request on its way")
    began = time.monotonic()
    assert not await stop_producer(producer, 1)
    assert time.monotonic() - began < 1 + 2
    for answer in answers:
        with pytest.raises(KafkaError):
            await answer
    assert asyncio.all_tasks() == before
    await asyncio.to_thread(private_broker.resume)


async def test_who_is_cancelled_while_leaving_leaves_nothing(private_broker: Any) -> None:
    """A deadline of the caller's own ends the stop as well, without a task left behind."""
    before = asyncio.all_tasks()
    producer = await producer_of(private_broker)
    await asyncio.to_thread(private_broker.pause)
    answer = await producer.send("leaving", b"lost")
    with suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await stop_producer(producer, 60)
    with pytest.raises(KafkaError):
        await answer
    assert asyncio.all_tasks() == before
    await asyncio.to_thread(private_broker.resume)
