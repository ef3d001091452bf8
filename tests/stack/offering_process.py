"""A program that offers records and ends in some way: `offering_process.py SETTINGS HOW`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

import msgspec

from penaltybox.contracts.settings import Settings
from penaltybox.producers.background import BackgroundPublisher
from tests.stack.offers import allowed, denied

publisher = BackgroundPublisher(msgspec.json.decode(sys.argv[1], type=Settings, strict=False))


def offer(start: int, stop: int) -> None:
    for number in range(start, stop):
        publisher.offer(denied(number))


def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]
        time.sleep(0.01)


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def plain() -> None:
    """Offers and ends at once."""
    offer(0, 200)


def asynchronous() -> None:
    """The same on an event loop, which is closed when the process ends."""

    async def main() -> None:
        offer(0, 200)

    asyncio.run(main())


def threaded() -> None:
    """A thread goes on when the main one has ended."""
    end = threading.main_thread()

    def late() -> None:
        end.join()
        offer(100, 200)

    offer(0, 100)
    threading.Thread(target=late).start()


def spills_and_hangs() -> None:
    """Spills everything, says so, and waits to be killed."""
    offer(0, 200)
    until(lambda: publisher.counters.spilled == 200)
    tell("spilled")
    sys.stdin.read()


def forks() -> None:
    """A parent with records in its queue, in flight and in its spill forks; both go on, both end."""
    offer(0, 50)
    assert publisher.flush(30)
    offer(50, 100)
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            assert publisher.counters.offered == 0
            offer(1000 * (number + 1), 1000 * (number + 1) + 100)
            assert publisher.flush(30)
            offer(1000 * (number + 1) + 100, 1000 * (number + 1) + 150)
            sys.exit(0)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    offer(100, 150)
    assert publisher.flush(30)
    assert publisher.counters.published + publisher.counters.spilled == 150


def preforks() -> None:
    """As an application server that loads the application first: the parent offers nothing, its children do."""
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            offer(100 * number, 100 * (number + 1))
            sys.exit(0)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not publisher._loop.running


def adopts() -> None:
    """Sends what others left, and one record of its own."""
    publisher.offer(allowed(0))
    until(lambda: publisher.counters.adopted and not publisher.counters.spilled_bytes)
    tell(msgspec.json.encode(publisher.counters).decode())


if __name__ == "__main__":
    globals()[sys.argv[2]]()
