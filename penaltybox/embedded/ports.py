"""Which port a server gets, and who listens where."""

from __future__ import annotations

import contextlib
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
_LISTEN = "0A"


class Reservation:
    """A loopback port that nobody else is given while this is open.

    The socket is bound with SO_REUSEADDR and never listens: the kernel then lets one server bind and listen on the
    same port (all ours set SO_REUSEADDR) and hands it to nobody who asks for a free one, also while a server restarts.

    Args:
        port: the wanted port, 0 for any free one.

    Raises:
        OSError: the wanted port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((LOOPBACK, port))
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


class Listener(NamedTuple):
    """A listening TCP socket."""

    address: IPv4Address | IPv6Address
    port: int
    inode: str


def listeners(pid: int) -> list[Listener]:
    """The TCP sockets on which process `pid` listens, from /proc; empty when it has ended."""
    targets = set()
    with contextlib.suppress(OSError):  # it has ended
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed since it was listed
                targets.add(str(link.readlink()))
    return [found for found in _all_listeners(pid) if f"socket:[{found.inode}]" in targets]


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user id behind the other end of an IPv4 connection on this machine; None when there is no such connection.

    Args:
        client: address and port of the end that is asked about.
        server: our own end.
    """
    try:
        lines = Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    wanted = [_kernel_form(*client), _kernel_form(*server)]
    return next((int(fields[7]) for fields in map(str.split, lines) if fields[1:3] == wanted), None)


def _kernel_form(address: str, port: int) -> str:
    return f"{socket.inet_aton(address)[::-1].hex().upper()}:{port:04X}"


def _all_listeners(pid: int) -> Iterator[Listener]:
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN:
                address, port = fields[1].split(":")
                yield Listener(_address(address), int(port, 16), fields[9])


def _address(text: str) -> IPv4Address | IPv6Address:
    """An address as /proc writes it: 32-bit words in the machine's (little-endian) order."""
    packed = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    address = ip_address(packed)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
