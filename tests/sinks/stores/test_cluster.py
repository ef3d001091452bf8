"""What only a cluster does: shards that are wiped alone, slots that move, a start that stops half-way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import GenerationMismatch, StoreUnavailable
from penaltybox.contracts.keyspace import SLOTS, Keyspace, slot_of, slot_tags
from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.subject_store import WriteResult, Written
from tests.redis_servers import CLUSTERING, Cluster, Server
from tests.sinks.stores.blobs import block, version, write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

BOUNDS = (5461, 10923)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of this module's own, to wipe and reshape."""
    made = Cluster(str(CLUSTERING), tmp_path_factory.mktemp("cluster"))
    yield made
    made.kill()


@pytest.fixture
async def stores(cluster: Cluster) -> AsyncIterator[Any]:
    """Makes stores on the emptied cluster."""
    for server in cluster.servers:
        server.call("FLUSHALL")
    made: list[RedisSubjectStore] = []

    def make() -> RedisSubjectStore:
        made.append(RedisSubjectStore(open_link(parse_endpoint(cluster.url, deadline_s=5))))
        return made[-1]

    yield make
    for store in made:
        await store.close()


def owner(slot: int) -> int:
    """Which of the three servers has the slot at the start."""
    return sum(slot >= bound for bound in BOUNDS)


def test_every_slot_has_a_tag_of_its_own() -> None:
    """The tags are the smallest decimal numbers, each in its slot, and none can be a subject."""
    tags = slot_tags()
    assert len(set(tags)) == SLOTS
    assert all(slot_of(tag) == slot for slot, tag in enumerate(tags))
    assert slot_of("123456789") == 0x31C3 % SLOTS  # the check value of the cluster specification
    assert not any(":" in tag for tag in tags)
    assert Keyspace().slot_key(slot_of("0"), "pending") == "pbx:{0}:pending"


async def test_one_wiped_shard_is_noticed(cluster: Cluster, stores: Any) -> None:
    """Writes to the shard that was wiped stop, nothing is written there, and no newcomer joins or starts anything."""
    store = stores()
    subjects = [f"user:{i}" for i in range(200)]
    await store.write([write(subject, nonce=1) for subject in subjects])
    cluster.servers[1].call("FLUSHALL")
    there = [subject for subject in subjects if owner(slot_of(subject)) == 1]
    with pytest.raises(GenerationMismatch):
        await store.write([write(there[0], nonce=2)])
    assert await store.read(there) == [None] * len(there)
    with pytest.raises(GenerationMismatch, match="shards"):
        await store.generation()
    with pytest.raises(GenerationMismatch, match="shards"):
        await stores().join_generation()
    await store.begin_generation("restored")
    assert await stores().join_generation() == "restored"


async def test_a_start_that_stopped_half_way_is_finished(stores: Any) -> None:
    """A first worker that died while it spread its generation leaves one that the next worker completes."""
    store = stores()
    central = Keyspace().generation
    await store.link.exchange([("SET", central, "starting:half")], [slot_of(central)])
    slots = range(0, SLOTS, 2)
    await store.link.exchange([("SET", store.keys.slot_key(slot, "generation"), "half") for slot in slots], slots)
    assert await store.join_generation() == "half"
    assert await stores().join_generation(known="half") == "half"


async def test_writes_follow_a_slot_that_moves(cluster: Cluster, stores: Any) -> None:
    """While a slot migrates its writes are an outage that passes; afterwards they go to the new owner, once each."""
    store = stores()
    subject = "user:moving"
    (first,) = await store.write([write(subject, nonce=1, marks=(block(b"{}"),), pending=True)])
    assert isinstance(first, Written)
    slot = slot_of(subject)
    source = cluster.servers[owner(slot)]
    target = next(server for server in cluster.servers if server is not source)
    ids = {server.port: server.call("CLUSTER", "MYID").decode() for server in cluster.servers}
    try:
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
        keys = source.call("CLUSTER", "GETKEYSINSLOT", slot, 100)
        half, rest = keys[: len(keys) // 2], keys[len(keys) // 2 :]
        _migrate(source, target, half)
        with pytest.raises(StoreUnavailable, match="TRYAGAIN") as caught:
            await store.write([write(subject, (first.number, 1), nonce=2)])
        assert caught.value.retry_after_ms < 1000
        assert version((await store.read([subject]))[0]) == (first.number, 1)  # ASK is followed
        _migrate(source, target, rest)
        for server in (target, source):
            assert server.call("CLUSTER", "SETSLOT", slot, "NODE", ids[target.port]) == b"OK"
        (second,) = await store.write([write(subject, (first.number, 1), nonce=2, pending=True)])
        assert isinstance(second, Written)
        assert await stores().pending(0) == [subject]
        assert await stores().generation() is not None
    finally:
        for server in (source, target):
            server.call("FLUSHALL")
        for server in cluster.servers:
            server.call("CLUSTER", "SETSLOT", slot, "NODE", ids[source.port])


def _migrate(source: Server, target: Server, keys: list[bytes]) -> None:
    for key in keys:
        assert source.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5000) == b"OK"


async def test_a_sweep_finds_what_a_dead_worker_left(stores: Any) -> None:
    """A worker that has looked at all slots once still finds another one's pending subjects, within 64 sweeps."""
    sweeper, dead = stores(), stores()
    await sweeper.join_generation()
    assert await sweeper.pending(0) == []
    subjects = [f"user:{i}" for i in range(50)]
    await dead.write([write(subject, nonce=1, pending=True) for subject in subjects])
    found: set[str] = set()
    for _ in range(64):
        found.update(await sweeper.pending(0))
    assert sorted(found) == sorted(subjects)
    assert sorted(await dead.pending(0)) == sorted(subjects)


async def test_a_seed_that_is_down_is_passed_over(cluster: Cluster) -> None:
    """Any reachable seed will do."""
    live = cluster.servers[2].port
    store = RedisSubjectStore(open_link(parse_endpoint(f"redis+cluster://127.0.0.1:1,127.0.0.1:{live}")))
    assert await store.read(["user:a", "user:b", "user:c"]) == [None] * 3
    await store.close()


async def test_a_shard_fails_over(tmp_path: Path) -> None:
    """When a primary dies, its shard is an outage until its replica takes over; then all goes on, numbers rising."""
    cluster = Cluster(str(CLUSTERING), tmp_path)
    store = RedisSubjectStore(open_link(parse_endpoint(cluster.url, deadline_s=2)))
    try:
        replica = cluster.add_replica(str(CLUSTERING), tmp_path / "replica", of=1)
        subjects = [f"user:{i}" for i in range(100)]
        first = await store.write([write(subject, nonce=1) for subject in subjects])
        await wait_until(lambda: _in_step(cluster.servers[1], replica), what="the replica to have everything")
        cluster.servers[1].kill()
        sent = [
            write(subject, (result.number, 1), nonce=2)
            for subject, result in zip(subjects, first, strict=True)
            if isinstance(result, Written)
        ]

        async def again() -> list[WriteResult]:
            try:
                return await store.write(sent)
            except StoreUnavailable:
                return []

        second = await wait_until(again, deadline_s=40, what="the failover")
        assert {type(result) for result in second} == {Written}
        assert [version(blob)[1] for blob in await store.read(subjects)] == [2] * 100
    finally:
        await store.close()
        cluster.kill()


def _in_step(primary: Server, replica: Server) -> bool:
    offsets = [
        dict(line.split(":") for line in server.call("INFO", "replication").decode().split() if ":" in line)
        for server in (primary, replica)
    ]
    return offsets[0]["master_repl_offset"] == offsets[1]["slave_repl_offset"]
