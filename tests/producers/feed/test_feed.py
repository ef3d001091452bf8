"""The feed on real servers: what changes in Redis reaches an enforcer within a second, and nothing is ever missed."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.keyspace import slot_of
from penaltybox.contracts.policy import AllowEntry
from penaltybox.producers.feed.feed import Feed
from penaltybox.producers.feed.lines import InForce, Line
from penaltybox.producers.feed.mirror import Mirror
from penaltybox.sinks.blocklist import Blocklist
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.subject_store import Mark, Written
from tests.producers.limiters import Rig, rig_on
from tests.redis_servers import BINARIES, KINDS, Server, single
from tests.sinks.stores.blobs import block, write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

SECOND_S = 1.0
FOR_GOOD = b'{"until":null,"rung":"permanent","rule":"r","penalty":"p"}'


class Enforcer:
    """Follows a feed, and comes back where it was cut off."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.mirror = Mirror()
        self.ops: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def knows(self, name: str) -> bool:
        return any(text == name for _, text in self.mirror.names)

    async def _run(self) -> None:
        while True:
            async with aclosing(self.feed.follow(self.mirror.cursor)) as pieces:
                async for piece in pieces:
                    for text in piece.splitlines():
                        line = msgspec.json.decode(text, type=Line)
                        self.ops.append(line.op)
                        self.mirror.take(line)
            self.mirror.broken_off()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        await wait_until(lambda: self.mirror.cursor, what="a cursor")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def feed_on(rig: Rig, **more: Any) -> AsyncIterator[Feed]:
    prefix = rig.keyspace.prefix
    feed = Feed(rig.link, Blocklist(rig.link, prefix), prefix=prefix, **more)
    try:
        await feed.ready()
        yield feed
    finally:
        await feed.close()


@pytest.fixture(params=KINDS)
async def rig(request: pytest.FixtureRequest, redis_by_kind: dict[str, Any]) -> AsyncIterator[Rig]:
    async with rig_on(redis_by_kind[request.param]) as rig:
        yield rig


@pytest.fixture
async def one_rig(redis_by_kind: dict[str, Any]) -> AsyncIterator[Rig]:
    async with rig_on(redis_by_kind[next(iter(BINARIES))]) as rig:
        yield rig


async def put_field(rig: Rig, key: str, field: str, value: bytes | None) -> None:
    command = ("HDEL", key, field) if value is None else ("HSET", key, field, value)
    await rig.link.exchange([command], [slot_of(key)])  # type: ignore[list-item]
    await says(rig, "#lists")


async def says(rig: Rig, message: str) -> None:
    nodes = await rig.link.nodes()
    await nodes[-1].exchange([("PUBLISH", rig.keyspace.events, message)])


async def lone(feed: Feed, since: str = "", wait_s: float = 0) -> list[Line]:
    """One answer."""
    async with aclosing(feed.follow(since, wait_s)) as pieces:
        return [msgspec.json.decode(text, type=Line) async for piece in pieces for text in piece.splitlines()]


async def test_a_ban_and_an_unban_reach_an_enforcer(rig: Rig) -> None:
    """An unban within a second, on every kind of server, as the store writes it; who is both is told as both."""
    store = RedisSubjectStore(rig.link, prefix=rig.keyspace.prefix)
    async with feed_on(rig) as feed, Enforcer(feed) as enforcer:
        marks = (block(FOR_GOOD), Mark("challenge", FOR_GOOD, now_ms() + 60_000))
        (first,) = await store.write([write("user:u", nonce=1, end=1 << 42, marks=marks)])
        assert isinstance(first, Written)
        await wait_until(lambda: enforcer.knows("user:u"), what="the ban")
        deny, challenge = enforcer.mirror.names["subject", "user:u"]
        assert deny == InForce("deny", None, "permanent", "r")
        assert challenge.action == "challenge"
        assert challenge.until == pytest.approx(now_ms() + 60_000, abs=10_000)  # the key's own end
        gone = (block(None), Mark("challenge", None, None))
        await store.write([write("user:u", (first.number, 1), nonce=2, end=1 << 42, marks=gone)])
        lifted = time.monotonic()
        await wait_until(lambda: not enforcer.knows("user:u"), what="the unban")
        assert time.monotonic() - lifted < SECOND_S
        assert enforcer.ops.count("resync") == 1


