"""What a Redis that fails looks like from here: a clear sentence within the deadline, and nothing half-retried."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError, StoreUnavailable
from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.subject_store import Rewound, Written
from tests.ports import free_port
from tests.redis_servers import BINARIES, SentinelTrio, Server, single
from tests.sinks.stores.blobs import HOUR, block, version, write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.sinks.stores.conftest import RedisRig

BINARY = next(iter(BINARIES.values()))
A = "ip:203.0.113.7"
SECRET = "s3cret/%"  # noqa: S105 - of a server that lives for one test


@asynccontextmanager
async def opened(url: str, deadline_s: float = 5, **options: Any) -> AsyncIterator[RedisSubjectStore]:
    store = RedisSubjectStore(open_link(parse_endpoint(url, deadline_s=deadline_s, **options)))
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own."""
    running = single(BINARY, tmp_path / "server")
    yield running
    running.kill()


def url(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}"


async def test_nobody_listens() -> None:
    """A port without a server is an outage that names host and port."""
    port = free_port()
    async with opened(f"redis://127.0.0.1:{port}") as store:
        with pytest.raises(StoreUnavailable, match=rf"127\.0\.0\.1:{port}.*cannot be reached"):
            await store.read([A])


async def test_a_killed_server_comes_back(server: Server) -> None:
    """A server that dies is an outage for every call, and the same store works again when it is back."""
    async with opened(url(server)) as store:
        await store.write([write(A, nonce=1)])
        server.kill()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.read([A])
        server.start()
        assert await store.read([A]) == [None]


async def test_a_hung_server_is_an_outage_within_the_deadline(server: Server) -> None:
    """A frozen server costs the deadline and no more; a write sent again after it thawed is stored once."""
    async with opened(url(server)) as patient, opened(url(server), deadline_s=0.3) as store:
        (first,) = await patient.write([write(A, nonce=1)])
        assert isinstance(first, Written)
        await insist(store.join_generation)
        server.freeze()
        sent = write(A, (first.number, 1), nonce=2, marks=(block(b"{}"),))
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.3 s"):
            await store.write([sent])
        assert time.monotonic() - start < 3
        server.thaw()
        # The server still executes what lay in its socket: the second answer must be about the same write.
        (written,) = await insist(lambda: store.write([sent]))
        assert isinstance(written, Written)
        assert [version(stored) for stored in await patient.read([A])] == [(written.number, 2)]


async def test_a_new_connection_to_a_hung_server_has_a_deadline_too(server: Server) -> None:
    """Connecting succeeds while a server hangs (the kernel accepts); the handshake must not wait for ever."""
    async with opened(url(server), deadline_s=0.3) as store:
        server.freeze()
        with pytest.raises(StoreUnavailable):
            await store.read([A])
        server.thaw()
        assert await insist(lambda: store.read([A])) == [None]


async def insist(call: Callable[[], Awaitable[Any]]) -> Any:
    """The call's answer, asked for until there is one."""

    async def answer() -> list[Any]:
        try:
            return [await call()]
        except StoreUnavailable:
            return []

    return (await wait_until(answer, deadline_s=30, what="an answer"))[0]


async def test_a_cancelled_call_leaves_no_answer_behind(server: Server) -> None:
    """After a call was cancelled in mid-flight, the next one gets its own reply, not the old one's."""
    async with opened(url(server)) as store:
        await store.write([write(f"user:{i}", nonce=i + 1) for i in range(100)])
        for i in range(20):
            call = asyncio.create_task(store.read([f"user:{n}" for n in range(100)]))
            for _ in range(i):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert [version(stored)[1] for stored in await store.read(["user:7"])] == [8]


