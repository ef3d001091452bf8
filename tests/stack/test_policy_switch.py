"""Another policy under load, on real servers: at once, each record judged by one of the two, nothing lost or twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.cli.control import tell as tell_kafka
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import Control
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.policy_versions import StoredPolicy, Switch
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.links.kafka import Connection
from penaltybox.links.policies import read_in_force
from penaltybox.processors.broker import TopicPlan, ensure_topics
from penaltybox.processors.ending import Ending
from penaltybox.processors.penalties import run_penalties
from penaltybox.processors.switching import PolicyInUse
from penaltybox.processors.topic_log import read_topic
from penaltybox.sinks.policy_versions import put_in_force
from penaltybox.sinks.untold import Untold
from tests.oracle.judge import Oracle
from tests.stack.arena import Arena
from tests.stack.households import POLICY, decisions
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
NUMBER = 6000
OTHER = POLICY.replace("jitter: 20", "jitter: 0").replace(
    "rules:\n", "rules:\n  device_denied: {on: device, count: 4, window: 10m, then: {challenge: 20m}}\n"
)


async def apply(untold: Untold, text: str) -> Switch:
    stored = StoredPolicy(version=parse_policy(text).version, text=text, actor="ann", reason="why", ts=now_ms())
    switch = Switch(version=stored.version, ts=now_ms(), actor="ann", reason="why")
    await put_in_force(untold, stored, switch)
    return switch


async def controls(settings: Settings) -> list[Control]:
    topic = Topics.named(settings.topic_prefix).control
    return [msgspec.json.decode(one.value, type=Control) async for one in read_topic(settings, topic) if one.value]


async def markers(settings: Settings) -> list[tuple[int, PolicyInUse]]:
    """(when it was written, which policy from where on)"""
    found = [one for one in await controls(settings) if one.kind == "policy_in_use"]
    return [(one.ts, msgspec.json.decode(one.value, type=PolicyInUse)) for one in found]


async def test_workers_switch_within_a_second_under_load(
    broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """Two workers switch while decisions come in; states, blocks and penalties are the oracle's, policy by offset."""
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        await arena.start_worker()
        rest = iter(decisions(NUMBER, now_ms()))
        await arena.publish(islice(rest, NUMBER // 3))
        untold = Untold(arena.store.link, fresh_prefix)
        switch: Switch | None = None

        async def switched() -> bool:
            nonlocal switch
            await arena.publish(islice(rest, 16))
            switch = switch or await apply(untold, OTHER)
            return any(one.version == switch.version for _, one in await markers(arena.settings))

        await wait_until(switched, 30, "a worker's record of the other policy")
        assert switch is not None
        await arena.publish(rest)
        await arena.finished()
        told = await markers(arena.settings)
        took_ms = min(at for at, one in told if one.version == switch.version) - switch.ts
        oracle = await judged(arena, told)
        found = await arena.check(oracle)
        versions = [one.policy_version for penalties in found.penalties.values() for one in penalties]
        tell(f"switched after {took_ms} ms; penalties by policy: {[versions.count(one) for one in set(versions)]}")
        assert took_ms < 1000
        assert len(set(versions)) == 2
        assert await untold.size() == 0


async def judged(arena: Arena, told: list[tuple[int, PolicyInUse]]) -> Oracle:
    """The oracle after all that is on the topic, each record by the policy that the control topic names for it."""
    policies = {one.version: one for one in (arena.policy, parse_policy(OTHER))}
    starts: dict[int, list[tuple[int, str]]] = {}
    for _, one in told:
        if one.topic == arena.topics.decisions:
            starts.setdefault(one.partition, []).append((one.offset, one.version))
    oracle = Oracle(arena.policy)
    async for record in read_topic(arena.settings, arena.topics.decisions):
        _, version = max(start for start in starts[record.partition] if start[0] <= record.offset)
        oracle.policy = policies[version]
        with suppress(BadEvent):
            event = decode_decision(record.value or b"", record.timestamp, oracle.canonicaliser)
            oracle.judge(event, record.timestamp)
    oracle.policy = policies[parse_policy(OTHER).version]
    return oracle


async def test_a_change_while_kafka_is_away_is_told_when_it_is_back(
    private_broker: Any, redis_server: Any, fresh_prefix: str
) -> None:
    """The policy is in force at once; its records wait in Redis, and a worker sends them when the broker answers."""
    settings = Settings(
        kafka=private_broker.bootstrap,
        kafka_partitions=2,
        kafka_session_timeout_ms=6000,
        redis_url=redis_server.url,
        redis_prefix=fresh_prefix,
        topic_prefix=fresh_prefix,
        stop_timeout_s=4,
    )
    await ensure_topics(Connection.of(settings), Topics.named(fresh_prefix), TopicPlan.of(settings))
    link = open_link(endpoint_of(settings))
    untold = Untold(link, fresh_prefix)
    ending = Ending()
    task = asyncio.create_task(run_penalties(settings, ending=ending))
    try:
        await wait_until(lambda: policy_told(settings), 30, "the file's policy told")
        await wait_until(lambda: nothing_waits(untold), 30, "nothing else to tell")
        await asyncio.to_thread(private_broker.pause)
        switch = await apply(untold, OTHER)
        assert await tell_kafka(settings, untold) is False
        found = await read_in_force(link, fresh_prefix)
        assert found is not None
        assert found.switch == switch
        assert await untold.size() == 2
        await asyncio.to_thread(private_broker.resume)
        await wait_until(lambda: nothing_waits(untold), 60, "what was changed to be told")
        keys = [one.key for one in await controls(settings) if one.kind == "policy" and one.actor == "ann"]
        assert dict.fromkeys(keys) == dict.fromkeys([f"policy:{switch.version}", "policy"])
    finally:
        await asyncio.to_thread(private_broker.resume)
        ending.request()
        await task
        await link.close()


async def policy_told(settings: Settings) -> bool:
    return any(one.kind == "policy" for one in await controls(settings))


async def nothing_waits(untold: Untold) -> bool:
    return await untold.size() == 0


async def test_apply_tries_the_policy_on_the_topics_first(
    broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last hours brought decides: a policy that would deny most is refused, a mild one is in force."""
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        await arena.publish(decisions(1200, now_ms()))
        for name in ("kafka", "redis_url", "redis_prefix", "topic_prefix"):
            monkeypatch.setenv(f"PENALTYBOX_{name.upper()}", str(getattr(arena.settings, name)))
        harsh = "rules: {all: {on: user, count: 1, window: 10m, then: {level: 1h}, when: {action: ['*']}}}\n"
        (tmp_path / "harsh.yaml").write_text(harsh)
        (tmp_path / "mild.yaml").write_text(POLICY.replace("count: 5", "count: 500"))

        async def run(*arguments: str) -> Any:
            given = ["policy", "apply", *arguments, "--reason", "why", "--actor", "ann", "--yes", "--json"]
            return await asyncio.to_thread(CliRunner().invoke, app, given, catch_exceptions=False)

        refused = await run(str(tmp_path / "harsh.yaml"))
        assert refused.exit_code == 3
        document = msgspec.json.decode(refused.stdout)
        assert document["trial"][0]["dimension"] == "user"
        assert document["trial"][0]["denied"] == document["trial"][0]["seen"] > 10
        applied = await run(str(tmp_path / "mild.yaml"), "--most", "100")
        document = msgspec.json.decode(applied.stdout)
        assert (applied.exit_code, document["applied"], document["told"]) == (0, True, True)
        told = {one.key: one.value for one in await controls(arena.settings)}
        assert told["policy"] == document["version"]
        assert msgspec.json.decode(told[f"policy:{document['version']}"])["actor"] == "ann"
