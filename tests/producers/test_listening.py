"""The whole limiter on real servers: what is changed in Redis is seen within a second, whatever happens to the way."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.keyspace import slot_of
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import hash_value
from penaltybox.producers.composition import open_limiter
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.subject_store import Written
from tests.producers.limiters import Rig, policy, request, rig_on, url_of
from tests.redis_servers import BINARIES, CLUSTERING, KINDS, SentinelTrio, Server, single
from tests.sinks.stores.blobs import block, write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from penaltybox.contracts.policy import Policy
    from penaltybox.producers.cached import CachedDecider

GENEROUS = policy("user: [{name: hour, limit: 1000000, window: 1h}]", "scenarios: {s: {deadline: 5s, failure: open}}")
SECOND_S = 1.0


@asynccontextmanager
async def limiter_on(rig: Rig, rules: Policy = GENEROUS) -> AsyncIterator[CachedDecider]:
    """A whole limiter that hears, on the rig's keys."""
    async with open_limiter(rig.settings, rules, source="edge/1", publisher=rig) as limiter:
        await wait_until(lambda: hears(limiter), what="a subscription")
        yield limiter


def hears(limiter: CachedDecider) -> bool:
    return limiter.hearing is not None and limiter.hearing.heard_ms is not None


async def action(limiter: CachedDecider, **changed: Any) -> str:
    return (await limiter.decide(request(ts_ms=now_ms(), **changed))).action


async def says(rig: Rig, message: str) -> None:
    nodes = await rig.link.nodes()
    await nodes[-1].exchange([("PUBLISH", rig.keyspace.events, message)])


async def ban(rig: Rig, subject: str, until_ms: int | None = None) -> None:
    await rig.put(subject, "block", {"until": until_ms, "rung": "1h", "rule": "r", "penalty": "p"})
    await says(rig, subject)


async def unban(rig: Rig, subject: str) -> float:
    """Lifts a block and says so; the moment of it."""
    await rig.drop(subject, "block")
    at = time.monotonic()
    await says(rig, subject)
    return at


@pytest.fixture(params=KINDS)
async def rig(request: pytest.FixtureRequest, redis_by_kind: dict[str, Any]) -> AsyncIterator[Rig]:
    async with rig_on(redis_by_kind[request.param]) as rig:
        yield rig


async def test_an_unban_is_seen_within_a_second(rig: Rig) -> None:
    """On every kind of server: a remembered block answers without Redis, until the message of its end is heard."""
    async with limiter_on(rig) as limiter:
        await ban(rig, "user:u")
        for _ in range(200):
            assert await action(limiter) == "deny"
        assert limiter.counts.asked <= 2  # once more if the message of the ban came after the first answer
        lifted = await unban(rig, "user:u")
        await wait_until(lambda: is_allowed(limiter), what="an allowed request")
        assert time.monotonic() - lifted < SECOND_S


async def test_what_the_processors_write_is_heard(rig: Rig) -> None:
    """A block written and lifted by the subject store itself, as workers and `unban` do it, is seen within a second."""
    store = RedisSubjectStore(rig.link, prefix=rig.keyspace.prefix)
    async with limiter_on(rig) as limiter:
        assert await action(limiter) == "allow"
        (first,) = await store.write([write("user:u", nonce=1, end=1 << 42, marks=(block(b'{"until":null}'),))])
        assert isinstance(first, Written)
        await wait_until(lambda: is_denied(limiter), what="the block")
        (second,) = await store.write([write("user:u", (first.number, 1), nonce=2, end=1 << 42, marks=(block(None),))])
        lifted = time.monotonic()
        assert isinstance(second, Written)
        await wait_until(lambda: is_allowed(limiter), what="an allowed request")
        assert time.monotonic() - lifted < SECOND_S


async def is_allowed(limiter: CachedDecider) -> bool:
    return await action(limiter) == "allow"


