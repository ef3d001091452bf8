"""What every embedded server is: a guarded process on a loopback port with a log file in the data directory."""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.embedded.directory import DirectoryLock
from penaltybox.embedded.ports import LOOPBACK, Reservation, listeners
from penaltybox.embedded.process import GuardedProcess, ServerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

START_ATTEMPTS = 5
POLL_S = 0.005
LOG_LINES = 12


class Server(ABC):
    """One server. Methods block; in async code use `asyncio.to_thread`.

    Attributes:
        on_exit: called from a thread when the server ends without `stop` or `close` (a crash, or `kill`).

    Args:
        data_dir: its files and its log `<name>.log` go here; made when missing.
        port: a loopback port; 0 takes a free one and keeps it through restarts, until `close`.
    """

    name: ClassVar[str]
    start_deadline_s: ClassVar[float] = 15.0
    grace_s: ClassVar[float] = 5.0
    reserve: Callable[[int], Reservation] = staticmethod(Reservation)

    def __init__(self, data_dir: Path, *, port: int = 0) -> None:
        self.data_dir = data_dir.absolute()
        self.log_path = data_dir / f"{self.name}.log"
        self.on_exit: list[Callable[[], None]] = []
        self._wanted_port = port
        self._reservation: Reservation | None = None
        self._process: GuardedProcess | None = None
        self._log_start = 0
        self._ending = False

    @abstractmethod
    def command(self, port: int) -> Sequence[str]:
        """The server's command line, listening on 127.0.0.1:`port` only."""

    def environment(self) -> Mapping[str, str]:
        """Variables that the server needs beside the owner's own."""
        return {}

    def prepare(self, port: int) -> None:  # noqa: B027 - a hook, empty for most
        """Write what the server reads at its start (nothing by default)."""

    def answers(self) -> bool:
        """Whether the server, which listens, also answers a request. Must not raise OSError for "not yet"."""
        return True

    @property
    def port(self) -> int:
        """The port it has, or had before a stop."""
        if self._reservation is None:
            raise ServerFailed(f"{self.name} was never started, so it has no port yet. Call start() first.")
        return self._reservation.port

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's own process id; 0 when it does not run."""
        return self._process.pid if self._process is not None and self._process.running else 0

    @property
    def running(self) -> bool:
        """Whether its process is alive."""
        return self._process is not None and self._process.running

    @property
    def exit_code(self) -> int | None:
        """How it ended (negative: the signal); None while it runs or before its first start."""
        return self._process.exit_code if self._process is not None else None

    def healthy(self) -> bool:
        """Whether it runs, listens and answers now."""
        return self._ready()

    def start(self) -> Self:
        """Start and wait until it answers.

        Raises:
            ConfigurationError: the port asked for is taken, or the data directory is in use.
            ServerFailed: it ended or did not answer in time.
        """
        if self.running:
            return self
        self._make_data_dir()
        held = self._reservation is not None
        try:
            self._start_somewhere()
        except BaseException:
            if not held:
                self.close()
            raise
        return self

    def _make_data_dir(self) -> None:
        """For this user alone: subjects are other people's data.

        Raises:
            ConfigurationError: it cannot be made or written.
        """
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.data_dir):
                pass
        except OSError as error:
            raise ConfigurationError(
                f"{self.name} cannot keep its data in {self.data_dir}: {error.strerror}. Choose another directory with "
                "--data-dir or PENALTYBOX_DATA_DIR."
            ) from error

    def _start_somewhere(self) -> None:
        """Start on the held port, or on a new one as often as somebody takes it first."""
        for attempt in range(1, START_ATTEMPTS + 1):
            if self._reservation is None:
                self._reservation = self._reserved()
            try:
                self._start_once(self._reservation.port)
            except ServerFailed as failure:
                if self._wanted_port or attempt == START_ATTEMPTS or not _says_taken(str(failure)):
                    raise
                self.close()
            else:
                return

    def _reserved(self) -> Reservation:
        try:
            return self.reserve(self._wanted_port)
        except OSError as error:
            raise ConfigurationError(
                f"{self.name} cannot have port {self._wanted_port} on {LOOPBACK}: {error.strerror}. "
                "Choose another port, or 0 for any free one."
            ) from error

    def _start_once(self, port: int) -> None:
        with DirectoryLock(self.data_dir / f"{self.name}.lock") as lock:
            self.prepare(port)
            self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            process = GuardedProcess(
                self.command(port),
                log_path=self.log_path,
                environment=self.environment(),
                grace_s=self.grace_s,
                inherited=(lock.descriptor,),
            )
            process.on_exit.append(self._tell_exit)
            self._process = process
            self._ending = False
            process.start()
        self._await_answer(process, port)

    def _await_answer(self, process: GuardedProcess, port: int) -> None:
        deadline = time.monotonic() + self.start_deadline_s
        while not self._ready():
            if not process.running:
                raise ServerFailed(f"{self.name} ended at its start with code {process.exit_code}.\n{self.last_log()}")
            if time.monotonic() > deadline:
                process.kill()
                wanted = f"within {self.start_deadline_s:.0f} s"
                raise ServerFailed(f"{self.name} did not answer on port {port} {wanted}.\n{self.last_log()}")
            time.sleep(POLL_S)

    def _ready(self) -> bool:
        """Its own process listens on its port (not another server that sits there), and it answers."""
        if self._process is None or not self._process.running:
            return False
        if not any(found.port == self.port for found in listeners(self._process.pid)):
            return False
        try:
            return self.answers()
        except OSError:
            return False

    def _tell_exit(self) -> None:
        if self._ending:
            return
        for callback in self.on_exit:
            callback()

    def last_log(self) -> str:
        """The last lines that it logged since its start."""
        if not self.log_path.exists():
            return "(no log)"
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode("utf-8", "replace")
        lines = text.splitlines()[-LOG_LINES:]
        return "\n".join([f"The last lines of {self.log_path}:", *lines])

    def stop(self) -> None:
        """End it politely and wait; the port stays reserved for a restart."""
        self._ending = True
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """SIGKILL it and wait; the port stays reserved for a restart."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> Self:
        """Start again on the same port and data; a running server is stopped first."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        if self._process is not None:
            self._process.resume()

    def close(self) -> None:
        """Stop it and give the port back."""
        self.stop()
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _says_taken(text: str) -> bool:
    """Whether a server's last words are that its port is taken."""
    return "AddrInUse" in text or "address already in use" in text.lower() or "address in use" in text.lower()
