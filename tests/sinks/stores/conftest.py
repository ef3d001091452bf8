"""Every implementation of the subject store behind one fixture, `rig`: what a test may do to it from outside."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from redis.asyncio import Redis

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.keyspace import slot_of
from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.sinks.memory_store import MemoryKeys, MemorySubjectStore
from penaltybox.sinks.redis_store import RedisSubjectStore
from tests.redis_servers import KINDS as REDIS_KINDS
from tests.redis_servers import SentinelTrio, Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.sinks.subject_store import SubjectStore

KINDS = ["memory", *REDIS_KINDS]
_prefixes = itertools.count()


class Rig(Protocol):
    """One set of keys, and stores (workers) on it."""

    kind: str

    def store(self) -> SubjectStore: ...
    async def get(self, subject: str, name: str) -> bytes | None: ...
    async def put(self, subject: str, blob: bytes | None) -> None: ...
    async def end_of(self, subject: str, name: str) -> int | None: ...
    async def wipe(self) -> None: ...
    async def now(self) -> int: ...
    async def announced(self) -> list[str]: ...
    async def close(self) -> None: ...


class MemoryRig:
    kind = "memory"

    def __init__(self) -> None:
        self.keys = MemoryKeys()
        self._announced = 0

    def store(self) -> SubjectStore:
        return MemorySubjectStore(now_ms, self.keys)

    async def get(self, subject: str, name: str) -> bytes | None:
        return self.keys.get(f"{subject} {name}", now_ms())

    async def put(self, subject: str, blob: bytes | None) -> None:
        self.keys.set(f"{subject} state", blob, None, now_ms())

    async def end_of(self, subject: str, name: str) -> int | None:
        return self.keys.values[f"{subject} {name}"][1]

    async def wipe(self) -> None:
        self.keys.__init__()  # type: ignore[misc]

    async def now(self) -> int:
        return now_ms()

    async def announced(self) -> list[str]:
        return self.keys.events

    async def close(self) -> None:
        pass


class RedisRig:
    def __init__(self, kind: str, url: str, listen_at: int) -> None:
        self.kind = kind
        self.url = url
        self.prefix = f"t{next(_prefixes)}"
        self._listen_at = listen_at
        self._stores: list[RedisSubjectStore] = []
        self._outside = self.store()
        self._subscription: Any = None
        self._events: list[str] = []

    def store(self) -> RedisSubjectStore:
        store = RedisSubjectStore(open_link(parse_endpoint(self.url, deadline_s=10)), prefix=self.prefix)
        self._stores.append(store)
        return store

    async def call(self, *command: Any) -> Any:
        tag = command[1].partition("{")[2].partition("}")[0] or command[1]
        (reply,) = await self._outside.link.exchange([command], [slot_of(tag)])
        return reply

    def key(self, subject: str, name: str) -> str:
        return f"{self.prefix}:{{{subject}}}:{name}"

    async def get(self, subject: str, name: str) -> bytes | None:
        return await self.call("GET", self.key(subject, name))

    async def put(self, subject: str, blob: bytes | None) -> None:
        key = self.key(subject, "state")
        await (self.call("DEL", key) if blob is None else self.call("SET", key, blob))

    async def end_of(self, subject: str, name: str) -> int | None:
        end = await self.call("PEXPIRETIME", self.key(subject, name))
        assert end != -2, "no such key"
        return None if end == -1 else end

    async def wipe(self) -> None:
        for node in await self._outside.link.nodes():
            cursor = 0
            while True:
                ((cursor, keys),) = await node.exchange([("SCAN", cursor, "MATCH", f"{self.prefix}:*", "COUNT", 5000)])
                await node.exchange([("DEL", key) for key in keys])
                cursor = int(cursor)
                if not cursor:
                    break

    async def now(self) -> int:
        ((seconds, micros),) = await self._outside.link.exchange([("TIME",)])
        return int(seconds) * 1000 + int(micros) // 1000

    async def announced(self) -> list[str]:
        """All subjects announced since the first call, in order. A marker through every node ends the waiting."""
        channel = f"{self.prefix}:events"
        if self._subscription is None:
            self._listener = Redis(port=self._listen_at)
            self._subscription = self._listener.pubsub()
            await self._subscription.subscribe(channel)
            assert (await self._subscription.get_message(timeout=10))["type"] == "subscribe"
        nodes = await self._outside.link.nodes()
        for node in nodes:
            await node.exchange([("PUBLISH", channel, "#")])
        markers = 0
        while markers < len(nodes):
            message = await self._subscription.get_message(timeout=10)
            assert message is not None, "no marker"
            if message["data"] == b"#":
                markers += 1
            else:
                self._events.append(message["data"].decode())
        return self._events

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        if self._subscription is not None:
            await self._subscription.aclose()
            await self._listener.aclose()


def rig_of(kind: str, redis_by_kind: dict[str, Any]) -> Rig:
    if kind == "memory":
        return MemoryRig()
    server = redis_by_kind[kind]
    if isinstance(server, Server):
        return RedisRig(kind, f"redis://127.0.0.1:{server.port}", server.port)
    listen_at = server.master.port if isinstance(server, SentinelTrio) else server.servers[1].port
    return RedisRig(kind, server.url, listen_at)


@pytest.fixture(params=KINDS)
async def rig(request: pytest.FixtureRequest, redis_by_kind: dict[str, Any]) -> AsyncIterator[Rig]:
    """Empty keys in each implementation."""
    made = rig_of(request.param, redis_by_kind)
    yield made
    await made.close()


@pytest.fixture(params=REDIS_KINDS)
async def redis_rig(request: pytest.FixtureRequest, redis_by_kind: dict[str, Any]) -> AsyncIterator[RedisRig]:
    """Empty keys in each real server."""
    made = rig_of(request.param, redis_by_kind)
    assert isinstance(made, RedisRig)
    yield made
    await made.close()
