"""Ports for the tests' servers, which nobody else on this machine is given as long as this process lives."""

from __future__ import annotations

import os
from contextlib import suppress

from penaltybox.embedded.ports import Reservation

_held: list[Reservation] = []


def free_port() -> int:
    """A loopback port that nobody listens on.

    It is held by a socket that never listens: connections to it are refused, a server that sets SO_REUSEADDR (all do)
    may listen on it, and the kernel gives it neither to whoever asks for a free port nor to an outgoing connection.
    """
    _held.append(Reservation())
    return _held[-1].port


def two_free_ports() -> int:
    """The first of two neighbours, held like `free_port`'s; from outside the range that the kernel gives away."""
    for port in range(20_000 + os.getpid() % 5_000, 30_000, 2):
        with suppress(OSError):
            first = Reservation(port)
            try:
                _held.append(Reservation(port + 1))
            except OSError:
                first.close()
            else:
                _held.append(first)
                return port
    raise AssertionError("no two free ports")
