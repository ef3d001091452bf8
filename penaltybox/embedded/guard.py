"""Decides how long a server lives: not a moment longer than its owner, however the owner ends.

A tiny process between the owner and one server, run by path with the standard library alone
(``python -I -S guard.py OWNER_PID GRACE_S COMMAND …``). The owner holds the other end of its standard input: when that
closes, or the parent process changes (the pipe may have leaked into a forked child), the server is stopped. When the
guard itself is killed, the kernel kills the server (``PR_SET_PDEATHSIG``; the guard has one thread, so the death of the
forking thread is the death of the guard). Signals of a terminal do not reach it: its owner starts it in a session of
its own, or Ctrl-C would end the stores before the worker.

Commands, one a line, on standard input: ``term``, ``kill``, ``pause``, ``resume``.
Reports, one a line, on standard output: ``pid N``, ``stopped 1`` and ``stopped 0`` when a pause or its end is in
force, ``exit CODE`` (negative: the signal). Standard error is the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
OWNER_CHECK_S = 1.0
SIGNALS = {b"kill": signal.SIGKILL, b"pause": signal.SIGSTOP, b"resume": signal.SIGCONT}


def _report(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads any more
        os.write(1, f"{line}\n".encode())


def _become_server(command: list[str], guard_pid: int) -> None:
    """In the forked child: die with the guard, log to the guard's standard error, become the server."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard_pid:
            os._exit(127)
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.execvp(command[0], command)  # noqa: S606 - the command is the owner's argument list, no shell
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error}\n".encode())
    os._exit(127)


class Guard:
    """One server, its owner's pipe, and the wish to stop."""

    def __init__(self, owner_pid: int, grace_s: float, command: list[str]) -> None:
        self.owner_pid = owner_pid
        self.grace_s = grace_s
        self.kill_at: float | None = None
        self.input_open = True
        self.stopped = False
        self.wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        guard_pid = os.getpid()
        self.server = os.fork()
        if self.server == 0:
            _become_server(command, guard_pid)

    def stop(self) -> None:
        """Ask the server to end; `watch` kills it when its grace is over."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self.grace_s
            os.kill(self.server, signal.SIGTERM)
            os.kill(self.server, signal.SIGCONT)

    def obey(self, commands: bytes) -> None:
        """Carry out whole lines; an end of the pipe means that the owner is gone."""
        if not commands:
            self.input_open = False
            self.stop()
        for command in commands.split():
            if command == b"term":
                self.stop()
            elif command in SIGNALS:
                os.kill(self.server, SIGNALS[command])
                if command != b"kill" and self.stopped == (command == b"pause"):
                    _report(f"stopped {self.stopped:d}")  # nothing changes, so the kernel reports nothing

    def watch(self) -> int:
        """Until the server has ended; returns its exit code, negative for a signal."""
        while True:
            pid, status = os.waitpid(self.server, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid and (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                self.stopped = os.WIFSTOPPED(status)
                _report(f"stopped {self.stopped:d}")
                continue
            if pid:
                return os.waitstatus_to_exitcode(status)
            timeout = OWNER_CHECK_S
            if self.kill_at is not None:
                timeout = min(timeout, max(0.0, self.kill_at - time.monotonic()))
            ready, _, _ = select.select([self.wake, *([0] if self.input_open else [])], [], [], timeout)
            if self.wake in ready:
                os.read(self.wake, 4096)
            if 0 in ready:
                self.obey(os.read(0, 4096))
            if os.getppid() != self.owner_pid:
                self.stop()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                os.kill(self.server, signal.SIGKILL)
                self.kill_at = time.monotonic() + OWNER_CHECK_S


def main(arguments: list[str]) -> int:
    """Run the guard; arguments: owner's pid, grace in seconds, then the server's command."""
    guard = Guard(int(arguments[0]), float(arguments[1]), arguments[2:])
    _report(f"pid {guard.server}")
    _report(f"exit {guard.watch()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
