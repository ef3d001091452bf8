"""A node of a Redis Cluster that is killed while a worker's batch is written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.processors.patience import LONGEST_S, Patience
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.subject_store import Written
from tests.redis_servers import CLUSTERING, Cluster
from tests.sinks.stores.blobs import version, write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penaltybox.sinks.subject_store import WriteResult
    from tests.redis_servers import Server

SUBJECTS = [f"user:{number}" for number in range(60)]
DEADLINE_S = 2.0


async def test_a_batch_waits_for_a_killed_node_and_no_longer(tmp_path: Path) -> None:
    """The other nodes' subjects are stored at once; the rest, and what comes after, when a replica has taken over."""
    cluster = Cluster(str(CLUSTERING), tmp_path, whole=False)
    store = RedisSubjectStore(open_link(parse_endpoint(cluster.url, deadline_s=DEADLINE_S)))
    patience = Patience(store)
    node = cluster.servers[1]
    there = [subject for subject in SUBJECTS if cluster.home(subject) is not node]
    try:
        replica = cluster.add_replica(str(CLUSTERING), tmp_path / "replica", of=1)
        numbers = _numbers(await store.write([write(subject, nonce=1) for subject in SUBJECTS]))
        await wait_until(lambda: _offset(replica, "slave") == _offset(node, "master"), what="a replica in step")
        node.kill()
        second = [write(subject, (numbers[subject], 1), nonce=2) for subject in SUBJECTS]
        writing = asyncio.ensure_future(patience.call(lambda: store.write(second)))

        async def stored() -> bool:
            return {version(blob)[1] for blob in await store.read(there)} == {2}

        await wait_until(stored, what="the other nodes' subjects")
        clock = asyncio.get_running_loop().time
        await wait_until(lambda: replica.port in _owners(cluster.servers[0]), 40, "the failover")
        right_s = clock()
        assert set(_numbers(await writing)) == set(SUBJECTS)
        # The pause before the next attempt, one that may have begun too early, and room for a busy machine.
        assert clock() - right_s < LONGEST_S + DEADLINE_S + 6
        assert {version(blob)[1] for blob in await store.read(SUBJECTS)} == {2}
        assert not patience.waiting
    finally:
        await store.close()
        cluster.kill()


def _numbers(results: Sequence[WriteResult]) -> dict[str, int]:
    return {
        subject: result.number for subject, result in zip(SUBJECTS, results, strict=True) if isinstance(result, Written)
    }


def _owners(server: Server) -> set[int]:
    return {primary[1] for _, _, primary, *_ in server.call("CLUSTER", "SLOTS")}


def _offset(server: Server, role: str) -> str:
    lines = server.call("INFO", "replication").decode().split()
    return str(dict(line.split(":", 1) for line in lines if ":" in line)[f"{role}_repl_offset"])
