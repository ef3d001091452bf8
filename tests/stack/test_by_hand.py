"""Commands beside a worker that runs: in force at once, kept by the worker's own writes, told to Kafka."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.cli.fleet import environment_of
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Control, DeadLetter, Penalty, encode
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.topics import Topics
from penaltybox.processors.announcements import Message, kafka_sender
from penaltybox.processors.topic_log import read_topic
from penaltybox.producers.composition import open_limiter
from penaltybox.producers.limiter import Request
from tests.processors.worker_driver import denial
from tests.stack.test_command_line import ROOT
from tests.stack.test_restore import block, deny, opened, running, stack
from tests.waiting import wait_until

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings

pytestmark = pytest.mark.stack
__all__ = ["stack"]
WHY = ("--reason", "ticket 4711", "--actor", "alice")


async def command(values: Settings, *arguments: str, kafka: str = "") -> str:
    """Standard output of a command with these settings; it must not fail."""
    environment = {**os.environ, **environment_of(values), **({"PENALTYBOX_KAFKA": kafka} if kafka else {})}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "penaltybox", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def penalties(values: Settings) -> list[Penalty]:
    """All on the topic."""
    topic = Topics.named(values.topic_prefix).penalties
    return [msgspec.json.decode(one.value, type=Penalty) async for one in read_topic(values, topic)]


async def controls(values: Settings) -> list[Control]:
    """All on the control topic but what restores write."""
    topic = Topics.named(values.topic_prefix).control
    records = [msgspec.json.decode(one.value, type=Control) async for one in read_topic(values, topic) if one.value]
    return [one for one in records if one.kind in ("allow", "cidr")]


async def test_a_ban_holds_against_the_workers_own_writes(stack: Settings) -> None:
    """The worker has the subject in memory with two of three denials; the ban stays, and is told with who and why."""
    async with opened(stack) as store, running(stack):
        await deny(stack, "other")
        await wait_until(lambda: block(store, "other"), deadline_s=30)
        await command(stack, "ban", "user:u1", "--level", "permanent", *WHY)
        assert (await block(store, "u1"))["until"] is None
        await deny(stack, "u1")
        await deny(stack, "later", first=10)
        await wait_until(lambda: block(store, "later"), deadline_s=30)
        assert (await block(store, "u1"))["until"] is None

        async def told() -> Any:
            return [one for one in await penalties(stack) if one.origin == "hand"]

        (penalty,) = await wait_until(told, deadline_s=30)
        assert (penalty.subject, penalty.to, penalty.actor, penalty.note) == (
            "user:u1", "permanent", "alice", "ticket 4711"
        )  # fmt: skip


async def test_a_listing_hides_what_a_worker_blocks_and_ends(stack: Settings) -> None:
    """Listed: no new block and the old one hidden within a second; removed: it is back, and new ones come."""
    async with opened(stack) as store, running(stack):
        await deny(stack, "u1")
        before = await wait_until(lambda: block(store, "u1"), deadline_s=30)
        await command(stack, "allow", "add", "user:u1", *WHY)
        await command(stack, "allow", "add", "user:u2", *WHY)
        assert await block(store, "u1") is None
        await deny(stack, "u2")
        await deny(stack, "u3", first=10)
        await wait_until(lambda: block(store, "u3"), deadline_s=30)
        assert await block(store, "u2") is None
        await command(stack, "allow", "remove", "user:u1", *WHY)
        assert await block(store, "u1") == before
        await command(stack, "allow", "remove", "user:u2", *WHY)

        async def noticed() -> Any:
            await deny(stack, "u2", first=20)
            return await block(store, "u2")

        await wait_until(noticed, deadline_s=30)
        assert [one.key for one in await controls(stack)] == ["allow:user:u1", "allow:user:u2"] * 2


async def test_an_entry_that_somebody_else_wrote_is_honoured_within_a_second(stack: Settings) -> None:
    """Written by redis-cli as docs/keys.md says: the worker alone hides the block, and shows it when it ends."""
    async with opened(stack) as store, running(stack):
        await deny(stack, "u1")
        before = await wait_until(lambda: block(store, "u1"), deadline_s=30)
        (now,) = await store.link.exchange([("TIME",)])
        until = int(now[0]) * 1000 + 3000
        value = json.dumps({"until": until, "note": "a test"})
        await store.link.exchange([("HSET", "pbx:allow", "user:u1", value), ("PUBLISH", "pbx:events", "#lists")])

        async def hidden() -> bool:
            return await block(store, "u1") is None

        await wait_until(hidden, deadline_s=1.0)
        assert await wait_until(lambda: block(store, "u1"), deadline_s=10) == before


async def test_with_kafka_away_it_is_in_force_and_told_later(stack: Settings) -> None:
    """A ban and a listing against a broker that is not there; a worker that can reach it tells both."""
    async with opened(stack) as store, running(stack):
        await deny(stack, "other")
        await wait_until(lambda: block(store, "other"), deadline_s=30)
        await command(stack, "ban", "user:u1", *WHY, kafka="127.0.0.1:1")
        await command(stack, "ban", "203.0.113.0/24", *WHY, kafka="127.0.0.1:1")
        assert await block(store, "u1")

        async def told() -> bool:
            hands = [one for one in await penalties(stack) if one.origin == "hand"]
            return bool(hands) and [one.key for one in await controls(stack)] == ["cidr:203.0.113.0/24"]

        await wait_until(told, deadline_s=30)


async def test_a_restore_brings_the_lists_back(stack: Settings) -> None:
    """Wiped: what is listed or banned is back, what was removed is not, and a listed subject's block stays hidden."""
    async with opened(stack) as store:
        async with running(stack):
            await deny(stack, "u1")
            await wait_until(lambda: block(store, "u1"), deadline_s=30)
            await command(stack, "allow", "add", "user:u1", *WHY)
            await command(stack, "allow", "add", "user:gone", *WHY)
            await command(stack, "allow", "remove", "user:gone", *WHY)
            await command(stack, "ban", "203.0.113.0/24", *WHY)
        await store.link.exchange([("FLUSHALL",)])
        await command(stack, "restore", "--yes", "--reason", "a test", "--actor", "bob")
        assert await store.link.exchange([("HKEYS", "pbx:allow"), ("HKEYS", "pbx:cidr")]) == [
            [b"user:u1"], [b"203.0.113.0/24"]
        ]  # fmt: skip
        assert await block(store, "u1") is None
        assert (await store.read(["user:u1"]))[0]


