"""Decisions that the analytics pipeline turns into rows per second: decode, columns, insert, acknowledgement.

Realistic decisions (users, devices, addresses, a fifth denied) as raw records in runs as the transport hands them over,
over four partitions, into the embedded ClickHouse in a process of its own. The peer inserts the same columns, built
beforehand, through the same client.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penaltybox.contracts.events import Decision, encode
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.embedded.clickhouse_server import ClickHouseServer
from penaltybox.processors.analytics import GC_THRESHOLD
from penaltybox.processors.analytics_pipeline import Limits, Pipeline
from penaltybox.processors.cycle import Run
from penaltybox.sinks.clickhouse.client import ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from penaltybox.sinks.clickhouse.records import Batch
from penaltybox.sinks.clickhouse.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROWS = 320_000
PARTITIONS = 4
RUN = 2_500
ROUNDS = 3
TOPIC = "penaltybox.decisions"
START_MS = 1_766_400_000_000


class Record(NamedTuple):
    """A record as fetched."""

    offset: int
    timestamp: int
    value: bytes


def main() -> None:
    """Print one JSON line: medians over the rounds; both ways take turns."""
    gc.set_threshold(*GC_THRESHOLD)
    runs = list(make_runs(ROWS))
    with tempfile.TemporaryDirectory() as folder, ClickHouseServer(Path(folder)) as server:
        clickhouse = ClickHouse(server.url, "bench")
        migrate(clickhouse)
        value, peer = [], []
        for round_number in range(ROUNDS):
            value.append(ROWS / asyncio.run(pipeline_s(clickhouse, runs, f"pipeline-{round_number}")))
            peer.append(ROWS / bare_s(clickhouse, runs, f"bare-{round_number}"))
        clickhouse.close()
    line = {
        "bench": "analytics_rows",
        "value": round(statistics.median(value)),
        "unit": "rows/s",
        "peer": "bare columnar insert",
        "peer_value": round(statistics.median(peer)),
        "ratio": round(statistics.median(value) / statistics.median(peer), 2),
    }
    print(json.dumps(line), flush=True)


def make_runs(rows: int) -> Iterator[tuple[int, list[Record]]]:
    """(partition, run of records), 40,000 users on 9,000 devices and as many addresses."""
    rng = random.Random(1)
    offsets = [0] * PARTITIONS
    for number in range(rows // RUN):
        partition = number % PARTITIONS
        run = []
        for _ in range(RUN):
            ts = START_MS + (number * RUN + len(run)) // 20
            run.append(Record(offsets[partition], ts, encode(make_decision(rng, ts))))
            offsets[partition] += 1
        yield partition, run


def make_decision(rng: random.Random, ts: int) -> Decision:
    """One decision as our publishers send it, about 380 bytes."""
    denied = rng.random() < 0.2
    machine = rng.randrange(9000)
    return Decision(
        v=1,
        id=ulid(ts, rng.getrandbits(80)),
        ts=ts,
        source=f"checkout/edge-{rng.randrange(4)}",
        scenario="coupon_claim",
        action="deny" if denied else "allow",
        reason="over_limit" if denied else None,
        violated=("device:daily",) if denied else (),
        subjects={
            "user": str(10_000 + rng.randrange(40_000)),
            "device": f"d{machine:08x}",
            "ip": f"10.{machine // 2500}.{machine // 250 % 10}.{machine % 250}",
        },
        established=rng.random() < 0.5,
        route="POST /coupons/{id}/claim",
        status=429 if denied else 200,
        limit=10,
        window_s=86_400,
        remaining=0 if denied else 3,
        retry_after_s=12 if denied else None,
        attrs={"address": f"{rng.randrange(65_536):04x}"},
    )


async def pipeline_s(clickhouse: ClickHouse, runs: list[tuple[int, list[Record]]], incarnation: str) -> float:
    """Seconds from the first run taken to the last acknowledgement."""
    done = asyncio.Event()
    left = len(runs)

    def acknowledge() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async def incarnations() -> Mapping[str, str]:
        return {TOPIC: incarnation}

    await asyncio.to_thread(clickhouse.command, "TRUNCATE TABLE decisions")
    writer = Writer(clickhouse, Canonicaliser())
    pipeline = Pipeline(clickhouse, writer, {TOPIC: "decisions"}, incarnations, limits=Limits(linger_s=0.2))
    tasks = [asyncio.create_task(pipeline.prepare_batches()), asyncio.create_task(pipeline.store_batches())]
    start = time.perf_counter()
    for partition, records in runs:
        await pipeline.take(Run(TOPIC, partition, records, acknowledge))
    await done.wait()
    taken_s = time.perf_counter() - start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    pipeline.close()
    stored = await asyncio.to_thread(clickhouse.rows, "SELECT count() AS n FROM decisions FINAL")
    if stored[0]["n"] != ROWS:
        raise AssertionError(f"{stored[0]['n']} rows stored, wanted {ROWS}")
    return taken_s


def bare_s(clickhouse: ClickHouse, runs: list[tuple[int, list[Record]]], incarnation: str) -> float:
    """Seconds to insert columns that were built before, in inserts of the same size."""
    clickhouse.command("TRUNCATE TABLE decisions")
    writer = Writer(clickhouse, Canonicaliser())
    rows = Limits().rows
    built = []
    for partition in range(PARTITIONS):
        records = [record for number, run in runs if number == partition for record in run]
        built += [
            writer.prepare(Batch("decisions", incarnation, partition, records[first : first + rows]))
            for first in range(0, len(records), rows)
        ]
    start = time.perf_counter()
    for prepared in built:
        writer.store(prepared)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
