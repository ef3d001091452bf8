"""Limiters follow the policy in Redis: within a second, on every kind of server, without a restart."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from penaltybox.producers.cached import CachedDecider

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


async def test_a_switch_under_load(rig: Rig) -> None:
    """Processes that decide all the time: no request fails, and soon after the new version every answer is by it."""
    load = Load()
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(open_limiter(rig.settings, FILE, source=f"edge/{n}", publisher=rig))
            for n in range(2)
        ]
        asking = [asyncio.ensure_future(load.ask(limiter, client)) for limiter in opened for client in range(25)]
        try:
            await wait_until(lambda: len(load.answers) >= 1000, 60, "a thousand decisions by the old version")
            applied_s = time.monotonic()
            version = await apply(rig, TEXT.replace("limit: 1,", "limit: 2000000,"))
            await wait_until(lambda: all(one.policy.version == version for one in opened), 10, "the new version")
            heard, heard_s = len(load.answers), time.monotonic()
            await wait_until(lambda: len(load.answers) >= heard + 1000, 60, "a thousand by the new version")
        finally:
            load.on = False
            await asyncio.gather(*asking)
    assert {(answer.action, answer.reason) for answer in load.answers} == {("allow", None)}
    assert {answer.limit for answer in load.answers} == {1_000_000, 2_000_000}
    assert all(answer.limit == 1_000_000 for answer in load.answers if answer.answered_s < applied_s)
    assert all(answer.limit == 2_000_000 for answer in load.answers if answer.asked_s > heard_s)
    assert heard_s - applied_s < 5  # a second where nothing else runs


class Answered(NamedTuple):
    """A decision under load: when it was asked for and made, what it was, and by which limit."""

    asked_s: float
    answered_s: float
    action: str
    reason: str | None
    limit: int


class Load:
    """Clients who ask as fast as they are answered."""

    def __init__(self) -> None:
        self.on = True
        self.answers: list[Answered] = []

    async def ask(self, limiter: CachedDecider, client: int) -> None:
        while self.on:
            asked_s = time.monotonic()
            verdict = await limiter.decide(request(ts_ms=now_ms(), subjects={"user": f"u{client}"}))
            limit = verdict.limits[0].limit if verdict.limits else 0
            self.answers.append(Answered(asked_s, time.monotonic(), verdict.action, verdict.reason, limit))
