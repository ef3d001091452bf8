"""The PROXY protocol, versions 1 and 2: who is behind a proxy that passes on a TCP stream.

Specified in HAProxy's proxy-protocol.txt. Only a connection from a trusted proxy may begin with such a header, and then
it must. Its source stands for the peer.
"""

from __future__ import annotations

import re
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from penaltybox.contracts.errors import BadEvent, shown
from penaltybox.producers.http.client_address import read_address

MAX_V1: Final = 107
MAX_V2: Final = 4096
"""Bytes after the fixed part of version 2, with all its extensions."""
_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED: Final = 16
_V1: Final = re.compile(rb"PROXY (TCP4|TCP6) ([0-9a-fA-F:.]{2,39}) ([0-9a-fA-F:.]{2,39}) ([0-9]{1,5}) ([0-9]{1,5})")
_V1_UNKNOWN: Final = re.compile(rb"PROXY UNKNOWN(?: [\x20-\x7e]*)?")
_V2_ADDRESSES: Final = {0x11: 4, 0x12: 4, 0x21: 16, 0x22: 16}
_V2_OTHERS: Final = {0x00: 0, 0x31: 216, 0x32: 216}
_PORTS: Final = 65_536


class Proxied(NamedTuple):
    """A PROXY header. `source` is None when the proxy speaks for itself or for a connection without addresses."""

    source: str | None
    port: int | None
    size: int
    """Bytes of the header; the stream itself begins after them."""


def read_proxy_header(data: bytes) -> Proxied | None:
    """The header that a stream begins with; None: it is not complete yet, read on.

    Raises:
        BadEvent: the stream begins with something else. The connection is to be closed.
    """
    if data.startswith(_SIGNATURE[: len(data)]):
        return _version_2(data)
    if data.startswith(b"PROXY "[: len(data)]):
        return _version_1(data)
    raise _bad(data)


def _version_1(data: bytes) -> Proxied | None:
    line, end, _ = data[:MAX_V1].partition(b"\r\n")
    if not end:
        if len(data) >= MAX_V1:
            raise _bad(data)
        return None
    size = len(line) + 2
    if _V1_UNKNOWN.fullmatch(line):
        return Proxied(None, None, size)
    found = _V1.fullmatch(line)
    if found is None:
        raise _bad(data)
    version = 4 if found[1] == b"TCP4" else 6
    source, target = (_address(text, version) for text in (found[2], found[3]))
    ports = [int(text) for text in (found[4], found[5])]
    if source is None or target is None or max(ports) >= _PORTS:
        raise _bad(data)
    return Proxied(source, ports[0], size)


def _address(text: bytes, version: int) -> str | None:
    """The address, if it is one of this version as it is written (mapped IPv4 is written as IPv6)."""
    if (b":" in text) != (version == 6):  # noqa: PLR2004 - IP versions are 4 and 6
        return None
    address = read_address(text.decode())
    return None if address is None else str(address)


def _version_2(data: bytes) -> Proxied | None:
    if len(data) < _FIXED:
        return None
    command, family, length = struct.unpack_from("!BBH", data, len(_SIGNATURE))
    if command not in (0x20, 0x21) or length > MAX_V2:
        raise _bad(data)
    size = _FIXED + length
    if len(data) < size:
        return None
    if command == 0x20:  # noqa: PLR2004 - LOCAL: the proxy's own connection, such as a health check
        return Proxied(None, None, size)
    width = _V2_ADDRESSES.get(family)
    wanted = _V2_OTHERS.get(family) if width is None else 2 * width + 4
    if wanted is None or length < wanted:
        raise _bad(data)
    if width is None:
        return Proxied(None, None, size)
    packed = data[_FIXED : _FIXED + width]
    address = IPv4Address(packed) if width == 4 else IPv6Address(packed)  # noqa: PLR2004 - bytes of IPv4
    (port,) = struct.unpack_from("!H", data, _FIXED + 2 * width)
    return Proxied(str(read_address(str(address))), port, size)


def _bad(data: bytes) -> BadEvent:
    return BadEvent("bad_proxy_header", f"a connection began with {shown(data[:40])}, wanted a PROXY header (v1 or v2)")
