"""Reading a topic to its end: what a broker that hangs makes of it."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.settings import Settings
from penaltybox.processors import topic_log
from penaltybox.processors.topic_log import read_topic


async def test_a_broker_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are accepted and nothing comes back: reading ends with the first deadline."""
    monkeypatch.setattr(topic_log, "ANSWER_MS", 300)

    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel accepts, as for a process that is stopped
        settings = Settings(kafka=f"127.0.0.1:{server.getsockname()[1]}")
        async with asyncio.timeout(30):
            with pytest.raises(KafkaConnectionError):
                _ = [record async for record in read_topic(settings, "any")]


def test_records_that_stop_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence ends in a sentence only where more is to come, and only when nothing moved for all of it."""
    now = [100.0]
    monkeypatch.setattr(topic_log.time, "monotonic", lambda: now[0])
    patience = topic_log.Patience("localhost:1")
    waiting = [TopicPartition("t", 1), TopicPartition("t", 0)]
    now[0] += topic_log.SILENCE_S - 1
    patience.check(waiting)
    patience.moved()
    now[0] += topic_log.SILENCE_S - 1
    patience.check(waiting)
    now[0] += 2
    patience.check([])
    with pytest.raises(StoreUnavailable, match=r"localhost:1 has sent nothing for 10 s, though t, partition 0 goes on"):
        patience.check(waiting)
