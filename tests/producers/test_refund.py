"""Giving back: once, within the window, never more than was taken; and a key that comes twice is charged twice."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest

from tests.producers.limiters import KINDS, Rig, at, policy, request, rig_on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

START = 1_766_400_000_000
ALGORITHMS = ["fixed_window", "sliding_window", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra"]
TWO = "user: [{name: a, limit: 10, window: 1h}]\n    ip: [{name: a, limit: 20, window: 1d}]"


@pytest.fixture(params=KINDS)
async def rig(request: pytest.FixtureRequest, redis_by_kind: dict[str, Any]) -> AsyncIterator[Rig]:
    async with rig_on(redis_by_kind[request.param]) as rig:
        yield rig


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_what_was_taken_is_given_back_once(rig: Rig, algorithm: str) -> None:
    """A refund restores every quota that the request took from; the second refund of the key gives nothing."""
    rules = policy(f"""
    user: [{{name: a, limit: 10, window: 1h, algorithm: {algorithm}}}]
    ip: [{{name: a, limit: 20, window: 1d, algorithm: {algorithm}}}]
    """)
    async with rig.open(rules) as limiter:
        at(limiter, START)
        await limiter.decide(request(cost=2))
        await limiter.decide(request(cost=3, idempotency_key="order {7}/é"))
        assert await limiter.refund("order {7}/é") is True
        assert await limiter.refund("order {7}/é") is False
        verdict = await limiter.decide(request(cost=0))
    assert [state.remaining for state in verdict.limits] == [8, 18]


async def test_twenty_refunds_at_once_give_back_once(rig: Rig) -> None:
    """Two programs that both refund, again and again at the same moment: one of them is told that it did."""
    async with rig.open(policy(TWO)) as one, rig.open(policy(TWO)) as other:
        await one.decide(request(cost=4))
        await one.decide(request(cost=4, idempotency_key="k"))
        told = await asyncio.gather(*((one, other)[n % 2].refund("k") for n in range(20)))
        # In a cluster each group of keys is given back by whoever comes first.
        assert 1 <= told.count(True) <= (2 if rig.clustered else 1)
        verdict = await one.decide(request(cost=0))
    assert [state.remaining for state in verdict.limits] == [6, 16]


REFUND_IT = """
import asyncio, sys
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.producers.inline import InlineLimiter

async def main(url, prefix):
    policy = parse_policy("limits: {s: {user: [{name: a, limit: 10, window: 1h}]}}")
    async with InlineLimiter.open(Settings(redis_url=url, redis_prefix=prefix), policy) as limiter:
        print("ready", flush=True)
        sys.stdin.readline()
        print(sum([await limiter.refund(f"k{n}") for n in range(50)]), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_refund_each_key_once(redis_by_kind: dict[str, Any]) -> None:
    """Both refund the same fifty keys at the same time: together they give back fifty times, and that is all."""
    async with rig_on(redis_by_kind[KINDS[0]]) as rig, rig.open(policy(TWO)) as limiter:
        for number in range(50):
            await limiter.decide(request(subjects={"user": f"u{number % 10}"}, idempotency_key=f"k{number}"))
        program = [sys.executable, "-c", REFUND_IT, rig.settings.redis_url, rig.settings.redis_prefix]
        both = [await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE) for _ in range(2)]
        for process in both:
            assert await process.stdout.readline() == b"ready\n"  # type: ignore[union-attr]
        told = await asyncio.gather(*(process.communicate(b"go\n") for process in both))
        assert sum(int(out) for out, _ in told) == 50
        for number in range(10):
            verdict = await limiter.decide(request(subjects={"user": f"u{number}"}, cost=0))
            assert verdict.limits[0].remaining == 10


async def test_one_key_does_not_get_around_a_limit(rig: Rig) -> None:
    """Every request is charged, also if all come under one key, or under one that another user or scenario had."""
    rules = policy("user: [{name: a, limit: 3, window: 1h}]")
    async with rig.open(rules) as limiter:
        answers = [(await limiter.decide(request(idempotency_key="k"))).action for _ in range(10)]
        others = [
            (await limiter.decide(request(subjects={"user": "other"}, cost=3, idempotency_key="k"))).action
            for _ in range(2)
        ]
    assert answers == ["allow"] * 3 + ["deny"] * 7
    assert others == ["allow", "deny"]


async def test_of_a_keys_charges_one_is_given_back(rig: Rig) -> None:
    """A duplicate is charged and given back, so that order and duplicate cost one; there is no second refund."""
    async with rig.open(policy(TWO)) as limiter:
        for _ in range(3):
            await limiter.decide(request(cost=2, idempotency_key="k"))
        assert await limiter.refund("k") is True
        assert await limiter.refund("k") is False
        await limiter.decide(request(cost=2, idempotency_key="k"))
        assert await limiter.refund("k") is False
        verdict = await limiter.decide(request(cost=0))
    assert [state.remaining for state in verdict.limits] == [4, 14]


async def test_a_refunded_key_is_charged_anew_but_not_refunded_again(rig: Rig) -> None:
    """Whoever comes again after the refund pays; a second refund of the key gives nothing."""
    async with rig.open(policy(TWO)) as limiter:
        await limiter.decide(request(idempotency_key="k"))
        assert await limiter.refund("k") is True
        for _ in range(2):
            verdict = await limiter.decide(request(idempotency_key="k"))
        assert [state.remaining for state in verdict.limits] == [8, 18]
        assert await limiter.refund("k") is False
        verdict = await limiter.decide(request(cost=0))
    assert [state.remaining for state in verdict.limits] == [8, 18]


async def test_a_refused_request_has_nothing_to_give_back(rig: Rig) -> None:
    """A denied request's key refunds nothing, nor does one that nobody used; a later attempt under it is charged."""
    async with rig.open(policy(TWO)) as limiter:
        await limiter.decide(request(cost=10))
        assert (await limiter.decide(request(idempotency_key="k"))).action == "deny"
        assert await limiter.refund("k") is False
        assert await limiter.refund("") is False
        await rig.put("user:u", "plan", {"limits": {"s/user:a": 20}})
        verdict = await limiter.decide(request(idempotency_key="k"))
        assert [state.remaining for state in verdict.limits] == [9, 9]
        assert await limiter.refund("k") is True


async def test_after_a_windows_end_its_limit_gets_nothing_back(rig: Rig) -> None:
    """Twenty seconds later a window of ten has no place for it; the hour still has."""
    rules = policy("user: [{name: a, limit: 10, window: 10s}]\n    ip: [{name: a, limit: 20, window: 1h}]")
    async with rig.open(rules) as limiter:
        at(limiter, START)
        await limiter.decide(request(cost=3, idempotency_key="k"))
        at(limiter, START + 20_000)
        await limiter.decide(request(cost=4))
        assert await limiter.refund("k") is True
        verdict = await limiter.decide(request(cost=0))
    assert [state.remaining for state in verdict.limits] == [6, 16]


async def test_the_record_ends_with_the_longest_window(rig: Rig) -> None:
    """After that a refund finds nothing."""
    async with rig.open(policy("user: [{name: a, limit: 10, window: 1s}]")) as limiter:
        await limiter.decide(request(idempotency_key="k"))

        async def forgotten() -> bool:
            return await rig.call("EXISTS", rig.keyspace.refund("k")) == 0

        await wait_until(forgotten)
        assert await limiter.refund("k") is False
