"""`penalties_pipeline`: decisions/s from Kafka through the engine into Redis, one worker process, default policy."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.stack import publish, report, stack
from benchmarks.workload import encoded
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.topics import Topics
from penaltybox.processors.announcements import kafka_sender
from penaltybox.processors.app import Ending, run_app
from penaltybox.processors.penalties import GC_THRESHOLD, make_engine, make_limits, penalties_app
from penaltybox.processors.worker import Worker
from penaltybox.sinks.connections import endpoint_of, open_link
from penaltybox.sinks.redis_store import RedisSubjectStore

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings

WARM = 60_000


async def measure(settings: Settings, count: int) -> tuple[float, float]:
    """Decisions/s, and CPU microseconds of this process per decision, over the last `count` of those published."""
    store = RedisSubjectStore(open_link(endpoint_of(settings)), settings.redis_prefix)
    sender = kafka_sender(settings)
    worker = Worker(
        make_engine(settings),
        store,
        sender,
        Topics.named(settings.topic_prefix),
        wall_ms=now_ms,
        limits=make_limits(settings),
    )
    ending = Ending()
    app = penalties_app(settings, worker, ending)
    measured = asyncio.get_running_loop().create_future()

    async def clock() -> None:
        while worker.acknowledged < WARM:  # noqa: ASYNC110 - the worker is left as it runs in production
            await asyncio.sleep(0.002)
        done, wall, cpu = worker.acknowledged, time.perf_counter(), time.process_time()
        while worker.acknowledged < WARM + count:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        done = worker.acknowledged - done
        measured.set_result((done / (time.perf_counter() - wall), (time.process_time() - cpu) / done * 1e6))
        ending.request()

    await store.join_generation()
    await sender.start()
    try:
        await run_app(app, ending, [worker.write_cycles(), worker.watch_pause(), clock()])
        return measured.result()
    finally:
        await sender.stop()
        await store.close()


async def main(mix: str, count: int) -> None:
    """Publish, then measure with nothing else running."""
    async with stack() as settings:
        await publish(settings, encoded(count + WARM, now_ms(), mix=mix))
        gc.collect()
        gc.freeze()
        rate, cpu = await measure(settings, count)
        report("penalties_pipeline" + ("" if mix == "uniform" else f"_{mix}"), rate, "decisions/s")
        report("penalties_pipeline_cpu" + ("" if mix == "uniform" else f"_{mix}"), cpu, "us/decision")


if __name__ == "__main__":
    gc.set_threshold(*GC_THRESHOLD)
    asyncio.run(
        main(sys.argv[1] if len(sys.argv) > 1 else "uniform", int(sys.argv[2]) if len(sys.argv) > 2 else 300_000)
    )
