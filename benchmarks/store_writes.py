"""Subjects that one client connection writes per second, beside bare pipelined SETs of the same blobs.

Valkey or Redis on this machine, 10,000 subjects, states of 300 bytes, marks unchanged: what a worker does nearly all of
the time. The second line is the server's time per script call, from which the store's chunk was chosen.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penaltybox.contracts.clock import now_ms
from penaltybox.embedded.redis_server import RedisServer
from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.sinks.redis_store import CHUNK, RedisSubjectStore
from penaltybox.sinks.subject_store import Write, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

SUBJECTS = 10_000
BODY = 280
ROUNDS = 9


def main() -> None:
    """Print one JSON line per figure."""
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder)) as server:
        for line in asyncio.run(measure(server.url)):
            print(json.dumps(line), flush=True)


async def measure(url: str) -> list[dict[str, Any]]:
    """Medians over the rounds; writes and SETs take turns, so that both see the same machine."""
    store = RedisSubjectStore(open_link(parse_endpoint(url, max_connections=1)), prefix="bench")
    await store.join_generation()
    versions = [(0, 0)] * SUBJECTS
    written, bare = [], []
    for nonce in range(1, ROUNDS + 1):
        writes = list(_writes(versions, (1 << 40) + nonce))
        start = time.perf_counter()
        results = await store.write(writes)
        written.append(SUBJECTS / (time.perf_counter() - start))
        versions = [(result.number, (1 << 40) + nonce) for result in results if isinstance(result, Written)]
        if len(versions) != SUBJECTS:
            raise AssertionError("a write without a rival was not written")
        bare.append(await _bare_sets(store, writes))
    script_us = await _script_us(store)
    await store.close()
    value, peer = statistics.median(written), statistics.median(bare)
    return [
        _line("store_writes", value, "subjects/s", "bare pipelined SET", peer),
        _line("store_script_us", script_us, f"us of server time per {CHUNK} subjects", "bound", 1000),
    ]


def _line(bench: str, value: float, unit: str, peer: str, peer_value: float) -> dict[str, Any]:
    ratio = round(value / peer_value, 2)
    return {
        "bench": bench, "value": round(value), "unit": unit,
        "peer": peer, "peer_value": round(peer_value), "ratio": ratio,
    }  # fmt: skip


def _writes(versions: list[tuple[int, int]], nonce: int) -> Iterator[Write]:
    end = now_ms() + 3_600_000
    for i, (number, seen) in enumerate(versions):
        blob = b"\x01\x9a\xcf" + bytes(8) + b"\xcf" + nonce.to_bytes(8) + os.urandom(BODY)
        yield Write(f"device:d{i:07}", number, seen, blob, end, None, False)  # noqa: FBT003 - a field of a tuple


async def _bare_sets(store: RedisSubjectStore, writes: list[Write]) -> float:
    """The same keys' bytes under other names, each by a SET with an end: what no versioned write can beat."""
    commands = [
        ("SET", f"bare:{{{write.subject}}}:state", write.blob, "PXAT", write.expire_at_ms or 0) for write in writes
    ]
    start = time.perf_counter()
    await store.link.exchange(commands)
    return SUBJECTS / (time.perf_counter() - start)


async def _script_us(store: RedisSubjectStore) -> float:
    (stats,) = await store.link.exchange([("INFO", "commandstats")])
    fields = next(line for line in stats.decode().splitlines() if line.startswith("cmdstat_evalsha:"))
    figures = dict(pair.split("=") for pair in fields.partition(":")[2].split(","))
    done = int(figures["calls"]) - int(figures.get("failed_calls", 0))
    return float(figures["usec"]) / done


if __name__ == "__main__":
    main()