async def test_the_audit_lists_who_did_what(stack: Settings) -> None:
    """Steps, lists and pauses, from the topics; what waits for Kafka is there too, and marked."""
    async with opened(stack) as store:
        await store.join_generation()
        await command(stack, "ban", "user:u1", *WHY, kafka="127.0.0.1:1")
        listed = await command(stack, "allow", "add", "user:u2", *WHY, kafka="127.0.0.1:1")
        assert "user:u2 is allowlisted" in listed
        deeds = [json.loads(line) for line in (await command(stack, "audit", "--json")).splitlines()]
        assert [(one["what"], one["about"], one["told"]) for one in deeds] == [
            ("allow add", "user:u2", False), ("ban", "user:u1", False)
        ]  # fmt: skip
        async with running(stack):
            await wait_until(lambda: penalties(stack), deadline_s=30)
        await command(stack, "unban", "user:u1", "--reason", "appeal", "--actor", "bob")
        await command(stack, "pause", "--reason", "a test", "--actor", "bob")
        deeds = [json.loads(line) for line in (await command(stack, "audit", "--json")).splitlines()]
        assert [(one["what"], one["actor"], one["told"]) for one in deeds] == [
            ("pause", "bob", True), ("unban", "bob", False), ("allow add", "alice", True), ("ban", "alice", True)
        ]  # fmt: skip
        assert "appeal" in await command(stack, "audit", "--actor", "bob", "--about", "user:u1")


async def test_dead_letters_are_shown_and_tried_again(stack: Settings) -> None:
    """Bytes are escaped; what still cannot be judged stays; what can be is sent, and leads to its block once."""
    topics = Topics.named(stack.topic_prefix)
    raw = [encode(denial(number, user="u1", at=now_ms())) for number in range(3)]
    about: dict[str, Any] = {"reason": "bad_ip", "partition": 0, "offset": 7}
    letters = [
        DeadLetter(ts=now_ms() + number, detail="d", topic=topics.decisions, raw=one, **about)
        for number, one in enumerate([*raw, raw[0], b"\x1b[31mnonsense\xff"])
    ]
    letters.append(DeadLetter(ts=1, detail="\x1b[2J", topic=topics.control, raw=b"{}", **about))
    sender = kafka_sender(stack)
    await sender.start()
    await sender.send([Message(topics.dead_letters, None, encode(one)) for one in letters])
    await sender.stop()
    shown = await command(stack, "dead-letters", "show", "--limit", "100")
    assert "\x1b" not in shown
    assert "\\x1b[31mnonsense\\xff" in shown
    assert len((await command(stack, "dead-letters", "show", "--limit", "2", "--json")).splitlines()) == 2
    told = json.loads(await command(stack, "dead-letters", "retry", "--because", "bad_ip", "--dry-run", "--json", *WHY))
    assert told == {"sent": 0, "would_send": 4, "left_out": 2}
    async with opened(stack) as store, running(stack):
        told = json.loads(await command(stack, "dead-letters", "retry", "--all", "--yes", "--json", *WHY))
        assert told == {"sent": 4, "would_send": 4, "left_out": 2}
        await wait_until(lambda: block(store, "u1"), deadline_s=30)
        assert len([one for one in await penalties(stack) if one.subject == "user:u1"]) <= 1
    assert "dead-letters retry" in await command(stack, "audit")


async def test_limiters_follow_the_lists_that_commands_write(stack: Settings) -> None:
    """A banned range denies within a second, an allowlisted address inside it is let through, and both end."""
    policy = parse_policy("limits: {s: {ip: [{name: hour, limit: 1000000, window: 1h}]}}")

    async def action(address: str) -> str:
        subjects = {"ip": address}
        request = Request(id=ulid(now_ms()), ts_ms=now_ms(), scenario="s", subjects=subjects)
        return (await limiter.decide(request)).action

    async def actions(*wanted: str) -> bool:
        return (await action("203.0.113.7"), await action("203.0.113.8")) == wanted

    async with opened(stack) as store, open_limiter(stack, policy, source="edge/1", publisher=Unheard()) as limiter:
        await store.join_generation()
        for arguments, wanted in (
            (("ban", "203.0.113.0/24"), ("deny", "deny")),
            (("allow", "add", "203.0.113.7"), ("allow", "deny")),
            (("unban", "203.0.113.0/24"), ("allow", "allow")),
            (("ban", "203.0.112.0/23"), ("allow", "deny")),
            (("allow", "remove", "203.0.113.7"), ("deny", "deny")),
        ):
            await command(stack, *arguments, *WHY)
            await wait_until(lambda wanted=wanted: actions(*wanted), deadline_s=1.5)  # type: ignore[misc]


class Unheard:
    """A publisher that keeps nothing."""

    def offer(self, record: Any) -> None:
        """Takes it."""
