"""Inline limiters on real servers for tests: each on keys of its own."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.keyspace import Keyspace, slot_of
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.producers.inline import InlineLimiter
from penaltybox.producers.limiter import Request
from tests.redis_servers import KINDS, Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.contracts.policy import Policy

__all__ = ["KINDS"]
_numbers = itertools.count()
PATIENT = "scenarios: {s: {deadline: 5s}}"
"""A deadline that a busy machine keeps."""


def policy(limits: str, more: str = PATIENT) -> Policy:
    """The limits of one scenario `s`, written as YAML."""
    return parse_policy(f"limits:\n  s:\n    {limits.strip()}\n{more}")


def request(number: int | None = None, **changed: Any) -> Request:
    """A request of user u, device d and an address; its own time is long ago, because it counts for nothing."""
    given = {"id": f"r{next(_numbers) if number is None else number}", "ts_ms": 1_000, "scenario": "s"}
    return Request(**(given | {"subjects": {"user": "u", "device": "d", "ip": "192.0.2.1"}} | changed))


def url_of(server: Any) -> str:
    return f"redis://127.0.0.1:{server.port}" if isinstance(server, Server) else str(server.url)


def at(limiter: InlineLimiter, now_ms: int) -> None:
    """From now on it is this time for the limiter's Redis."""
    limiter._counters.test_now_ms = now_ms  # type: ignore[attr-defined]


class Rig:
    """A limiter, and a way around it to its keys."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keyspace = Keyspace(settings.redis_prefix)
        self.link = open_link(endpoint_of(settings))
        self.published: list[Any] = []

    @property
    def clustered(self) -> bool:
        return self.link.clustered

    def fresh(self) -> Settings:
        """Settings of other keys on the same server."""
        return msgspec.structs.replace(self.settings, redis_prefix=f"lim{next(_numbers)}")

    def offer(self, record: Any) -> None:
        self.published.append(record)

    def open(self, policy: Policy, **more: Any) -> InlineLimiter:
        return InlineLimiter.open(self.settings, policy, source="test/1", publisher=self, **more)

    async def call(self, *command: Any) -> Any:
        """One command about the key that is its second word."""
        tag = str(command[1]).partition("{")[2].partition("}")[0]
        (reply,) = await self.link.exchange([command], [slot_of(tag)])
        return reply

    async def put(self, subject: str, name: str, value: Any, life_ms: int = 60_000) -> None:
        """Set a key beside a subject, as the processors do."""
        await self.call("SET", f"{self.keyspace.stem(subject)}:{name}", msgspec.json.encode(value), "PX", life_ms)

    async def drop(self, subject: str, name: str) -> None:
        await self.call("DEL", f"{self.keyspace.stem(subject)}:{name}")

    async def keys(self) -> list[str]:
        """All keys of this rig, sorted."""
        found: set[str] = set()
        for node in await self.link.nodes():
            cursor = b"0"
            while True:
                ((cursor, names),) = await node.exchange([("SCAN", cursor, "MATCH", f"{self.keyspace.prefix}:*")])
                found.update(name.decode() for name in names)
                if cursor == b"0":
                    break
        return sorted(found)

    async def now(self) -> int:
        return now_ms()


@asynccontextmanager
async def rig_on(server: Any, **more: Any) -> AsyncIterator[Rig]:
    """Keys of one's own on this server."""
    rig = Rig(Settings(redis_url=url_of(server), redis_prefix=f"lim{next(_numbers)}", **more))
    try:
        yield rig
    finally:
        await rig.link.close()
