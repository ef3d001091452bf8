"""`penaltybox serve` in a process of its own, and HTTP requests from chosen addresses, for tests."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from penaltybox.cli.fleet import environment_of
from tests.ports import free_port
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.contracts.settings import Settings

ROOT = Path(__file__).parent.parent.parent


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def fetch(
    port: int,
    path: str = "/",
    *,
    method: str = "GET",
    source: str = "127.0.0.1",
    host: str = "127.0.0.1",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    patience_s: float = 10,
) -> Got:
    """One request over a connection of its own, from any loopback address."""
    connection = http.client.HTTPConnection(host, port, timeout=patience_s, source_address=(source, 0))
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return Got(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


class DecisionService:
    """A running `penaltybox serve`."""

    def __init__(self, settings: Settings, policy: Path, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self._command = [sys.executable, "-m", "penaltybox", "serve", "--port", str(self.port)]
        self._command += ["--policy", str(policy), *arguments]
        self._environment = {**os.environ, **environment_of(settings)}
        self._environment["PENALTYBOX_SPILL_DIR"] = str(policy.parent / "spill")

    def start(self) -> None:
        """Starts; returns when it is alive."""
        # Not a pipe: a process of its own that stays would hold it open.
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed at the end
        self.process = subprocess.Popen(self._command, cwd=ROOT, env=self._environment, stderr=self._log)
        block_until(self._alive, 60, "a decision service that is alive")

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return fetch(self.port, "/healthz").status == 200
        except (OSError, http.client.HTTPException):  # a port that nobody has may connect to itself
            return False

    def freeze(self) -> None:
        """SIGSTOP; returns when the process has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/stat")
        block_until(lambda: ") T " in status.read_text(), what="a stopped process")

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> tuple[int, str]:
        """SIGTERM; (exit code, what it logged)."""
        self.process.terminate()
        return self.process.wait(20), self.log

    @property
    def log(self) -> str:
        """What it logged."""
        self._log.seek(0)
        return self._log.read()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()
