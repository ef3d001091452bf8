"""`penalties_pipeline`: decisions/s from Kafka through the engine into Redis, one worker process, default policy.

Its peer, the raw limit, is aiokafka with msgspec decoding and nothing else, in the same run on the same topic.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.pipeline_process import run
from benchmarks.stack import publish, report, stack
from benchmarks.workload import encoded
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Decision
from penaltybox.contracts.topics import Topics

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings

WARM = 100_000
COUNT = 500_000


async def raw_limit(settings: Settings, count: int) -> float:
    """Records/s that aiokafka hands over and msgspec decodes."""
    topic = Topics.named(settings.topic_prefix).decisions
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.kafka, auto_offset_reset="earliest")
    decode = msgspec.json.Decoder(Decision).decode
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(settings.kafka_partitions)])
        done, start = 0, time.perf_counter()
        while done < count:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    decode(record.value)
                done += len(records)
        return done / (time.perf_counter() - start)
    finally:
        await consumer.stop()


async def pipeline(mix: str, count: int = COUNT) -> tuple[dict[str, float], float]:
    """What the worker process measured on a fresh stack, and the raw limit."""
    async with stack() as settings:
        await publish(settings, encoded(WARM + count, now_ms(), mix=mix))
        raw = await raw_limit(settings, count)
        return await run(settings, WARM, count), raw


async def main(mixes: list[str], count: int) -> None:
    """The uniform mix, then Zipf's."""
    for mix in mixes:
        name = "penalties_pipeline" if mix == "uniform" else f"penalties_pipeline_{mix}"
        found, raw = await pipeline(mix, count)
        report(name, found["rate"], "decisions/s", "aiokafka + msgspec decode alone", raw)
        report(f"{name}_cpu", found["cpu_us"], "us/decision")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:2] or ["uniform", "zipf"], int(sys.argv[2]) if len(sys.argv) > 2 else COUNT))
