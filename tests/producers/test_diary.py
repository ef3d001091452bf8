"""What the publisher logs: never two lines within a minute, a mistake once, other programs' lines untouched."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.producers.diary import Diary, Mistakes, silence_client

if TYPE_CHECKING:
    from collections.abc import Iterator

AWAY = StoreUnavailable("Kafka at k:1 does not answer")


@pytest.fixture
def diary() -> Diary:
    return Diary("Refusals wait", lambda: "So far: 7")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_an_outage(diary: Diary, caplog: pytest.LogCaptureFixture) -> None:
    """Told when it begins, once a minute while it lasts, and when it is over."""
    for second in range(1, 150):
        diary.trouble(AWAY, second)
    assert said(caplog) == [
        "Kafka at k:1 does not answer. It is tried again. Refusals wait.",
        "Kafka at k:1 does not answer. It is tried again. So far: 7.",
        "Kafka at k:1 does not answer. It is tried again. So far: 7.",
    ]
    diary.over(200)
    assert said(caplog) == ["Kafka takes records again, after 199 s. So far: 7."]


def test_coming_and_going(diary: Diary, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that comes and goes every second makes a line a minute, and the last one tells how it is."""
    for second in range(120):
        diary.trouble(AWAY, second)
        diary.over(second + 0.5)
    diary.tick(180)
    lines = said(caplog)
    assert len(lines) == 3
    assert "again, after" in lines[-1]


def test_a_mistake_is_told_once(diary: Diary, caplog: pytest.LogCaptureFixture) -> None:
    """A missing topic is told once, as an error; another mistake is told again."""
    for second in range(0, 1000, 10):
        diary.trouble(ConfigurationError("no topic; run `penaltybox setup` once"), second)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    diary.trouble(ConfigurationError("no permission"), 2000)
    assert len(said(caplog)) == 2


def test_single_mishaps(caplog: pytest.LogCaptureFixture) -> None:
    """Many bad records make one line a minute, which counts those that were not told."""
    mistakes = Mistakes()
    for second in range(61):
        mistakes.tell(f"bad {second}", second)
    assert said(caplog) == ["bad 0", "bad 60 (59 more since the last line)"]


@pytest.fixture
def client_log() -> Iterator[logging.Logger]:
    yield logging.getLogger("aiokafka.conn")
    silence_client(None)


def test_only_our_threads_client_is_silent(client_log: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    """The client's complaints on our thread are kept for our own sentence; other threads' are heard."""
    silence = silence_client(threading.get_ident())
    assert silence_client(threading.get_ident()) is silence
    error = OSError("refused")
    client_log.error("Unable connect to %s: %s", "k:1", error)
    assert said(caplog) == []
    assert silence.error is error
    other = threading.Thread(target=client_log.error, args=("somebody else's",))
    other.start()
    other.join()
    assert said(caplog) == ["somebody else's"]
