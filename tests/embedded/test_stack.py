"""The embedded stack: it starts fast, reports a death, stays on loopback and leaves no process behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import clickhouse_connect
import pytest
import redis

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.settings import Settings
from penaltybox.embedded.broker import Broker
from penaltybox.embedded.clickhouse_server import ClickHouseServer
from penaltybox.embedded.directory import DirectoryLock, default_data_dir
from penaltybox.embedded.ports import Reservation, listeners
from penaltybox.embedded.process import ServerFailed
from penaltybox.embedded.redis_server import RedisServer
from penaltybox.embedded.server import Server
from penaltybox.embedded.stack import EmbeddedStack
from tests.waiting import block_until, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.stack
KINDS = [Broker, RedisServer, ClickHouseServer]
ROOT = Path(__file__).parents[2]
# An owner as users have one: starts the stack in a program of its own, tells the pids, waits.
OWNER = """
import asyncio, os, sys, time
from pathlib import Path
from penaltybox.embedded.stack import EmbeddedStack

async def own():
    async with EmbeddedStack(Path(sys.argv[1])) as stack:
        if sys.argv[2] == "leak" and os.fork() == 0:
            time.sleep(5)  # holds copies of the owner's pipes
            os._exit(0)
        print(*[server.pid for server in stack.servers], stack.redis.port, flush=True)
        await stack.wait_failed()

asyncio.run(own())
"""


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie that nobody has reaped yet does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


@pytest.fixture
def owner(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A running owner program and the pids of its three servers."""
    mode = getattr(request, "param", "plain")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), mode], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as program:
        assert program.stdout is not None
        *pids, _port = map(int, program.stdout.readline().split())
        yield program, pids
        program.kill()
        block_until(lambda: not any(map(alive, pids)), 10, "the servers of the owner are gone")


async def test_start_use_stop(tmp_path: Path) -> None:
    """In a few seconds all three answer on loopback only; after the stop nothing is left."""
    begin = time.monotonic()
    async with EmbeddedStack(tmp_path) as stack:
        assert time.monotonic() - begin < 20  # 0.6 s on a quiet machine
        health = await stack.health()
        assert [name for name, server in health.items() if server.healthy] == ["broker", "redis", "clickhouse"]
        pids = [server.pid for server in stack.servers]
        found = [listener for pid in pids for listener in listeners(pid)]
        assert sorted(listener.port for listener in found) == sorted(server.port for server in stack.servers)
        assert all(listener.address.is_loopback for listener in found)
        assert all(server.log_path.is_relative_to(tmp_path) for server in stack.servers)
        settings = stack.applied_to(Settings(redis_password="x"))  # noqa: S106 - no secret
        assert (settings.kafka, settings.redis_url, settings.redis_password) == (stack.kafka, stack.redis_url, "")
    assert not any(map(alive, pids))


async def test_redis_and_clickhouse_remember(tmp_path: Path) -> None:
    """A new stack over the same directory finds what the old one stored, though the old one was killed."""
    async with EmbeddedStack(tmp_path) as stack:
        with redis.Redis.from_url(stack.redis_url) as client:
            client.set("k", "v")
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        tables = clickhouse_connect.get_client(host="127.0.0.1", port=stack.clickhouse.port)
        tables.command("CREATE TABLE t (a Int64) ENGINE MergeTree ORDER BY a")
        tables.insert("t", [[1]], column_names=["a"])
        tables.close()
        for server in stack.servers:
            await asyncio.to_thread(server.kill)
    async with EmbeddedStack(tmp_path) as stack:
        with redis.Redis.from_url(stack.redis_url) as client:
            assert client.get("k") == b"v"
        tables = clickhouse_connect.get_client(host="127.0.0.1", port=stack.clickhouse.port)
        assert tables.command("SELECT count() FROM t") == 1
        tables.close()


async def test_a_temporary_directory_goes_with_the_stack() -> None:
    """Without a data directory nothing stays on disk."""
    async with EmbeddedStack() as stack:
        assert stack.data_dir.is_dir()
    assert not stack.data_dir.exists()


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_death_is_reported(tmp_path: Path, which: int) -> None:
    """A server that dies is reported with its name, the signal and its log; a deliberate restart is not."""
    async with EmbeddedStack(tmp_path) as stack:
        victim = stack.servers[which]
        await asyncio.to_thread(victim.restart)
        report = asyncio.create_task(stack.wait_failed())
        os.kill(victim.pid, signal.SIGKILL)
        failure = await asyncio.wait_for(report, 10)
        assert f"embedded {victim.name} (port {victim.port}) died: killed by signal 9" in str(failure)
        assert str(victim.log_path) in str(failure)
        assert not (await stack.health())[victim.name].healthy
        port = victim.port
        await asyncio.to_thread(victim.start)
        assert (victim.port, (await stack.health())[victim.name].healthy) == (port, True)


@pytest.mark.parametrize("owner", ["plain", "leak"], indirect=True)
def test_a_killed_owner_leaves_no_server(owner: tuple[subprocess.Popen[str], list[int]]) -> None:
    """After kill -9 of the owner all servers and guards end, also when a forked child still holds the owner's pipes."""
    program, pids = owner
    guards = [parent(pid) for pid in pids]
    assert all(map(alive, [*pids, *guards]))
    program.kill()
    block_until(lambda: not any(map(alive, [*pids, *guards])), 10, "servers and guards are gone")


