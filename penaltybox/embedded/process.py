"""The owner's side of a guarded server process: start it, hear that it ended, end it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penaltybox.contracts.errors import PenaltyboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GUARD = Path(__file__).with_name("guard.py")
ANSWER_DEADLINE_S = 20.0


class ServerFailed(PenaltyboxError):  # noqa: N818 - a state of the world: the server is not there
    """An embedded server did not start, or died. The message ends with the last lines of its log."""


class GuardedProcess:
    """One server process behind a guard: it ends with this process, even when this process is killed.

    All methods block for at most their deadline and may be called from any thread; in async code use
    `asyncio.to_thread`.

    Args:
        command: the server's command line.
        log_path: where its output is appended.
        environment: variables added to this process's own.
        grace_s: seconds between the polite signal and SIGKILL.
        inherited: file descriptors that guard and server keep open as long as they live (a lock).
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
        grace_s: float = 5.0,
        inherited: Sequence[int] = (),
    ) -> None:
        self.command = list(command)
        self.log_path = log_path
        self.grace_s = grace_s
        self.pid = 0
        self.exit_code: int | None = None
        self.on_exit: list[Callable[[], None]] = []
        self._inherited = tuple(inherited)
        self._environment = {**os.environ, **(environment or {})}
        self._guard: subprocess.Popen[bytes] | None = None
        self._started = threading.Event()
        self._ended = threading.Event()
        self._stopped = {b"1": threading.Event(), b"0": threading.Event()}
        self._writing = threading.Lock()

    def start(self) -> None:
        """Start guard and server; returns when the server's pid is known (it may not listen yet)."""
        self.log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._guard = subprocess.Popen(  # noqa: S603 - our own interpreter and script
                [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), str(self.grace_s), *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                pass_fds=self._inherited,
                bufsize=0,
            )
        threading.Thread(target=self._listen, args=(self._guard,), name="guard-reports", daemon=True).start()
        if not self._started.wait(ANSWER_DEADLINE_S):
            self.kill()
            raise ServerFailed(f"{self.command[0]} was not started within {ANSWER_DEADLINE_S:.0f} s.")

    def _listen(self, guard: subprocess.Popen[bytes]) -> None:
        """Read the guard's reports until it has ended (a thread of its own)."""
        assert guard.stdout is not None  # noqa: S101 - opened as a pipe above
        exit_code = None
        for line in guard.stdout:
            word, value = line.split()
            if word == b"pid":
                self.pid = int(value)
                self._started.set()
            elif word == b"stopped":
                self._stopped[value].set()
            else:
                exit_code = int(value)
        guard.stdout.close()
        guard.wait()
        with self._writing:
            if guard.stdin is not None:
                guard.stdin.close()
        # A guard that was killed reports nothing: the kernel killed its server.
        self.exit_code = -9 if exit_code is None else exit_code
        self._started.set()
        self._ended.set()
        for stopped in self._stopped.values():
            stopped.set()
        for callback in self.on_exit:
            callback()

    @property
    def running(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._guard is not None and not self._ended.is_set()

    def wait(self, deadline_s: float) -> bool:
        """Whether the server has ended within `deadline_s` seconds."""
        return self._ended.wait(deadline_s)

    def _command(self, word: bytes) -> None:
        with self._writing:
            if self._guard is None or self._guard.stdin is None or self._guard.stdin.closed:
                return
            with contextlib.suppress(BrokenPipeError):  # it has ended
                self._guard.stdin.write(word + b"\n")

    def stop(self) -> None:
        """Ask politely, then kill; returns when the server is gone."""
        self._end(b"term", self.grace_s + ANSWER_DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL; returns when the server is gone."""
        self._end(b"kill", ANSWER_DEADLINE_S)

    def _end(self, word: bytes, deadline_s: float) -> None:
        if self._guard is None:
            return
        self._command(word)
        if not self.wait(deadline_s):
            self._guard.kill()
            self.wait(ANSWER_DEADLINE_S)

    def pause(self) -> None:
        """SIGSTOP: from here on the server keeps its connections and answers nothing."""
        self._obeyed(b"pause", b"1")

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._obeyed(b"resume", b"0")

    def _obeyed(self, word: bytes, wanted: bytes) -> None:
        self._stopped[wanted].clear()
        if not self.running:
            return
        self._command(word)
        if not self._stopped[wanted].wait(ANSWER_DEADLINE_S):
            raise ServerFailed(f"{self.command[0]} did not {word.decode()} within {ANSWER_DEADLINE_S:.0f} s.")