async def test_lists_are_read_at_the_start_and_when_told(rig: Rig) -> None:
    """Bans of ranges and allowlist entries in Redis hold from the start; changes hold within a second of a message."""
    await put_field(rig, rig.keyspace.cidr, "192.0.2.0/24", b'{"action":"deny","until":null,"reason":"lab"}')
    await put_field(rig, rig.keyspace.allow, "192.0.2.0/30", b'{"until":null,"note":"office","actor":"ops"}')
    async with limiter_on(rig) as limiter:
        assert await action(limiter) == "allow"
        assert await action(limiter, subjects={"ip": "192.0.2.9"}) == "deny"
        await put_field(rig, rig.keyspace.allow, "user:vip", b'{"until":null}')
        told = time.monotonic()
        await says(rig, "#lists")
        vip = {"ip": "192.0.2.9", "user": "vip"}

        async def allowed() -> bool:
            return await action(limiter, subjects=vip) == "allow"

        await wait_until(allowed, what="the entry")
        assert time.monotonic() - told < SECOND_S
        assert limiter.counts.asked == 0


async def put_field(rig: Rig, key: str, field: str, value: bytes) -> None:
    await rig.link.exchange([("HSET", key, field, value)], [slot_of(key)])


@pytest.fixture(params=BINARIES)
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server that this test may stop."""
    server = single(BINARIES[request.param], tmp_path)
    yield server
    server.kill()


async def test_a_cut_subscription_costs_no_more_than_a_second(own_server: Server) -> None:
    """An unban whose message was lost with the subscription is seen within a second all the same."""
    async with rig_on(own_server) as rig, limiter_on(rig) as limiter:
        await ban(rig, "user:u")
        assert await action(limiter) == "deny"
        await rig.drop("user:u", "block")  # nobody is told
        lifted = time.monotonic()
        own_server.call("CLIENT", "KILL", "TYPE", "pubsub")
        await wait_until(lambda: is_allowed(limiter), what="an allowed request")
        assert time.monotonic() - lifted < SECOND_S
        await wait_until(lambda: hears(limiter), what="a new subscription")


async def test_a_silent_server_is_not_believed(own_server: Server) -> None:
    """A frozen server says nothing: within about a second the limiter knows that it does not know."""
    async with rig_on(own_server) as rig, limiter_on(rig) as limiter:
        await ban(rig, "user:u")
        assert await action(limiter) == "deny"
        own_server.freeze()
        try:
            await wait_until(lambda: not hears(limiter), 5, "silence to be noticed")
        finally:
            own_server.thaw()
        await wait_until(lambda: hears(limiter), what="a new subscription")
        assert await action(limiter) == "deny"


async def test_a_restarted_server_is_heard_again(own_server: Server) -> None:
    """After a restart that lost everything, nothing old is believed, and new messages are heard."""
    async with rig_on(own_server) as rig, limiter_on(rig) as limiter:
        await ban(rig, "user:u")
        assert await action(limiter) == "deny"
        own_server.kill()
        await wait_until(lambda: not hears(limiter), what="the loss to be noticed")
        own_server.start()
        await wait_until(lambda: hears(limiter), what="a new subscription")
        assert await action(limiter) == "allow"
        await ban(rig, "user:u")
        await wait_until(lambda: is_denied(limiter), what="the new block")
        lifted = await unban(rig, "user:u")
        await wait_until(lambda: is_allowed(limiter), what="an allowed request")
        assert time.monotonic() - lifted < SECOND_S


async def is_denied(limiter: CachedDecider) -> bool:
    return await action(limiter) == "deny"


async def test_a_server_that_is_away_at_the_start_is_no_error(own_server: Server) -> None:
    """The limiter starts, decides by its policy, and hears and reads the lists as soon as there is a Redis."""
    own_server.kill()
    settings = Settings(redis_url=url_of(own_server), redis_timeout_ms=200)
    async with open_limiter(settings, GENEROUS, source="edge/1") as limiter:
        assert (await limiter.decide(request())).reason == "fail_open"
        own_server.start()
        own_server.call("HSET", "pbx:cidr", "192.0.2.0/24", "{}")
        await wait_until(lambda: hears(limiter), what="a subscription")
        await wait_until(lambda: is_denied(limiter), what="the ban")


async def test_each_node_of_a_cluster_is_heard_itself(redis_by_kind: dict[str, Any]) -> None:
    """A subscription to one node is lost: nothing is believed longer than a second until it is back."""
    cluster = redis_by_kind["cluster"]
    async with rig_on(cluster) as rig, limiter_on(rig) as limiter:
        for server in cluster.servers:
            await ban(rig, "user:u")
            await wait_until(lambda: is_denied(limiter), what="the block")
            await rig.drop("user:u", "block")  # nobody is told
            lifted = time.monotonic()
            server.call("CLIENT", "KILL", "TYPE", "pubsub")
            await wait_until(lambda: is_allowed(limiter), what="an allowed request")
            assert time.monotonic() - lifted < SECOND_S
            await wait_until(lambda: hears(limiter), what="a new subscription")


async def test_after_a_failover_the_new_master_is_heard(tmp_path: Path) -> None:
    """Sentinel makes the replica master: an unban there is seen within a second once it is."""
    trio = SentinelTrio(str(CLUSTERING), tmp_path)
    try:
        async with rig_on(trio) as rig, limiter_on(rig) as limiter:
            await ban(rig, "user:u")
            await wait_until(lambda: is_denied(limiter), what="the block")
            await wait_until(lambda: is_replicated(trio, rig), what="the replica to have it")
            trio.master.kill()
            await wait_until(lambda: hears(limiter) and b"role:master" in trio.replica.call("INFO", "replication"), 30)
            await wait_until(lambda: is_denied(limiter), what="the next probe, which finds the new master")
            lifted = await unban(rig, "user:u")
            await wait_until(lambda: is_allowed(limiter), what="an allowed request")
            assert time.monotonic() - lifted < SECOND_S
    finally:
        trio.kill()


def is_replicated(trio: SentinelTrio, rig: Rig) -> bool:
    return bool(trio.replica.call("EXISTS", f"{rig.keyspace.stem('user:u')}:block"))


async def test_hashed_values_are_remembered_by_their_hash(own_server: Server) -> None:
    """Where users are stored as HMAC, blocks, messages and the allowlist name the HMAC; ranges mean the address."""
    hashing = {"hashed_dimensions": ("user", "ip"), "hash_key": "k"}
    async with rig_on(own_server, **hashing) as rig, limiter_on(rig) as limiter:
        name = f"user:{hash_value(b'k', 'user', 'u')}"
        await ban(rig, name)
        await wait_until(lambda: is_denied(limiter), what="the block")
        await wait_until(lambda: is_remembered(limiter), what="an answer from memory")
        await unban(rig, name)
        await wait_until(lambda: is_allowed(limiter), what="an allowed request")
        await put_field(rig, rig.keyspace.cidr, "192.0.2.0/24", b"{}")
        await put_field(rig, rig.keyspace.allow, f"user:{hash_value(b'k', 'user', 'vip')}", b"{}")
        await says(rig, "#lists")
        await wait_until(lambda: is_denied(limiter), what="the banned range")
        assert await action(limiter, subjects={"user": "vip", "ip": "192.0.2.1"}) == "allow"


async def is_remembered(limiter: CachedDecider) -> bool:
    await action(limiter)
    return limiter.counts.blocked > 0


async def test_plan_and_trust_are_live_within_a_second(own_server: Server) -> None:
    """Leases end within `allow_cache`, so a changed plan holds for the first request after it."""
    async with rig_on(own_server) as rig:
        cautious = policy(
            "user: [{name: hour, limit: 1000, window: 1h}]", "scenarios: {s: {deadline: 5s, allow_cache: 1s}}"
        )
        async with limiter_on(rig, cautious) as limiter:
            for _ in range(5):
                assert await action(limiter) == "allow"
            assert limiter.counts.leased == 4
            await rig.put("user:u", "plan", {"limits": {"s/user:hour": 2}})
            changed = time.monotonic()
            await wait_until(lambda: is_denied(limiter), what="the smaller plan")
            assert time.monotonic() - changed < SECOND_S + 0.2
