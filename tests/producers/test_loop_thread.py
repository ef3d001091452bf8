"""The process's loop thread: made when needed, again after a fork, ended with a deadline."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penaltybox.producers.loop_thread import LoopThread

ROOT = Path(__file__).parents[2]


async def thread_name() -> str:
    return threading.current_thread().name


async def forever() -> None:
    await asyncio.Event().wait()


def test_runs_coroutines_of_many_threads() -> None:
    """Coroutines of several threads run on one loop, and their results and errors come back."""
    looped = LoopThread()
    loops = []

    async def which() -> None:
        loops.append(asyncio.get_running_loop())

    async def fails() -> None:
        raise ValueError("told")

    threads = [threading.Thread(target=looped.run, args=(which(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loops) == 8
    assert len(set(loops)) == 1
    assert looped.run(thread_name()) == "penaltybox-loop"
    with pytest.raises(ValueError, match="told"):
        looped.run(fails())
    looped.stop()
    assert loops[0].is_closed()


def test_a_timeout_cancels() -> None:
    """What takes longer than its timeout is cancelled on the loop and is a TimeoutError in the thread."""
    looped, seen = LoopThread(), threading.Event()

    async def slow() -> None:
        try:
            await forever()
        finally:
            seen.set()

    with pytest.raises(TimeoutError):
        looped.run(slow(), timeout=0.02)
    assert seen.wait(5)
    looped.stop()


def test_waiting_for_itself_is_refused() -> None:
    """`run` on the loop's own thread would wait for ever; it is an error instead."""
    looped = LoopThread()

    async def nested() -> None:
        looped.run(thread_name())

    with pytest.raises(RuntimeError, match="await the coroutine there instead"):
        looped.run(nested())
    looped.stop()


def test_stop_ends_tasks_and_the_next_use_starts_anew() -> None:
    """Farewells come first, last registered first called; open tasks are cancelled; then a new loop can be had."""
    looped, said = LoopThread(), []
    first = looped.loop()
    task = looped.submit(forever())
    for word in ("first", "second"):
        looped.at_exit(lambda word=word: said.append((word, task.done())))

    def broken() -> None:
        raise OSError("not today")

    looped.at_exit(broken)
    looped.stop()
    assert said == [("second", False), ("first", False)]
    assert task.cancelled()
    assert not looped.running
    assert looped.run(thread_name()) == "penaltybox-loop"
    assert looped.loop() is not first
    looped.stop()


def test_stop_does_not_wait_for_a_blocked_loop() -> None:
    """A task that blocks the loop holds `stop` up until its deadline, no longer."""
    looped, release = LoopThread(), threading.Event()

    async def blocking() -> None:
        release.wait(20)

    looped.submit(blocking())
    thread = looped._thread
    looped.stop(deadline_s=0.05)
    assert thread is not None
    assert thread.is_alive()
    release.set()
    thread.join(10)


def test_it_resolves_names() -> None:
    """A name is looked up in a daemon thread of the loop's own."""
    looped = LoopThread()

    async def resolve() -> list[object]:
        return list(await asyncio.get_running_loop().getaddrinfo("localhost", 80))

    assert looped.run(resolve(), 10)
    looped.stop()


FORK = """
import asyncio, os, sys, threading
from penaltybox.producers.loop_thread import PROCESS_LOOP, run

async def name():
    return threading.current_thread().name

async def tick():
    while True:
        await asyncio.sleep(0.001)

assert run(name()) == "penaltybox-loop"
ticking = PROCESS_LOOP.submit(tick())
parents = PROCESS_LOOP.loop()
PROCESS_LOOP.at_exit(lambda: print("farewell of", "parent" if os.getpid() == main else "child", flush=True))
main = os.getpid()
child = os.fork()
if child == 0:
    assert not PROCESS_LOOP.running
    assert run(name(), 10) == "penaltybox-loop"
    assert PROCESS_LOOP.loop() is not parents
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert run(name(), 10) == "penaltybox-loop"   # the child's end did not disturb it
assert PROCESS_LOOP.loop() is parents and not ticking.done()
"""


def test_a_forked_child_has_a_loop_of_its_own() -> None:
    """After a fork the child starts a new loop, the parent's goes on, and farewells are said once, by the parent."""
    done = subprocess.run(
        [sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "farewell of parent\n", "")
