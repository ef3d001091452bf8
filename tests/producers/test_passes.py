"""Passed challenges while Redis, or a node of a cluster, is gone or hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.passes import PassKeys
from tests.producers.limiters import Rig, policy, request, rig_on
from tests.redis_servers import BINARIES, CLUSTERING, Cluster, single
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 1.0
"""Long, because this machine may be busy."""
POLICY = policy(
    "user: [{name: a, limit: 5, window: 1h}]", f"scenarios: {{s: {{deadline: {round(DEADLINE_S * 1000)}ms}}}}"
)


def passes_on(rig: Rig) -> PassKeys:
    return PassKeys(rig.link, POLICY, Canonicaliser(), rig.settings.redis_prefix)


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_redis_that_is_away_knows_of_no_pass_and_costs_a_deadline_a_probe(tmp_path: Path, how: str) -> None:
    """Of many requests few wait; when the server is back, and a pass is given, it counts again."""
    server = single(next(iter(BINARIES.values())), tmp_path)
    clock = asyncio.get_running_loop().time
    try:
        async with rig_on(server) as rig:
            passes = passes_on(rig)
            await rig.put("user:u", "pass", 1)
            assert await passes.passed(request())
            assert not await passes.passed(request(subjects={"user": "another"}))
            server.kill() if how == "killed" else server.freeze()
            waited_s, found = [], set()
            for _ in range(200):
                asked_s = clock()
                found.add(await passes.passed(request(subjects={"user": "u"})))
                waited_s.append(clock() - asked_s)
            assert found == {False}
            assert passes.breaker.openings == 1
            assert sum(waited > DEADLINE_S / 2 for waited in waited_s) <= 5
            server.start() if how == "killed" else server.thaw()

            async def back() -> bool:
                await rig.put("user:u", "pass", 1)
                return await passes.passed(request())

            await wait_until(back, 20, "the server's return")
            assert not passes.breaker.open
    finally:
        server.kill()


async def test_a_node_that_hangs_hides_only_the_passes_that_it_holds(tmp_path: Path) -> None:
    """A device's pass on another node counts although the user's node says nothing."""
    cluster = Cluster(str(CLUSTERING), tmp_path, whole=False)
    node = cluster.servers[1]
    names = [f"n{number}" for number in range(100)]
    user = next(name for name in names if cluster.home(f"user:{name}") is node)
    device = next(name for name in names if cluster.home(f"device:{name}") is not node)
    asked = request(subjects={"user": user, "device": device})
    try:
        async with rig_on(cluster) as rig:
            passes = passes_on(rig)
            await rig.put(f"device:{device}", "pass", 1)
            await rig.put(f"user:{user}", "pass", 1)
            await wait_until(lambda: passes.passed(asked), what="the cluster to be used")
            node.freeze()
            clock = asyncio.get_running_loop().time
            waited_s = []
            for _ in range(100):
                asked_s = clock()
                assert await passes.passed(asked)
                assert not await passes.passed(request(subjects={"user": user}))
                waited_s.append(clock() - asked_s)
            assert list(passes.breaker.nodes) == [f"127.0.0.1:{node.port}"]
            assert sum(waited > DEADLINE_S / 2 for waited in waited_s) <= 5
            node.thaw()
            await wait_until(lambda: passes.passed(request(subjects={"user": user})), 20, "the node's return")
    finally:
        cluster.kill()
