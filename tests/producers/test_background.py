"""The background publisher's promise to its caller, with nobody listening: it never waits, never raises, counts all."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Decision
from penaltybox.contracts.settings import Settings
from penaltybox.producers.background import BackgroundPublisher
from penaltybox.producers.loop_thread import LoopThread
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALLOWED = Decision(v=1, id="a", ts=1, source="t/1", action="allow", subjects={"user": "u"})
DENIED = Decision(
    v=1, id="d", ts=1, source="t/1", action="deny", reason="over_limit", violated=("user:x",), subjects={"user": "u"}
)


@pytest.fixture
def nowhere(tmp_path: Path) -> Iterator[Settings]:
    """Settings of a Kafka that is not there."""
    with socket.socket() as closed:  # bound and not listening: a port where nobody answers
        closed.bind(("127.0.0.1", 0))
        yield Settings(kafka=f"127.0.0.1:{closed.getsockname()[1]}", spill_dir=str(tmp_path), publisher_buffer=100)


@pytest.fixture
def looped() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.stop()


def test_nothing_is_started_before_the_first_record(nowhere: Settings, looped: LoopThread) -> None:
    """Made and closed without a record: no thread, no connection, no file."""
    with BackgroundPublisher(nowhere, loop=looped):
        pass
    assert not looped.running


def test_a_full_queue(nowhere: Settings, looped: LoopThread) -> None:
    """With the thread held up the queue stays bounded: allows go first, refusals have as much room again."""
    with BackgroundPublisher(nowhere, loop=looped, linger_ms=60_000) as publisher:
        for _ in range(150):
            publisher.offer(ALLOWED)
        for _ in range(150):
            publisher.offer(DENIED)
        assert len(publisher._queue) == 200
        assert (publisher.counters.offered, publisher.counters.dropped) == (300, 100)
    got = publisher.counters
    assert (got.offered, got.dropped, got.spilled, got.published) == (300, 200, 100, 0)


def test_after_the_end(nowhere: Settings, looped: LoopThread) -> None:
    """A record that comes after `close` is dropped and counted; `close` may be called again."""
    publisher = BackgroundPublisher(nowhere, loop=looped)
    publisher.offer(DENIED)
    publisher.close()
    publisher.offer(DENIED)
    assert publisher.close()
    got = publisher.counters
    assert (got.offered, got.spilled, got.dropped) == (2, 1, 1)


def test_the_end_of_the_loop_is_the_publishers_end(nowhere: Settings, looped: LoopThread) -> None:
    """When the loop thread is stopped, as at the end of a process, what was offered is safe before it ends."""
    publisher = BackgroundPublisher(nowhere, loop=looped, linger_ms=60_000)
    publisher.offer(DENIED)
    looped.stop()
    assert publisher.counters.spilled == 1
    assert publisher._closed


def test_a_disk_that_takes_nothing(nowhere: Settings, looped: LoopThread, tmp_path: Path) -> None:
    """Neither Kafka nor a directory to write: refusals are dropped and counted, and nothing else happens."""
    (tmp_path / nowhere.topic_prefix).write_text("in the way", encoding="utf-8")
    with BackgroundPublisher(nowhere, loop=looped, linger_ms=1) as publisher:
        publisher.offer(DENIED)
        block_until(lambda: publisher.counters.dropped == 1)
        publisher.offer(ALLOWED)
        assert publisher.flush(10)
        assert publisher.counters.dropped == 2


def test_a_mistake_in_the_settings_is_told_at_once() -> None:
    """What can be seen without a broker is an error where the publisher is made, not a line in a log later."""
    with pytest.raises(ConfigurationError, match="PENALTYBOX_KAFKA_USERNAME"):
        BackgroundPublisher(Settings(kafka_security_protocol="SASL_PLAINTEXT"))
