"""What publishing a decision costs a request: the time of `offer` on its path, and the CPU it takes from the process.

An async program answers requests at a steady rate and offers one decision each, to a real broker on this machine. The
same program runs with a publisher that does nothing; the difference of the two's CPU time, over the requests, is what
publishing takes in all: on the request's path and on the publisher's thread, which shares the interpreter with it.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from benchmarks.stack import report, stack
from penaltybox.contracts.events import Decision
from penaltybox.producers.background import BackgroundPublisher
from penaltybox.producers.sealed import Sealer

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.settings import Settings

RATES = (500, 2000)
SECONDS = 4
ROUNDS = 5
BOUND_US = 30
TICK_S = 0.005
DECISION = Decision(
    v=1, id="01K3ZB5Q0V7M2X8R4T6Y9WABCD", ts=1766400000123, source="checkout/edge-1", scenario="coupon_claim",
    action="allow", subjects={"user": "10086", "device": "a1b2c3d4", "ip": "203.0.113.7"}, established=True,
    route="POST /coupons/{id}/claim", status=200, limit=10, window_s=86400, remaining=7,
)  # fmt: skip


class Run(NamedTuple):
    """One round: microseconds of CPU per request, of `offer` in the middle and at the 99th percentile."""

    cpu_us: float
    offer_us: float
    offer_p99_us: float


def main() -> None:
    """Print JSON lines."""
    asyncio.run(measure())


async def measure() -> None:
    """Rounds with and without publishing take turns, so that both see the same machine."""
    with tempfile.TemporaryDirectory() as folder:
        async with stack(spill_dir=folder) as settings:
            for rate in RATES:
                await _at_rate(settings, rate)
    _report_sealing(settings)


async def _at_rate(settings: Settings, rate: int) -> None:
    decisions = [
        msgspec.structs.replace(
            DECISION, id=f"{number:026}", action="deny" if number % 10 == 0 else "allow",
            reason="over_limit" if number % 10 == 0 else None, violated=("user:daily",) if number % 10 == 0 else (),
            subjects={"user": str(number % 5000), "device": f"d{number % 6000}", "ip": f"203.0.{number % 99}.7"},
        )
        for number in range(rate * SECONDS)
    ]  # fmt: skip
    publishing, idle = [], []
    async with BackgroundPublisher(settings) as publisher:
        await _requests(publisher.offer, decisions[:rate], rate)  # connected, warm
        for _ in range(ROUNDS):
            publishing.append(await _requests(publisher.offer, decisions, rate))
            await asyncio.to_thread(publisher.flush)
            idle.append(await _requests(lambda _: None, decisions, rate))
        counters = publisher.counters
    if counters.published != counters.offered:
        raise AssertionError(f"not everything was published: {counters}")
    cpu_us = statistics.median(run.cpu_us for run in publishing) - statistics.median(run.cpu_us for run in idle)
    note = f"bound, at {rate}/s"
    report("publish_overhead_us", cpu_us, "us of CPU per request, all threads", note, BOUND_US)
    report("publish_offer_us", statistics.median(run.offer_us for run in publishing), "us on its path", note, BOUND_US)
    p99_us = statistics.median(run.offer_p99_us for run in publishing)
    report("publish_offer_p99_us", p99_us, "us on its path, 99th percentile", note, BOUND_US)


async def _requests(offer: Callable[[Decision], None], decisions: list[Decision], rate: int) -> Run:
    """Offers at a steady rate, a few in each tick of the loop."""
    loop = asyncio.get_running_loop()
    took: list[int] = []
    gc.collect()
    cpu, start, done = time.process_time(), loop.time(), 0
    while done < len(decisions):
        await asyncio.sleep(TICK_S)
        due = min(int((loop.time() - start) * rate), len(decisions))
        for decision in decisions[done:due]:
            before = time.perf_counter_ns()
            offer(decision)
            took.append(time.perf_counter_ns() - before)
        done = due
    cpu_us = (time.process_time() - cpu) * 1e6 / len(decisions)
    took.sort()
    return Run(cpu_us, statistics.mean(took) / 1000, took[len(took) * 99 // 100] / 1000)


def _report_sealing(settings: Settings) -> None:
    """What `offer` would take in addition if it encoded: the reason why the publisher's thread does."""
    sealer = Sealer(settings)
    sealer.seal(DECISION)
    start = time.perf_counter()
    for _ in range(20_000):
        sealer.seal(DECISION)
    report("publish_seal_us", (time.perf_counter() - start) * 1e6 / 20_000, "us to key and encode a decision")


if __name__ == "__main__":
    main()
