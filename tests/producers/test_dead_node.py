"""A node of a Redis Cluster that is gone or hangs: what it costs those whose keys it holds, and nobody else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.settings import Settings
from penaltybox.producers.inline import InlineLimiter
from tests.producers.limiters import policy, request, rig_on
from tests.redis_servers import CLUSTERING, Cluster
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from penaltybox.producers.verdict import Verdict
    from tests.producers.limiters import Rig
    from tests.redis_servers import Server

USER = "user: [{name: a, limit: 100000, window: 1h}]"
USERS = [f"u{n}" for n in range(60)]
DEADLINE_S = 2.0
"""Long, because this machine may be busy."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """One whose nodes go on without the others."""
    made = Cluster(str(CLUSTERING), tmp_path, whole=False)
    yield made
    made.kill()


@pytest.fixture
async def rig(cluster: Cluster) -> AsyncIterator[Rig]:
    async with rig_on(cluster) as rig:
        yield rig


def scenario(failure: str, deadline_s: float = DEADLINE_S) -> str:
    return f"scenarios: {{s: {{failure: {failure}, deadline: {round(deadline_s * 1000)}ms}}}}"


class Crowd:
    """Users who ask all the time, each for himself, and what they got; those of one node apart from the others."""

    def __init__(self, cluster: Cluster, limiter: InlineLimiter, node: Server) -> None:
        self.limiter = limiter
        self.there = [name for name in USERS if cluster.home(f"user:{name}") is not node]
        self.away = [name for name in USERS if cluster.home(f"user:{name}") is node]
        assert min(len(self.there), len(self.away)) > 10
        self.undisturbed: list[Verdict] = []
        self.disturbed: list[Verdict] = []
        self.waited_s: list[float] = []
        self._on = True
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for names, verdicts in ((self.there, self.undisturbed), (self.away, self.disturbed)):
            self._tasks += [asyncio.ensure_future(self._keep_asking(name, verdicts)) for name in names]

    async def _keep_asking(self, name: str, verdicts: list[Verdict]) -> None:
        clock = asyncio.get_running_loop().time
        while self._on:
            asked_s = clock()
            verdicts.append(await self.limiter.decide(request(subjects={"user": name})))
            if verdicts is self.disturbed:
                self.waited_s.append(clock() - asked_s)
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        self._on = False
        await asyncio.gather(*self._tasks)


def reasons(verdicts: Iterable[Verdict]) -> set[str | None]:
    return {verdict.reason for verdict in verdicts}


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_whose_keys_are_on_other_nodes_notices_nothing(cluster: Cluster, rig: Rig, how: str) -> None:
    """For seconds, all their requests are counted; a frozen node costs its own a deadline per probe, and comes back."""
    node = cluster.servers[1]
    async with rig.open(policy(USER, scenario("closed"))) as limiter:
        crowd = Crowd(cluster, limiter, node)
        await wait_until(lambda: counted(limiter, USERS), what="the cluster to be used")
        node.kill() if how == "killed" else node.freeze()
        crowd.start()
        # Those who ask at the moment when it falls silent have no answer either.
        burst = len(crowd.away)
        await wait_until(
            lambda: limiter.counts.errors.total() >= burst + 3 and len(crowd.disturbed) > 20 * burst, 30, "three probes"
        )
        failing = list(limiter.breaker.nodes)
        await crowd.stop()
        assert reasons(crowd.undisturbed) == {None}
        assert reasons(crowd.disturbed) == {"fail_closed"}
        assert failing == [f"127.0.0.1:{node.port}"]
        assert sum(waited > DEADLINE_S / 2 for waited in crowd.waited_s) <= burst + 6
        node.start() if how == "killed" else node.thaw()
        await wait_until(lambda: counted(limiter, crowd.away), 20, "the node's return")
        assert not limiter.breaker.open


async def counted(limiter: InlineLimiter, names: Iterable[str]) -> bool:
    verdicts = [await limiter.decide(request(subjects={"user": name}, cost=0)) for name in names]
    return reasons(verdicts) == {None}


async def test_a_promoted_replica_is_used_at_once(cluster: Cluster, rig: Rig, tmp_path: Path) -> None:
    """Within a second or so of the topology being right; meanwhile the other nodes' requests are all counted."""
    node = cluster.servers[2]
    replica = cluster.add_replica(str(CLUSTERING), tmp_path / "replica", of=2)
    clock = asyncio.get_running_loop().time
    async with rig.open(policy(USER, scenario("open"))) as limiter:
        crowd = Crowd(cluster, limiter, node)
        await wait_until(lambda: counted(limiter, USERS), what="the cluster to be used")
        node.kill()
        crowd.start()
        await wait_until(lambda: replica.port in owners(cluster.servers[0]), 30, "the failover")
        right_s = clock()
        await wait_until(lambda: counted(limiter, crowd.away), 10, "a decision on the replica")
        took_s = clock() - right_s
        await crowd.stop()
        assert reasons(crowd.undisturbed) == {None}
        assert reasons(crowd.disturbed) == {"fail_open", None}
        assert took_s < 2
        assert not limiter.breaker.open
        assert limiter.counts.decisions["s", "fail_open"] > 0


