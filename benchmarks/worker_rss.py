"""`worker_rss_1m_mb`: memory of a worker process after a million subjects, and its rate on the usual mix then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import redis.asyncio

from benchmarks.pipeline_process import run
from benchmarks.stack import caught_up, publish, report, stack
from benchmarks.workload import encoded
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Decision, encode
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.sinks.redis_store import RedisSubjectStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.contracts.settings import Settings

SUBJECTS = 1_000_000
WARM = 100_000
"""Decisions of the mix before measuring, as in `penalties_pipeline`: its 58,000 subjects are new to the worker."""
COUNT = 300_000
CHUNK = 20_000


def strangers(count: int, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Denied claims, each by a user, a device and an address that nobody has seen: three subjects a decision."""
    for number in range(count):
        decision = Decision(
            v=1,
            id=f"01K3ZB5Q0W{number:016d}",
            ts=at - (count - number) // 100,
            source="checkout/edge-1",
            scenario="coupon_claim",
            action="deny",
            reason="over_limit",
            violated=("user:daily",),
            subjects={
                "user": f"s{number}",
                "device": f"sd-{number}",
                "ip": f"172.{16 + (number >> 16)}.{number >> 8 & 255}.{number & 255}",
            },
            attrs={"address": f"sa{number}"},
        )
        yield f"user:s{number}".encode(), encode(decision)


async def _no_rewriting(settings: Settings) -> None:
    """Redis shares the two cores here; rewriting a file of a million fresh states is not what is measured."""
    client = redis.asyncio.Redis.from_url(settings.redis_url)
    await client.config_set("auto-aof-rewrite-percentage", 0)
    await client.aclose()


async def main() -> None:
    """Publish a million subjects and then the usual mix; measure over the mix."""
    async with stack() as settings:
        await _no_rewriting(settings)
        at = now_ms()
        pending: list[tuple[bytes, bytes]] = []
        count = -(-SUBJECTS // 3)
        for message in strangers(count, at):
            pending.append(message)
            if len(pending) == CHUNK:
                await publish(settings, pending)
                pending = []
        await publish(settings, pending)
        running = asyncio.create_task(run(settings, count + WARM, COUNT))
        await caught_up(settings, count)
        # The mix comes when all strangers are through, and all at once: the sender takes no part in the measurement.
        store = RedisSubjectStore(open_link(endpoint_of(settings)), settings.redis_prefix)
        await store.pause("the mix is being published", "benchmark", now_ms())
        await publish(settings, encoded(WARM + COUNT, now_ms()))
        await store.resume()
        await store.close()
        found = await running
    report("worker_rss_1m_mb", found["rss_mb"], "MB", "the bar", 600)
    report("worker_rss_1m_rate", found["rate"], "decisions/s")
    report("worker_rss_1m_cpu", found["cpu_us"], "us/decision")


if __name__ == "__main__":
    asyncio.run(main())