async def test_a_whole_list_has_everything(rig: Rig) -> None:
    """Blocks, challenges, both of one subject, banned ranges and allowlist; what has ended and what is nonsense not."""
    for subject, name in (
        ("ip:192.0.2.1", "block"),
        ("user:b", "challenge"),
        ("user:c", "block"),
        ("user:c", "challenge"),
    ):
        await rig.put(subject, name, {"until": 1 << 42, "rung": "1h", "rule": "r", "penalty": "p"})
    await put_field(rig, rig.keyspace.cidr, "198.51.100.7/24", b'{"action":"challenge","until":null}')
    await put_field(rig, rig.keyspace.cidr, "::ffff:203.0.113.0/120", b'{"until":9999999999999}')
    await put_field(rig, rig.keyspace.cidr, "10.0.0.0/8", b'{"until":1}')
    await put_field(rig, rig.keyspace.cidr, "nonsense", b"{}")
    await put_field(rig, rig.keyspace.cidr, "10.0.0.0/9", b"no JSON")
    await put_field(rig, rig.keyspace.allow, "2001:db8::1", b'{"until":null}')
    await put_field(rig, rig.keyspace.allow, "user:vip", b"{}")
    policy = (AllowEntry(cidr="192.0.2.128/25"), AllowEntry(subject="user:vip", until=now_ms() + 60_000))
    async with feed_on(rig, allow=policy) as feed:
        lines = await lone(feed)
    end = next(at for at, line in enumerate(lines) if line.op == "synced")
    assert lines[0].op == "resync"
    assert {line.name for line in lines[end + 1 :]} <= {line.name for line in lines[1:end]}  # told twice, at most
    found = {(line.kind, line.name): [(one.action, one.until) for one in line.in_force] for line in lines[1:end]}
    assert found == {
        ("subject", "ip:192.0.2.1"): [("deny", 1 << 42)],
        ("subject", "user:b"): [("challenge", 1 << 42)],
        ("subject", "user:c"): [("deny", 1 << 42), ("challenge", 1 << 42)],
        ("range", "198.51.100.0/24"): [("challenge", None)],
        ("range", "203.0.113.0/24"): [("deny", 9999999999999)],
        ("allow", "2001:db8::/64"): [("allow", None)],
        ("allow", "user:vip"): [("allow", None)],
        ("allow", "192.0.2.128/25"): [("allow", None)],
    }


async def test_lists_are_told(one_rig: Rig) -> None:
    """A range that is banned and one that is no more; a policy's own allowlist when the policy changes."""
    rig = one_rig
    async with feed_on(rig) as feed, Enforcer(feed) as enforcer:
        await put_field(rig, rig.keyspace.cidr, "198.51.100.0/24", b'{"until":null}')
        await wait_until(lambda: enforcer.knows("198.51.100.0/24"), what="the ban")
        await put_field(rig, rig.keyspace.cidr, "198.51.100.0/24", None)
        await wait_until(lambda: not enforcer.knows("198.51.100.0/24"), what="its end")
        feed.replace_allow((AllowEntry(subject="user:vip"),))
        await wait_until(lambda: enforcer.knows("user:vip"), what="the policy's entry")
        feed.replace_allow(())
        await wait_until(lambda: not enforcer.knows("user:vip"), what="its end")
        assert enforcer.ops.count("resync") == 1


async def test_who_comes_back_gets_what_was_missed_and_no_more(one_rig: Rig) -> None:
    """From the last cursor: only the changes since; from one that is too old, or another's: the whole list."""
    rig = one_rig
    async with feed_on(rig, size=4) as feed:
        cursor = (await lone(feed))[-1].cursor
        await rig.put("user:a", "block", {"until": None})
        await says(rig, "user:a")
        news = await lone(feed, cursor, wait_s=10)
        assert [(line.op, line.name) for line in news] == [("beat", ""), ("add", "user:a")]
        assert [line.op for line in await lone(feed, news[-1].cursor)] == ["beat"]
        assert [line.name for line in (await lone(feed, cursor))[1:]] == ["user:a"]
        for number in range(5):
            await says(rig, f"user:{number}")
        await wait_until(lambda: feed._log.last >= 6, what="five more changes")
        assert [line.op for line in await lone(feed, cursor)] == ["resync", "add", "synced"]
    async with feed_on(rig) as other:
        lines = await lone(other, news[-1].cursor)
        assert (lines[0].op, lines[0].reason) == (
            "resync",
            "the cursor is too old, or from another start of the service",
        )


