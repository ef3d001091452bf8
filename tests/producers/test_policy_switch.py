"""Limiters follow the policy in Redis: within a second, on every kind of server, without a restart."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.keyspace import slot_of
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.policy_versions import StoredPolicy, Switch
from penaltybox.producers.composition import open_limiter
from penaltybox.sinks.policy_versions import put_in_force
from penaltybox.sinks.untold import Untold
from tests.producers.limiters import Rig, policy, request, rig_on
from tests.redis_servers import KINDS
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.contracts.policy import Policy

TEXT = "limits: {s: {user: [{name: hour, limit: 1, window: 1h}]}}\nscenarios: {s: {deadline: 5s}}\n"
FILE = policy("user: [{name: hour, limit: 1000000, window: 1h}]", "scenarios: {s: {deadline: 5s, failure: open}}")


@pytest.fixture(params=KINDS)
async def rig(request: pytest.FixtureRequest, redis_by_kind: dict[str, Any]) -> AsyncIterator[Rig]:
    async with rig_on(redis_by_kind[request.param]) as rig:
        yield rig


async def apply(rig: Rig, text: str) -> str:
    version = parse_policy(text).version
    stored = StoredPolicy(version=version, text=text, actor="alice", reason="why", ts=now_ms())
    switch = Switch(version=version, ts=now_ms(), actor="alice", reason="why")
    await put_in_force(Untold(rig.link, rig.settings.redis_prefix), stored, switch)
    return version


async def test_a_limiter_switches_within_a_second(rig: Rig) -> None:
    """The applied policy's limit refuses; going back allows again; a text that is no policy changes nothing."""
    heard: list[Policy] = []
    async with open_limiter(rig.settings, FILE, source="edge/1", publisher=rig, on_policy=heard.append) as limiter:
        began = time.monotonic()
        strict = await apply(rig, TEXT)
        await wait_until(lambda: limiter.policy.version == strict)
        assert time.monotonic() - began < 1
        assert [one.version for one in heard] == [strict]
        verdicts = [(await limiter.decide(request(ts_ms=now_ms()))).action for _ in range(3)]
        assert verdicts == ["allow", "deny", "deny"]
        loose = await apply(rig, TEXT.replace("limit: 1,", "limit: 100,"))
        await wait_until(lambda: limiter.policy.version == loose)
        assert (await limiter.decide(request(ts_ms=now_ms()))).action == "allow"
        key = rig.keyspace.policy
        await rig.link.exchange([("SET", key, b"{")], [slot_of(key)])
        await wait_until(lambda: limiter.hearing is not None and limiter.hearing.heard_ms is not None)
        assert limiter.policy.version == loose


async def test_a_limiter_begins_with_the_policy_in_redis(rig: Rig) -> None:
    """The file's is for a Redis that has none; who says so keeps it."""
    strict = await apply(rig, TEXT)
    async with open_limiter(rig.settings, FILE, source="edge/1", publisher=rig) as limiter:
        assert limiter.policy.version == strict
    async with open_limiter(rig.settings, FILE, source="edge/1", publisher=rig, follow=False) as limiter:
        assert limiter.policy is FILE
