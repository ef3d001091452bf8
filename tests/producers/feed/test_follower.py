"""Following a feed: what is known holds through every kind of end, and goes on where it was."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.producers.feed.follower import Follower, kept, restore
from penaltybox.producers.feed.http_source import HttpSource
from penaltybox.producers.feed.lines import InForce, Line, encoded
from penaltybox.producers.feed.mirror import Mirror
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

DENY = (InForce("deny", None),)
WHOLE = [
    Line("resync"),
    Line("add", "subject", "user:a", DENY),
    Line("add", "range", "192.0.2.0/24", (InForce("challenge", 5),)),
    Line("synced", cursor="e-1"),
]


class Script:
    """A source that answers each call with the next of its answers, then is silent."""

    def __init__(self, *answers: list[Line | Exception | bytes]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def lines(self, since: str) -> AsyncGenerator[bytes, None]:
        self.asked.append(since)
        if not self.answers:
            await asyncio.Event().wait()
        for one in self.answers.pop(0):
            if isinstance(one, Exception):
                raise one
            yield one if isinstance(one, bytes) else encoded(one)


@asynccontextmanager
async def following(source: Any) -> AsyncIterator[tuple[Mirror, list[int]]]:
    mirror, changes = Mirror(), []
    follower = Follower(source, mirror, lambda: changes.append(len(mirror.names)))
    task = asyncio.create_task(follower.run())
    try:
        yield mirror, changes
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_every_end_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage, a list that breaks off, nonsense, a feed that says when to come again: nothing known is lost by it."""
    monkeypatch.setattr("penaltybox.producers.feed.follower._FIRST_PAUSE_S", 0.01)
    source = Script(
        [StoreUnavailable("away")],
        WHOLE,
        [Line("resync"), Line("add", "subject", "user:b", DENY), OSError("cut")],
        [b"no JSON\n", b'{"op":"new"}\n', Line("add", "subject", "user:c", DENY, "e-2"), Line("again", after_ms=1)],
        [Line("beat", cursor="e-7")],
    )
    async with following(source) as (mirror, changes):
        await wait_until(lambda: len(source.asked) == 6, what="six questions")
        assert source.asked == ["", "", "e-1", "e-1", "e-2", "e-7"]
        assert {name for _, name in mirror.names} == {"user:a", "192.0.2.0/24", "user:c"}
        assert changes == [2, 3]


async def test_a_silent_feed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a beat the answer is given up, and asked for again."""
    monkeypatch.setattr("penaltybox.producers.feed.follower.SILENCE_S", 0.05)
    source = Script()
    async with following(source):
        await wait_until(lambda: len(source.asked) >= 2, what="another question")


def test_what_is_kept_comes_back() -> None:
    """A mirror as lines, read again; half of it is nothing."""
    mirror = Mirror()
    for line in WHOLE:
        mirror.take(line)
    lines = list(kept(mirror.names, mirror.cursor))
    other, half = Mirror(), Mirror()
    assert restore(other, lines)
    assert (other.names, other.cursor) == (mirror.names, "e-1")
    assert not restore(half, lines[:-1])
    assert half.names == {}


@asynccontextmanager
async def server(*pieces: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that sends these bytes whatever it is asked, and what it was asked."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    running = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with running:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}", heads


async def got(source: HttpSource) -> list[bytes]:
    return [piece async for piece in source.lines("e-1")]


async def test_both_kinds_of_body(caplog: pytest.LogCaptureFixture) -> None:
    """Chunks whose borders are anywhere, and a body until the end; only whole lines come; the secret is sent."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with server(chunked, b'4\r\n{"a"\r\n', b'6;x=y\r\n:1}\n{"\r\n', b'3\r\n"}\n\r\n0\r\n\r\n') as (url, heads):
        assert await got(HttpSource(f"{url}/behind", "a word")) == [b'{"a":1}\n', b'{""}\n']
        assert heads[0].startswith(b"GET /behind/v1/blocks/stream?since=e-1 HTTP/1.1\r\n")
        assert b"X-Penaltybox-Secret: a word\r\n" in heads[0]
    async with server(b"HTTP/1.0 200 OK\r\n\r\n", b"{}\n{}\n{") as (url, _):
        assert b"".join(await got(HttpSource(url))) == b"{}\n{}\n"
    assert not caplog.records


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "401.*PENALTYBOX_SERVE_SECRET"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "503"),
        (b"SSH-2.0\r\n", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\nab", "this is no feed"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 3_000_000, "this is no feed"),
    ],
)
async def test_what_is_no_feed(answer: bytes, sentence: str) -> None:
    """Told with where it was asked, and what may be wrong."""
    async with server(answer) as (url, _):
        with pytest.raises(StoreUnavailable, match=sentence):
            await got(HttpSource(url))


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8118", "http://", "http://x:port"])
def test_what_is_no_address(url: str) -> None:
    """A sentence instead of a traceback."""
    with pytest.raises(ConfigurationError, match="--from"):
        HttpSource(url)