async def test_out_of_memory(server: Server) -> None:
    """A full server under noeviction takes no write, says so, and nothing of a batch is stored."""
    async with opened(url(server)) as store:
        await store.join_generation()
        server.call("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreUnavailable, match=r"out of memory.*\(OOM\)"):
            await store.write([write(f"user:{i}", nonce=1, marks=(block(b"{}"),)) for i in range(10)])
        server.call("CONFIG", "SET", "maxmemory", 0)
        assert await store.read([f"user:{i}" for i in range(10)]) == [None] * 10


async def test_a_replica_takes_no_writes(server: Server) -> None:
    """A master that became a replica (failover without Sentinel) is an outage, and reading from it may go on."""
    async with opened(url(server)) as store:
        await store.write([write(A, nonce=1)])
        server.call("REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await store.write([write("user:b", nonce=1)])
        server.call("CONFIG", "SET", "replica-serve-stale-data", "no")
        with pytest.raises(StoreUnavailable, match="MASTERDOWN"):
            await store.read([A])


async def test_too_few_replicas(server: Server) -> None:
    """min-replicas-to-write that isn't met is an outage."""
    async with opened(url(server)) as store:
        await store.join_generation()
        server.call("CONFIG", "SET", "min-replicas-to-write", 1)
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            await store.write([write(A, nonce=1)])


@pytest.mark.parametrize(
    "reply",
    [
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ],
)
async def test_every_reply_of_a_sick_server_is_an_outage(reply: str) -> None:
    """Replies that pass by themselves are StoreUnavailable with their code in the sentence."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            writer.write(f"-{reply}\r\n".encode())
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with opened(f"redis://127.0.0.1:{port}", deadline_s=5) as store:
        with pytest.raises(StoreUnavailable) as caught:
            await store.read([A])
    listener.close()
    await listener.wait_closed()
    code = reply.split(" ", 1)[0]
    assert code in str(caught.value) or "cannot be reached" in str(caught.value)


async def test_a_wrong_type_is_nobody_s_outage(server: Server) -> None:
    """A key that another program uses for something else is reported as it is, not waited for."""
    server.call("LPUSH", f"pbx:{{{A}}}:state", "x")
    async with opened(url(server)) as store:
        with pytest.raises(PenaltyboxError, match="WRONGTYPE") as caught:
            await store.write([write(A, nonce=1)])
    assert not isinstance(caught.value, StoreUnavailable)


async def test_scripts_are_flushed_in_mid_run(redis_rig: RedisRig) -> None:
    """SCRIPT FLUSH between and during calls goes unnoticed, and every increment is counted once."""
    store, other = redis_rig.store(), redis_rig.store()
    subjects = [f"user:{i}" for i in range(600)]
    read: list[tuple[int, int]] = [(0, 0)] * 600
    done = False

    async def flush() -> None:
        while not done:
            for node in await other.link.nodes():
                await node.exchange([("SCRIPT", "FLUSH")])
            await asyncio.sleep(0.01)

    flushing = asyncio.create_task(flush())
    for nonce in range(1, 6):
        results = []
        while not results:
            try:
                results = await store.write([write(s, read[i], nonce=nonce) for i, s in enumerate(subjects)])
            except StoreUnavailable as error:
                assert "NOSCRIPT" in str(error)  # noqa: PT017 - flushed four times within one call: allowed to give up
        assert {type(result) for result in results} == {Written}
        read = [(result.number, nonce) for result in results if isinstance(result, Written)]
    done = True
    await flushing


async def test_failover_loses_the_last_writes(tmp_path: Path) -> None:
    """Sentinel promotes a replica that lacks the last write: it is noticed as a rewind and written again."""
    trio = SentinelTrio(BINARY, tmp_path)
    try:
        async with opened(trio.url, deadline_s=5) as store:
            now = int(trio.master.call("TIME")[0]) * 1000
            (first,) = await store.write([write(A, nonce=1, marks=(block(b"first", now + HOUR),))])
            assert isinstance(first, Written)
            await wait_until(lambda: trio.replica.call("EXISTS", f"pbx:{{{A}}}:block"), what="replication")
            trio.replica.call("REPLICAOF", "127.0.0.1", free_port())
            (second,) = await store.write([write(A, (first.number, 1), nonce=2, marks=(block(b"second", now + HOUR),))])
            assert isinstance(second, Written)
            trio.master.kill()
            lost = write(A, (second.number, 2), nonce=3)

            async def promoted() -> list[Any]:
                try:
                    return await store.write([lost])
                except StoreUnavailable:
                    return []

            results = await wait_until(promoted, deadline_s=30, what="a new master")
            assert results == [Rewound(first.number)]
            again = lost._replace(marks=(block(b"third", now + HOUR),))
            (third,) = await store.write([again])
            assert isinstance(third, Written)
            assert third.number > second.number
            assert trio.replica.call("GET", f"pbx:{{{A}}}:block") == b"third"
    finally:
        trio.kill()


async def test_cut_connections(redis_rig: RedisRig) -> None:
    """A store reads and writes on after its connections were all cut: each call connects anew."""
    store = redis_rig.store()
    await store.write([write(A, nonce=1)])
    for node in await redis_rig.store().link.nodes():
        await node.exchange([("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")])
    (stored,) = await insist(lambda: store.read([A]))
    assert version(stored)[1] == 1


async def test_a_missing_right_is_a_configuration_error(server: Server) -> None:
    """A right that the user lacks is named as the configuration's fault, without the password."""
    server.call("ACL", "SETUSER", "reader", "on", f">{SECRET}", "~pbx:*", "+get", "+client|setname", "+client|setinfo")
    async with opened(url(server), username="reader", password=SECRET) as store:
        assert await store.read([]) == []
        with pytest.raises(ConfigurationError, match="NOPERM") as caught:
            await store.write([write(A, nonce=1)])
        assert SECRET not in str(caught.value)


async def test_a_wrong_password_is_a_configuration_error(server: Server) -> None:
    """A refused login says which settings to look at, and shows no secret."""
    server.call("CONFIG", "SET", "requirepass", "right-one")
    for options in ({"password": "hunter2"}, {"username": "nobody", "password": "hunter2"}, {}):
        async with opened(url(server), **options) as store:
            with pytest.raises(ConfigurationError, match="password") as caught:
                await store.read([A])
            assert "hunter2" not in repr(caught.value)
            assert "hunter2" not in repr(caught.value.__cause__)


async def test_nothing_is_lost_or_counted_twice_through_outages(server: Server) -> None:
    """A writer that sends again what had no answer counts exactly, while connections are cut and the server hangs."""
    subjects = [f"user:{i}" for i in range(300)]
    rounds, done = 40, False

    async def disturb() -> None:
        while not done:
            server.freeze()
            await asyncio.sleep(0.08)  # longer than the deadline
            server.thaw()
            await asyncio.sleep(0.02)
            await asyncio.to_thread(server.call, "CLIENT", "KILL", "TYPE", "normal")
            await asyncio.sleep(0.005)

    outages = 0
    async with opened(url(server), deadline_s=0.05) as store:

        async def counted(call: Callable[[], Awaitable[Any]]) -> Any:
            nonlocal outages
            try:
                return await call()
            except StoreUnavailable:
                outages += 1
                raise

        await insist(store.join_generation)
        disturbing = asyncio.create_task(disturb())
        read: list[tuple[int, int]] = [(0, 0)] * len(subjects)
        for count in range(1, rounds + 1):
            sent = [write(s, read[i], nonce=count, body=bytes([count])) for i, s in enumerate(subjects)]
            results = await insist(lambda sent=sent: counted(lambda: store.write(sent)))
            assert {type(result) for result in results} == {Written}
            read = [(result.number, count) for result in results]
        done = True
        await disturbing
        stored = await insist(lambda: store.read(subjects))
    assert outages > 0
    assert [(version(blob), (blob or b"")[20:]) for blob in stored] == [(known, bytes([rounds])) for known in read]