def owners(server: Server) -> set[int]:
    return {primary[1] for _, _, primary, *_ in server.call("CLUSTER", "SLOTS")}


async def test_the_first_seed_hangs_when_a_program_starts(cluster: Cluster, rig: Rig) -> None:
    """The slot table is asked of the next one, and those whose keys are on living nodes are counted at once."""
    cluster.servers[0].freeze()
    settings = Settings(redis_url=cluster.url, redis_prefix=rig.settings.redis_prefix, redis_timeout_ms=500)
    async with InlineLimiter.open(settings, policy(USER, scenario("closed", 5)), source="test/1") as limiter:
        begun_s = asyncio.get_running_loop().time()
        for name in USERS:
            if cluster.home(f"user:{name}") is not cluster.servers[0]:
                assert (await limiter.decide(request(subjects={"user": name}))).reason is None
        assert asyncio.get_running_loop().time() - begun_s < 5
        assert not limiter.breaker.openings


async def test_a_script_is_loaded_where_it_was_forgotten(cluster: Cluster, rig: Rig) -> None:
    """A living node forgets its scripts while another one is gone: it is given them again all the same."""
    async with rig.open(policy(USER, scenario("closed", 5))) as limiter:
        crowd = Crowd(cluster, limiter, cluster.servers[1])
        await wait_until(lambda: counted(limiter, USERS), what="the cluster to be used")
        cluster.servers[1].kill()
        for server in (cluster.servers[0], cluster.servers[2]):
            server.call("SCRIPT", "FLUSH")
        assert await counted(limiter, crowd.there)


async def test_a_request_that_needs_it_leaves_nothing_taken_on_the_others(cluster: Cluster, rig: Rig) -> None:
    """A request that is refused because one node hangs gives back what it took on the others."""
    user = next(name for name in USERS if cluster.home(f"user:{name}") is cluster.servers[0])
    device = next(name for name in USERS if cluster.home(f"device:{name}") is cluster.servers[1])
    limits = "user: [{name: a, limit: 10, window: 1h}]\n    device: [{name: a, limit: 10, window: 1h}]"
    asked = {"subjects": {"user": user, "device": device}}
    async with rig.open(policy(limits, scenario("closed"))) as limiter:

        async def untouched() -> bool:
            verdict = await limiter.decide(request(cost=0, **asked))
            return [state.remaining for state in verdict.limits] == [10, 10]

        await wait_until(untouched)
        cluster.servers[1].freeze()
        assert (await limiter.decide(request(**asked))).reason == "fail_closed"
        key = f"{rig.keyspace.stem(f'user:{user}')}:l:s:a"
        await wait_until(lambda: cluster.servers[0].call("LLEN", key) == 0)
        assert (await limiter.decide(request(subjects={"user": user}, cost=0))).limits[0].remaining == 10
        cluster.servers[1].thaw()
        await wait_until(untouched)


async def test_a_key_for_refunds_that_lies_on_the_dead_node(cluster: Cluster, rig: Rig) -> None:
    """The note that a refund looks for has a slot of its own: without its node the request follows its policy."""
    node = cluster.servers[1]
    keys = [rig.keyspace.refund(f"order {n}") for n in range(50)]
    at = next(n for n, key in enumerate(keys) if cluster.home(key.partition("{")[2].partition("}")[0]) is node)
    async with rig.open(policy(USER, scenario("open"))) as limiter:
        crowd = Crowd(cluster, limiter, node)
        await wait_until(lambda: counted(limiter, USERS), what="the cluster to be used")
        node.kill()
        for _ in range(3):
            asked = request(subjects={"user": crowd.there[0]}, idempotency_key=f"order {at}")
            assert (await limiter.decide(asked)).reason == "fail_open"
            assert await counted(limiter, crowd.there)
