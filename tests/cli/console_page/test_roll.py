"""The blocklist in memory: read once, kept current, asked by page."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.cli.console_page import roll as rolls
from penaltybox.cli.console_page.roll import Roll
from penaltybox.contracts.keyspace import Keyspace, slot_of
from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.links.listening import Listener
from penaltybox.sinks.blocklist import Blocklist
from penaltybox.sinks.lists import HandLists
from tests.producers.limiters import url_of
from tests.redis_servers import BINARIES
from tests.servers import fresh_name
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NOW = 1_800_000_000_000


class Redis:
    """Marks as any program writes them."""

    def __init__(self, url: str) -> None:
        self.link = open_link(parse_endpoint(url))
        self.prefix = fresh_name("roll")
        self.keys = Keyspace(self.prefix)

    async def do(self, subject: str, *command: Any) -> None:
        await self.link.exchange([command], [slot_of(subject)])

    async def block(self, subject: str, until: int | None, name: str = "block", rule: str = "r") -> None:
        (key,) = self.keys.subject_keys([subject], name)
        await self.do(subject, "SET", key, json.dumps({"until": until, "rung": "1h", "rule": rule, "penalty": "p"}))
        await self.say(subject)

    async def lift(self, subject: str) -> None:
        await self.do(subject, "DEL", *self.keys.subject_keys([subject], "block"))
        await self.say(subject)

    async def say(self, subject: str) -> None:
        for node in await self.link.nodes():
            await node.exchange([("PUBLISH", self.keys.events, subject)])


@pytest.fixture
async def redis(redis_by_kind: dict[str, Any]) -> AsyncIterator[Redis]:
    made = Redis(url_of(redis_by_kind[next(iter(BINARIES))]))
    yield made
    await made.link.close()


@pytest.fixture
async def roll(redis: Redis) -> AsyncIterator[Roll]:
    """Five subjects, and whoever comes later."""
    for number in range(3):
        await redis.block(f"user:u{number}", NOW + 1000 * (number + 1), rule="abuse")
    await redis.block("device:d", None)
    await redis.block("ip:192.0.2.1", NOW + 9000, "challenge")
    made = Roll(Blocklist(redis.link, redis.prefix), HandLists(redis.link, redis.prefix), lambda: NOW)
    listener = Listener(redis.link, redis.keys.events, made)
    listener.start()
    task = asyncio.create_task(made.keep())
    await wait_until(lambda: made.counts() == (4, 1, 0) and listener.heard_ms is not None)
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await listener.close()


def subjects(roll: Roll, **query: Any) -> list[str]:
    return [row.subject for row in roll.page(**{"offset": 0, "limit": 50, **query}).rows]


async def test_pages(roll: Roll) -> None:
    """By end or subject, by dimension, state and text; the total is of all pages."""
    assert subjects(roll) == ["device:d", "ip:192.0.2.1", "user:u2", "user:u1", "user:u0"]
    assert subjects(roll, order="first")[0] == "user:u0"
    assert subjects(roll, order="subject", offset=3) == ["user:u1", "user:u2"]
    assert subjects(roll, kind="challenge") == ["ip:192.0.2.1"]
    assert subjects(roll, dimension="user", limit=1) == ["user:u2"]
    assert subjects(roll, text="ABUSE") == ["user:u2", "user:u1", "user:u0"]
    page = roll.page(offset=0, limit=1)
    assert (page.total, page.complete) == (5, True)
    assert [(one.dimension, one.denied, one.challenged) for one in page.dimensions] == [
        ("device", 1, 0), ("ip", 0, 1), ("user", 3, 0),
    ]  # fmt: skip


async def test_changes_are_heard(roll: Roll, redis: Redis) -> None:
    """A new block and a lift are there without another walk; the version says that something has changed."""
    version = roll.version
    await redis.block("user:new", NOW + 5000)
    await wait_until(lambda: "user:new" in subjects(roll))
    assert roll.version > version
    await redis.lift("user:new")
    await wait_until(lambda: "user:new" not in subjects(roll))


async def test_what_has_ended_is_not_shown(roll: Roll, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end counts, not when its key goes."""
    await redis.block("user:gone", NOW - 1)
    await redis.block("user:there", NOW + 1)
    await wait_until(lambda: "user:there" in subjects(roll))
    assert "user:gone" not in subjects(roll)
    monkeypatch.setattr(roll, "_now_ms", lambda: NOW + 2500)
    assert subjects(roll, dimension="user") == ["user:u2"]


async def test_more_than_is_kept_is_told(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the rest is left out, and the page says that it is not complete."""
    for number in range(8):
        await redis.block(f"user:u{number}", None)
    monkeypatch.setattr(rolls, "MOST", 5)
    made = Roll(Blocklist(redis.link, redis.prefix), HandLists(redis.link, redis.prefix), lambda: NOW)
    task = asyncio.create_task(made.keep())
    await wait_until(lambda: made.version > 0)
    page = made.page(offset=0, limit=50)
    assert (page.total, page.complete) == (5, False)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_end_changes_the_version(roll: Roll, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that ends by itself is a change, although nobody says anything; without one the version stays."""
    version = roll.version
    assert roll.counts() == (4, 1, 0)
    assert roll.version == version
    monkeypatch.setattr(roll, "_now_ms", lambda: NOW + 1500)
    assert roll.counts() == (3, 1, 0)
    assert roll.version > version
    assert roll.page(offset=0, limit=50).total == 4


async def test_a_console_started_again_has_another_version(roll: Roll, redis: Redis) -> None:
    """A page that outlives its console sees that the list is another one: the numbers of the first never come again."""
    lists = HandLists(redis.link, redis.prefix)
    made = Roll(Blocklist(redis.link, redis.prefix), lists, lambda: NOW + 5000)
    task = asyncio.create_task(made.keep())
    await wait_until(lambda: made.counts()[0] > 0 and made.version > 0)
    assert made.version > roll.version
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
