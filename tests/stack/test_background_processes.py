"""The background publisher in programs that end, fork, and are killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from penaltybox.producers.dispatch import Counters
from tests.stack.offers import arrived, make_topics, of_subject, segments, settings_for

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings
    from tests.servers import AnyBroker

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parents[2]
NOBODY = "127.0.0.1:9"
"""The discard port: nobody listens there."""


def command(settings: Settings, how: str) -> list[str]:
    return [sys.executable, "-m", "tests.stack.offering_process", msgspec.json.encode(settings).decode(), how]


async def run(settings: Settings, how: str, complaint: str = "") -> str:
    """The program's output; it must end well, with one line on standard error if there is something to complain of."""
    done = await asyncio.to_thread(
        subprocess.run, command(settings, how), cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, bool(complaint)), done.stderr
    assert complaint in done.stderr
    return done.stdout


@pytest.mark.parametrize("how", ["plain", "asynchronous", "threaded"])
async def test_what_is_left_is_sent_at_the_end(broker: AnyBroker, tmp_path: Path, how: str) -> None:
    """A program that offers and ends: everything arrives, nothing waits, not a word on standard error."""
    settings = settings_for(broker, tmp_path)
    await make_topics(settings)
    await run(settings, how)
    assert sorted(await arrived(settings)) == sorted(f"d{number}" for number in range(200))
    assert not segments(settings)


async def test_an_end_without_a_broker_is_quick_and_loses_no_refusal(broker: AnyBroker, tmp_path: Path) -> None:
    """Nobody answers at the end: refusals are on disk, the end keeps its deadline, another sends them."""
    settings = settings_for(broker, tmp_path, publisher_stop_s=2)
    start = time.monotonic()
    done = await asyncio.to_thread(
        subprocess.run, command(msgspec.structs.replace(settings, kafka=NOBODY), "plain"),
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1, done.stderr
    assert time.monotonic() - start < 20
    assert len(segments(settings)) == 1
    await make_topics(settings)
    counters = msgspec.json.decode(await run(settings, "adopts"), type=Counters)
    assert (counters.adopted, counters.resent, counters.corrupt) == (1, 200, 0)
    ids = await arrived(settings)
    assert all(of_subject(ids, subject) == list(range(subject, 200, 20)) for subject in range(20))


async def test_killed_with_a_spill_that_is_damaged(broker: AnyBroker, tmp_path: Path) -> None:
    """kill -9 and a file with a cut last line and a line of rubbish: the rest arrives, the two are counted."""
    settings = settings_for(broker, tmp_path)
    process = subprocess.Popen(  # noqa: ASYNC220 - its first line is waited for in a thread
        command(msgspec.structs.replace(settings, kafka=NOBODY), "spills_and_hangs"),
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"spilled\n"
        process.kill()
    (segment,) = segments(settings)
    lines = segment.read_bytes().splitlines(keepends=True)
    lines[100] = b"\x00\xff{rubbish\n"
    segment.write_bytes(b"".join(lines)[:-20])
    await make_topics(settings)
    counters = msgspec.json.decode(await run(settings, "adopts", "a line cannot be read"), type=Counters)
    assert (counters.adopted, counters.resent, counters.corrupt) == (1, 198, 2)
    assert set(await arrived(settings)) == {"a0", *(f"d{number}" for number in range(199) if number != 100)}
    assert not segments(settings)


async def test_a_child_sends_nothing_of_its_parents(broker: AnyBroker, tmp_path: Path) -> None:
    """A process with records in its queue forks three times: each record arrives exactly once, from whoever took it."""
    settings = settings_for(broker, tmp_path)
    await make_topics(settings)
    await run(settings, "forks")
    numbers = [*range(150), *(1000 * child + number for child in (1, 2, 3) for number in range(150))]
    assert sorted(await arrived(settings)) == sorted(f"d{number}" for number in numbers)


async def test_forked_without_a_broker(broker: AnyBroker, tmp_path: Path) -> None:
    """The same while Kafka is away: every process has a file of its own, and all of it is sent exactly once."""
    settings = settings_for(broker, tmp_path, publisher_stop_s=1)
    done = await asyncio.to_thread(
        subprocess.run, command(msgspec.structs.replace(settings, kafka=NOBODY), "forks"),
        cwd=ROOT, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len({path.name.split(".")[0] for path in segments(settings)}) == 4
    await make_topics(settings)
    counters = msgspec.json.decode(await run(settings, "adopts"), type=Counters)
    assert (counters.resent, counters.corrupt) == (600, 0)
    assert len(await arrived(settings)) == 601


async def test_prefork(broker: AnyBroker, tmp_path: Path) -> None:
    """Made before the fork, used after it only, as application servers do: all records of all workers arrive."""
    settings = settings_for(broker, tmp_path)
    await make_topics(settings)
    await run(settings, "preforks")
    assert sorted(await arrived(settings)) == sorted(f"d{number}" for number in range(400))
