"""One connection for all calls: replies reach those who asked, whatever happens to the others."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from penaltybox.contracts.errors import PenaltyboxError, StoreUnavailable
from penaltybox.links import multiplex
from penaltybox.links.connections import open_multiplexed, parse_endpoint
from tests.redis_servers import BINARIES, single
from tests.tls import make_certificates, start_tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.redis_servers import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = single(next(iter(BINARIES.values())), tmp_path)
    yield started
    started.kill()


@pytest.fixture
async def link(server: Server) -> AsyncIterator[Any]:
    opened = link_to(server)
    yield opened
    await opened.close()


def link_to(server: Server) -> Any:
    return open_multiplexed(parse_endpoint(f"redis://127.0.0.1:{server.port}", deadline_s=5))


async def test_everybody_gets_the_reply_to_his_own_call(link: Any) -> None:
    """A thousand calls at once, single ones and pipelines, over one connection."""
    calls = [link.ask(("ECHO", f"{n}"), 5) for n in range(500)]
    pipelines = [link.exchange([("ECHO", f"a{n}"), ("ECHO", f"b{n}")]) for n in range(500)]
    got = await asyncio.gather(*calls, *pipelines)
    assert got[:500] == [b"%d" % n for n in range(500)]
    assert got[500:] == [[b"a%d" % n, b"b%d" % n] for n in range(500)]
    clients = await link.ask(("CLIENT", "LIST"), 5)
    assert clients.count(b"name=penaltybox ") == 1
    assert await link.exchange([]) == []


async def test_an_error_reply_is_its_callers_alone(link: Any) -> None:
    """Of calls in one write, the one that is wrong fails; the others have their replies."""
    await link.ask(("SET", "text", "x"), 5)
    got = await asyncio.gather(
        link.ask(("ECHO", "1"), 5), link.ask(("LLEN", "text"), 5), link.ask(("ECHO", "2"), 5), return_exceptions=True
    )
    assert (got[0], got[2]) == (b"1", b"2")
    assert isinstance(got[1], PenaltyboxError)
    assert "WRONGTYPE" in str(got[1])


async def test_a_late_reply_is_dropped_and_the_connection_stays(server: Server, link: Any) -> None:
    """Whoever runs out of time is told so; the next caller gets the reply to his own call, over the same connection."""
    identity = await link.ask(("CLIENT", "ID"), 5)
    server.freeze()
    with pytest.raises(StoreUnavailable, match=r"within 0\.02 s"):
        await link.ask(("ECHO", "late"), 0.02)
    abandoned = asyncio.create_task(link.ask(("ECHO", "abandoned"), 5))
    await asyncio.sleep(0)
    abandoned.cancel()
    waiting = asyncio.create_task(link.ask(("ECHO", "patient"), 10))
    server.thaw()
    assert await waiting == b"patient"
    assert await link.ask(("CLIENT", "ID"), 5) == identity


async def test_a_program_that_stands_still_is_no_fault_of_the_server(link: Any) -> None:
    """Calls that could not leave in time, because this program was busy, have their time from when they left."""
    await link.ask(("PING",), 5)
    slow = ("EVAL", "local n = 0 for i = 1, 3e6 do n = n + i end return 'done'", "0")  # no reply in the same turn
    calls = [asyncio.ensure_future(link.ask(call, 2.0)) for call in (("ECHO", "first"), slow, ("ECHO", "last"))]
    await asyncio.sleep(0)  # asked: the first is sent, the others wait for the end of this turn
    time.sleep(2.1)  # noqa: ASYNC251 - the point: nothing else runs
    assert await asyncio.gather(*calls) == [b"first", b"done", b"last"]


async def test_a_server_that_says_nothing_is_given_up(
    server: Server, link: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection on which nothing was heard for a while ends for all who wait; the next call opens another."""
    identity = await link.ask(("CLIENT", "ID"), 5)
    monkeypatch.setattr(multiplex, "_SILENCE_S", 0.0)
    server.freeze()
    patient = asyncio.create_task(link.ask(("ECHO", "x"), 60))
    with pytest.raises(StoreUnavailable):
        await link.ask(("ECHO", "x"), 0.02)
    with pytest.raises(StoreUnavailable, match="nothing heard"):
        await patient
    server.thaw()
    monkeypatch.undo()
    assert await link.ask(("CLIENT", "ID"), 5) != identity


async def test_after_a_lost_connection_the_next_call_opens_another(server: Server, link: Any) -> None:
    """Those who waited are told that it is gone, whatever became of their calls."""
    await link.ask(("PING",), 5)
    blocked = asyncio.create_task(link.ask(("BLPOP", "nothing", 0), 60))
    await asyncio.sleep(0)
    server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await blocked
    assert await link.ask(("ECHO", "again"), 5) == b"again"
    server.kill()
    with pytest.raises(StoreUnavailable):
        await link.ask(("PING",), 5)
    server.start()
    assert await link.ask(("ECHO", "restarted"), 5) == b"restarted"


def test_each_event_loop_has_a_connection_of_its_own(server: Server) -> None:
    """The same link serves one loop after another, as when a process forks or a thread makes a new loop."""
    link = link_to(server)

    async def identity() -> Any:
        found = await link.ask(("CLIENT", "ID"), 5)
        await link.close()
        return found

    assert asyncio.run(identity()) != asyncio.run(identity())


def test_another_kind_of_event_loop(server: Server) -> None:
    """On uvloop, which the decision service runs on: many at once, megabytes, a call out of time."""

    async def everything() -> None:
        link = link_to(server)
        got = await asyncio.gather(*(link.ask(("ECHO", f"{n}"), 5) for n in range(200)))
        assert got == [b"%d" % n for n in range(200)]
        assert len(await link.ask(("ECHO", "x" * 3_000_000), 5)) == 3_000_000
        server.freeze()
        with pytest.raises(StoreUnavailable):
            await link.ask(("ECHO", "late"), 0.02)
        server.thaw()
        assert await link.ask(("ECHO", "own"), 5) == b"own"
        await link.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(everything())


async def test_over_tls(server: Server, tmp_path: Path) -> None:
    """The connection is taken over after the handshake; a server that the CA does not know is an outage."""
    make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")
    listener = await start_tls(server.port, context)
    url = f"rediss://localhost:{listener.sockets[0].getsockname()[1]}"
    link: Any = open_multiplexed(parse_endpoint(url, tls_ca=str(tmp_path / "ca.crt")))
    got = await asyncio.gather(*(link.ask(("ECHO", f"{n}"), 5) for n in range(200)))
    assert got == [b"%d" % n for n in range(200)]
    assert len(await link.ask(("ECHO", "x" * 300_000), 5)) == 300_000
    await link.close()
    stranger: Any = open_multiplexed(parse_endpoint(url))
    with pytest.raises(StoreUnavailable, match="certificate"):
        await stranger.ask(("PING",), 5)
    await stranger.close()
    listener.close()
    await listener.wait_closed()