async def test_a_list_is_read_once_for_all(one_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred enforcers that come at once cost Redis one walk; beyond the bound they are told when to come again."""
    walks = 0
    walk = Blocklist.blocks

    def counted(self: Blocklist, *given: Any) -> Any:
        nonlocal walks
        walks += 1
        return walk(self, *given)

    monkeypatch.setattr(Blocklist, "blocks", counted)
    async with feed_on(one_rig) as feed:
        answers = await asyncio.gather(*(lone(feed) for _ in range(100)))
    assert walks == 1
    ends = [lines[-1] for lines in answers]
    told = [line for line in ends if line.op == "again"]
    assert len(told) == 36
    assert {line.op for line in ends} == {"synced", "again"}
    assert all(0 <= line.after_ms < 30_000 for line in told)
    assert len({line.after_ms for line in told}) > 10


async def test_who_asks_once_gets_all_that_is_known(one_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole list that was read for somebody else lacks what came since: an answer that ends has that too."""
    monkeypatch.setattr("penaltybox.producers.feed.feed._LINES", 3)
    async with feed_on(one_rig) as feed:
        first = await lone(feed)
        cursor = next(line.cursor for line in first if line.op == "synced")
        for number in range(10):
            await one_rig.put(f"user:u{number}", "block", {"until": None})
            await says(one_rig, f"user:u{number}")
        await wait_until(lambda: feed._log.last >= 10, what="ten changes")
        again = await lone(feed)
        assert cursor == next(line.cursor for line in again if line.op == "synced")
        assert {line.name for line in again if line.op == "add"} == {f"user:u{number}" for number in range(10)}
        assert again[-1].cursor == feed._log.cursor(feed._log.last)


async def test_readers_that_take_nothing_keep_nobody_away(one_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may get the whole list at once began to, and stopped: after a while others get it all the same."""
    monkeypatch.setattr("penaltybox.producers.feed.feed.SYNC_S", 0.2)
    async with feed_on(one_rig) as feed, AsyncExitStack() as readers:
        for _ in range(64):
            pieces = await readers.enter_async_context(aclosing(feed.follow()))
            assert msgspec.json.decode(await anext(pieces), type=Line).op == "resync"
        deadline = asyncio.get_running_loop().time() + 60
        while (await lone(feed))[-1].op != "synced":
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0)  # the loop's timers have their turn


@pytest.fixture(params=BINARIES)
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server that this test may stop."""
    server = single(BINARIES[request.param], tmp_path)
    yield server
    server.kill()


async def test_a_cut_subscription_forces_a_resync(own_server: Server) -> None:
    """What was said while nobody listened is in the list that everybody gets then."""
    async with rig_on(own_server) as rig, feed_on(rig) as feed, Enforcer(feed) as enforcer:
        await rig.put("user:a", "block", {"until": None})
        await says(rig, "user:a")
        await wait_until(lambda: enforcer.knows("user:a"), what="the ban")
        assert own_server.call("CLIENT", "KILL", "TYPE", "pubsub") == 1
        await rig.drop("user:a", "block")
        await rig.put("user:b", "block", {"until": None})
        await wait_until(lambda: enforcer.knows("user:b") and not enforcer.knows("user:a"), 20, "the other ban")
        assert enforcer.ops.count("resync") == 2
        assert "again" in enforcer.ops


async def test_a_stream_says_when_it_hears_nothing(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """While Redis is away beats are marked as stale, and a whole list is not to be had; then all is well again."""
    monkeypatch.setattr("penaltybox.producers.feed.feed.BEAT_S", 0.05)
    async with rig_on(own_server) as rig, feed_on(rig) as feed:
        beats: list[bool] = []

        async def listen() -> None:
            async for piece in feed.follow(feed._log.cursor(0)):
                line = msgspec.json.decode(piece.splitlines()[-1], type=Line)
                beats.append(line.stale)

        task = asyncio.create_task(listen())
        await wait_until(lambda: beats and not beats[-1], what="a beat")
        own_server.kill()
        await wait_until(lambda: beats[-1], 20, "a stale beat")
        assert [line.op for line in await lone(feed)] == ["again"]
        own_server.start()
        await wait_until(task.done, 20, "the end of the answer")
        assert (await lone(feed))[-1].op == "synced"
