"""The limiter's counters by scenario: listed and removed, on every kind of Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penaltybox.sinks.limit_counters import LimitCounters, Walked, Which
from tests.sinks.stores.blobs import HOUR, block, write

if TYPE_CHECKING:
    from tests.sinks.stores.conftest import RedisRig


async def fill(rig: RedisRig) -> None:
    """600 counters of a campaign, and neighbours whose names are as alike as names can be."""
    for number in range(300):
        await rig.call("SET", rig.key(f"device:d{number}", "l:summer%2A:daily"), 1, "PX", HOUR)
        await rig.call("SET", rig.key(f"user:u{number}", "l:summer%2A:burst"), 1, "PX", HOUR)
    for subject, name in [
        ("user:u1", "l:summer:daily"),
        ("user:u1", "l:summer%2A2:daily"),
        ("user:l:summer%2A", "l:login:burst"),
        ("device+route:d1+x", "l:login:daily"),
    ]:
        await rig.call("SET", rig.key(subject, name), 1, "PX", HOUR)
    await rig.store().write([write("user:u1", nonce=1, marks=(block(b"{}"),))])


async def test_counters_of_a_scenario_are_listed(redis_rig: RedisRig) -> None:
    """All counters of one scenario, and none of its neighbours; by dimension and limit too."""
    await fill(redis_rig)
    counters = LimitCounters(redis_rig.store().link, redis_rig.prefix)
    steps: list[Walked] = []
    found = [one async for one in counters.counters(Which("summer*"), steps.append)]
    assert {(one.subject, one.limit) for one in found} == {
        pair for number in range(300) for pair in ((f"device:d{number}", "daily"), (f"user:u{number}", "burst"))
    }
    assert len(found) == 600
    assert all(one.ttl_ms is not None and 0 < one.ttl_ms <= HOUR and one.bytes > 0 for one in found)
    assert steps[-1].examined == steps[-1].total
    assert (steps[-1].found, steps[-1].bytes) == (600, sum(one.bytes for one in found))
    assert [one async for one in counters.counters(Which("summer*", "device", "burst"))] == []
    assert (await counters.tally(Which("summer*", "device"))).found == 300
    assert (await counters.tally(Which("summer"))).found == 1
    assert (await counters.tally(Which("login", "device+route"))).found == 1


async def test_a_campaign_is_cleaned(redis_rig: RedisRig) -> None:
    """Cleaning takes the scenario's counters (of one dimension, if asked), and no neighbours, states or blocks."""
    await fill(redis_rig)
    counters = LimitCounters(redis_rig.store().link, redis_rig.prefix)
    assert (await counters.clean(Which("summer*", "user"))).found == 300
    assert (await counters.tally(Which("summer*"))).found == 300
    assert (await counters.clean(Which("summer*"))).found == 300
    assert (await counters.clean(Which("summer*"))).found == 0
    for subject, name in [("user:u1", "l:summer:daily"), ("user:l:summer%2A", "l:login:burst"), ("user:u1", "block")]:
        assert await redis_rig.get(subject, name) is not None
