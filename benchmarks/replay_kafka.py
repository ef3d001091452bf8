"""`replay_kafka`: decisions/s of a replay from the topics, one policy, one process, beside the embedded broker.

Its peer, the raw limit, is aiokafka with msgspec decoding and nothing else, on the same topic.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from benchmarks.penalties_pipeline import raw_limit
from benchmarks.stack import publish, report, stack
from benchmarks.workload import encoded
from penaltybox.cli.replay_job import Job, run_job
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.policy_file import default_policy_path, load_policy

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.replay.loop import Progress

COUNT, WARM = 800_000, 300_000
ROUNDS = 3


async def replaying(settings: Settings) -> float:
    """Decisions/s once all subjects are known."""
    times: list[tuple[float, int]] = []

    def note(far: Progress) -> None:
        times.append((time.perf_counter(), far.decisions))

    await run_job(Job(settings, load_policy(default_policy_path())), report=note)
    begin = next(one for one in times if one[1] >= WARM)
    return (times[-1][1] - begin[1]) / (times[-1][0] - begin[0])


async def main() -> None:
    """Best of three rounds of each mix, both ways in turns."""
    for mix in ("uniform", "zipf"):
        async with stack() as settings:
            await publish(settings, encoded(COUNT, now_ms(), mix=mix))
            found = [(await replaying(settings), await raw_limit(settings, COUNT)) for _ in range(ROUNDS)]
        value, peer = max(one[0] for one in found), max(one[1] for one in found)
        name = "replay_kafka" if mix == "uniform" else f"replay_kafka_{mix}"
        report(name, value, "decisions/s", "aiokafka + msgspec decode alone", peer)


if __name__ == "__main__":
    asyncio.run(main())