def test_killed_guards_leave_no_server(owner: tuple[subprocess.Popen[str], list[int]]) -> None:
    """Owner and guards killed together (as by the out-of-memory killer): the kernel ends the servers."""
    program, pids = owner
    for pid in [program.pid, *[parent(pid) for pid in pids]]:
        os.kill(pid, signal.SIGKILL)
    block_until(lambda: not any(map(alive, pids)), 10, "servers are gone")


def test_a_terminated_owner_leaves_no_server(owner: tuple[subprocess.Popen[str], list[int]]) -> None:
    """SIGTERM, which Python does not handle by itself, leaves nothing either."""
    program, pids = owner
    program.terminate()
    block_until(lambda: not any(map(alive, pids)), 10, "servers are gone")


def test_an_interrupt_is_for_the_owner_alone(owner: tuple[subprocess.Popen[str], list[int]]) -> None:
    """Ctrl-C reaches the owner, not its servers: they are in other process groups and sessions."""
    program, pids = owner
    assert all(os.getsid(pid) != os.getsid(program.pid) for pid in pids)


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """A server started by a thread that has ended goes on (a death signal bound to the thread would kill it)."""

    async def start_elsewhere(server: Server) -> None:
        await asyncio.to_thread(server.start)

    with RedisServer(tmp_path) as server:
        server.stop()
        asyncio.run(start_elsewhere(server))  # the loop's threads end with it
        assert server.healthy()
        pid = server.pid
        with pytest.raises(AssertionError, match="Not within"):
            block_until(lambda: not alive(pid), 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_port_taken_meanwhile_is_replaced(kind: type[Server], tmp_path: Path) -> None:
    """A free port that somebody takes before the server binds it costs a retry, not a failure."""
    with socket.create_server(("127.0.0.1", 0)) as squatter:

        class Lost(Reservation):
            """A reservation that was lost to the squatter."""

            def __init__(self) -> None:
                super().__init__()
                self.port = squatter.getsockname()[1]

        kept = iter([Lost()])
        server = kind(tmp_path)
        server.reserve = lambda port: next(kept, None) or Reservation(port)  # type: ignore[method-assign]
        with server:
            assert server.port != squatter.getsockname()[1]
            assert server.healthy()


@pytest.mark.parametrize("kind", KINDS)
def test_a_taken_fixed_port_is_a_sentence(kind: type[Server], tmp_path: Path) -> None:
    """A port that the user chose and somebody has: the error names both and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"{kind.name} cannot have port {port} .*Choose another port"):
            kind(tmp_path, port=port).start()


@pytest.mark.parametrize("kind", KINDS)
def test_kill_and_restart_keep_the_port(kind: type[Server], tmp_path: Path) -> None:
    """A killed server starts again on its port, with clients' connections still lingering there."""
    with kind(tmp_path) as server:
        port = server.port
        with socket.create_connection(("127.0.0.1", port)):
            server.kill()
        assert (server.running, server.exit_code, server.pid) == (False, -9, 0)
        server.start()
        assert (server.port, server.healthy()) == (port, True)
        server.pause()
        assert server.running
        server.resume()
        block_until(server.healthy)


def test_two_servers_never_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second server on a directory in use is refused; once the first has ended it starts."""
    monkeypatch.setattr(DirectoryLock.__init__, "__defaults__", (0.2,))
    with RedisServer(tmp_path) as first:
        with pytest.raises(ConfigurationError, match=r"in use by another server.*PENALTYBOX_DATA_DIR"):
            RedisServer(tmp_path).start()
        first.kill()
        with RedisServer(tmp_path) as second:
            assert second.healthy()


class Broken(Server):
    """A server that ends at once."""

    name = "broken"

    def command(self, port: int) -> Sequence[str]:
        return ["/bin/sh", "-c", f"echo no luck on port {port}; exit 3"]


class Absent(Server):
    """A server whose program does not exist."""

    name = "absent"

    def command(self, port: int) -> Sequence[str]:  # noqa: ARG002 - the hook's signature
        return ["/absent/program"]


@pytest.mark.parametrize(
    ("kind", "words"), [(Broken, "ended at its start with code 3.*no luck"), (Absent, "code 127.*cannot start /absent")]
)
def test_a_failed_start_shows_the_log(kind: type[Server], words: str, tmp_path: Path) -> None:
    """A server that cannot start fails with its exit code and what it said."""
    with pytest.raises(ServerFailed, match=f"(?s){words}"):
        kind(tmp_path).start()


async def test_one_failed_start_stops_the_others(tmp_path: Path) -> None:
    """When one server cannot start, the stack's error is that server's, and nothing keeps running."""
    stack = EmbeddedStack(tmp_path)
    stack.redis = Broken(tmp_path / "broken")  # type: ignore[assignment]
    with pytest.raises(ServerFailed, match="broken ended"):
        await stack.start()
    await wait_until(lambda: not any(server.running for server in stack.servers))


def test_the_default_directory() -> None:
    """The data goes where the user's programs keep their state."""
    assert default_data_dir({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/penaltybox")
    assert default_data_dir({"HOME": "/h"}) == Path("/h/.local/state/penaltybox")
