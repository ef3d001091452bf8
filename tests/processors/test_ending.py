from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from penaltybox.processors.ending import Ending, LastResort, unended


async def test_work_that_is_done_in_time_is_done() -> None:
    """`outrun` says so, and an error of the work is raised."""
    ending = Ending()
    assert await ending.outrun(asyncio.sleep(0), "nothing")
    with pytest.raises(OSError, match="away"):
        await ending.outrun(_failing(), "nothing")


async def _failing() -> None:
    raise OSError("away")


@pytest.mark.parametrize("obedient", [True, False])
async def test_the_end_outruns_work_that_hangs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, obedient: bool
) -> None:
    """Work is called off when the end comes, not waited for even if it refuses, and named in the log."""
    monkeypatch.setattr("penaltybox.processors.ending.LET_GO_S", 0.05)
    ending, released = Ending(), asyncio.Event()

    async def hang() -> None:
        try:
            await released.wait()
        except asyncio.CancelledError:
            if obedient:
                raise
            await released.wait()

    asyncio.get_running_loop().call_soon(ending.request)
    with caplog.at_level(logging.WARNING):
        assert not await ending.outrun(hang(), "the start of something")
    assert "Ending without waiting for the start of something" in caplog.text
    released.set()


async def test_the_end_begins_once_and_the_first_error_counts() -> None:
    """What hears of the beginning hears of it once, whoever asks for the end how often."""
    begun: list[int] = []
    ending = Ending(lambda: begun.append(1))
    ending.request()
    first = OSError("first")
    ending.fail(first)
    ending.fail(OSError("second"))
    await ending.wait()
    assert (begun, ending.error) == ([1], first)


def test_a_process_that_hangs_is_left_and_says_what_hung(caplog: pytest.LogCaptureFixture) -> None:
    """At its limit the last resort ends the process with 1 and names the threads that were not waited for."""
    release, left, codes = threading.Event(), threading.Event(), list[int]()
    stuck = threading.Thread(target=release.wait, name="answer-of-clickhouse")
    stuck.start()

    def end(code: int) -> None:
        codes.append(code)
        left.set()

    with caplog.at_level(logging.WARNING):
        LastResort(0.01, end).begin()
        assert left.wait(30)
    assert codes == [1]
    assert "answer-of-clickhouse" in caplog.text
    release.set()
    stuck.join()
    assert "answer-of-clickhouse" not in " ".join(unended())


def test_what_is_left_when_all_is_done_has_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `hurry` it does not take the whole limit; a process that nobody told to end is left alone."""
    monkeypatch.setattr("penaltybox.processors.ending.LET_GO_S", 0.01)
    left, codes = threading.Event(), list[int]()

    def end(code: int) -> None:
        codes.append(code)
        left.set()

    LastResort(0.01, end).hurry(1)
    resort = LastResort(3600, end)
    resort.begin()
    resort.hurry(0)
    assert left.wait(30)
    assert codes == [0]
