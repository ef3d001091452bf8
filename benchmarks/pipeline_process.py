"""A worker process as it runs in production, which stops after a number of decisions and prints what it measured.

Arguments: settings as JSON, decisions to pass before measuring, decisions to measure. Output: one JSON line
{"rate", "cpu_us", "rss_mb"}.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

import msgspec

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.processors.announcements import kafka_sender
from penaltybox.processors.app import run_app
from penaltybox.processors.ending import Ending
from penaltybox.processors.garbage import keep_collecting
from penaltybox.processors.generations import join
from penaltybox.processors.huge_pages import keep_advising
from penaltybox.processors.penalties import make_engine, make_limits, penalties_app, tune_process
from penaltybox.processors.worker import Worker
from penaltybox.sinks.redis_store import RedisSubjectStore


async def measure(settings: Settings, warm: int, count: int) -> dict[str, float]:
    """Rate, CPU time a decision and resident memory over `count` decisions after `warm`."""
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
    found: dict[str, float] = {}

    async def watch() -> None:
        while worker.acknowledged < warm:  # noqa: ASYNC110 - the worker is left as it runs in production
            await asyncio.sleep(0.005)
        done, wall, cpu = worker.acknowledged, time.perf_counter(), time.process_time()
        while worker.acknowledged < warm + count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        done = worker.acknowledged - done
        found["rate"] = done / (time.perf_counter() - wall)
        found["cpu_us"] = (time.process_time() - cpu) / done * 1e6
        found["rss_mb"] = rss_mb()
        ending.request()

    await sender.start()
    try:
        await join(store, sender, settings, now_ms())
        await run_app(
            app, ending, [worker.write_cycles(), worker.watch_pause(), keep_advising(), keep_collecting(), watch()]
        )
    finally:
        await sender.stop()
        await store.close()
    return found


def rss_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6


async def run(settings: Settings, warm: int, count: int) -> dict[str, float]:
    """Run this module as a process of its own; what it measured."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.pipeline_process",
        json.dumps(msgspec.to_builtins(settings)),
        str(warm),
        str(count),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the worker process ended with {process.returncode}")
    return dict(json.loads(output))


def main() -> None:
    """Measure and print."""
    tune_process()
    settings = msgspec.convert(json.loads(sys.argv[1]), Settings)
    gc.collect()
    print(json.dumps(asyncio.run(measure(settings, int(sys.argv[2]), int(sys.argv[3])))), flush=True)


if __name__ == "__main__":
    main()
