"""`block_latency_p99_ms`: from publishing the decision that trips a rule until the block is in Redis.

Open loop: 10,000 decisions/s of the usual mix whatever the worker does, 40 device farms a second among them; the
fourth account on a device trips. The worker is a process with the same settings as in `penalties_pipeline`. Seen
through the store's own announcement, which a bouncer's cache listens to as well.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import redis.asyncio
from aiokafka import AIOKafkaProducer

from benchmarks.stack import caught_up, publish, report, stack
from benchmarks.workload import encoded
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Decision, encode
from penaltybox.contracts.topics import Topics

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings

RATE = 10_000
TICK_S = 0.01
SECONDS = 20
FARMS_A_TICK = 0.4
WARM = 150_000
"""Decisions before the clock runs: every device of the mix has met its own step then."""
PATIENCE_S = 60


def farm(number: int) -> list[tuple[bytes, bytes]]:
    """Four accounts that claim on one new device; the last one trips the rule."""
    claims = []
    for account in range(4):
        user = f"farm{number}-{account}"
        decision = Decision(
            v=1,
            id=f"farm{number:08d}-{account}",
            ts=now_ms() - 4 + account,
            source="checkout/edge-1",
            scenario="coupon_claim",
            action="allow",
            subjects={"user": user, "device": f"farm-{number}", "ip": f"192.168.{number >> 8 & 255}.{number & 255}"},
        )
        claims.append((f"device:farm-{number}".encode(), encode(decision)))
    return claims


class Load:
    """Publishes at a fixed rate and notes when each farm's last claim was sent."""

    def __init__(self, settings: Settings) -> None:
        self._topic = Topics.named(settings.topic_prefix).decisions
        self._producer = AIOKafkaProducer(bootstrap_servers=settings.kafka, acks="all", linger_ms=2)
        self.sent: dict[str, float] = {}
        self.behind_s = 0.0

    async def run(self, seconds: int) -> None:
        """Send for so many seconds, open loop: what is late is sent at once, never left out."""
        background = encoded(RATE * seconds, now_ms() + seconds * 1000, first=WARM)
        await self._producer.start()
        start, farms = time.perf_counter(), 0.0
        per_tick = int(RATE * TICK_S)
        try:
            for tick in range(int(seconds / TICK_S)):
                wait_s = start + tick * TICK_S - time.perf_counter()
                self.behind_s = max(self.behind_s, -wait_s)
                await asyncio.sleep(max(0.0, wait_s))
                for key, value in background[tick * per_tick : (tick + 1) * per_tick]:
                    await self._producer.send(self._topic, value, key=key)
                farms += FARMS_A_TICK
                while farms >= 1:
                    farms -= 1
                    await self._send_farm(len(self.sent))
            await self._producer.flush()
        finally:
            await self._producer.stop()

    async def _send_farm(self, number: int) -> None:
        for key, value in farm(number):
            await self._producer.send(self._topic, value, key=key)
        self.sent[f"device:farm-{number}"] = time.perf_counter()


async def listen(settings: Settings, seen: dict[str, float]) -> None:
    """Note when each subject's block was announced."""
    client = redis.asyncio.Redis.from_url(settings.redis_url)
    channel = client.pubsub()
    await channel.subscribe(f"{settings.redis_prefix}:events")
    async for message in channel.listen():
        if message["type"] == "message":
            seen.setdefault(message["data"].decode(), time.perf_counter())


async def main() -> None:
    """Run worker, listener and load; report the 50th and 99th percentile."""
    async with stack() as settings:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, json.dumps(msgspec.to_builtins(settings))
        )
        seen: dict[str, float] = {}
        listening = asyncio.create_task(listen(settings, seen))
        await publish(settings, encoded(WARM, now_ms(), seed=1))
        await caught_up(settings, WARM)
        load = Load(settings)
        await load.run(SECONDS)
        for _ in range(PATIENCE_S * 10):
            if load.sent.keys() <= seen.keys():
                break
            await asyncio.sleep(0.1)
        worker.terminate()
        await worker.wait()
        listening.cancel()
    times = sorted((seen[subject] - at) * 1000 for subject, at in load.sent.items() if subject in seen)
    if len(times) < len(load.sent):
        raise RuntimeError(f"{len(load.sent) - len(times)} of {len(load.sent)} farms were never blocked")
    report("block_latency_p99_ms", times[int(len(times) * 0.99)], "ms", "the bar", 250)
    report("block_latency_p50_ms", times[len(times) // 2], "ms")
    report("block_latency_load_behind_ms", load.behind_s * 1000, "ms")


WORKER = """
import json, sys
import msgspec
from penaltybox.contracts.settings import Settings
from penaltybox.processors.penalties import main
main(msgspec.convert(json.loads(sys.argv[1]), Settings))
"""

if __name__ == "__main__":
    asyncio.run(main())
