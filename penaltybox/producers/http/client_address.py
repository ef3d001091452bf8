"""Whose address a request has: the walk over trusted proxies, from the connection towards the client.

A proxy appends the address of whoever connected to it, so a header is as true as the machines that wrote its right
end. The walk starts at the connection's peer and goes on to the left only over trusted machines; the first that is
not trusted is the client. Everything left of it is the client's own invention.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from penaltybox.contracts.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from ipaddress import IPv4Network, IPv6Network

    Address = IPv4Address | IPv6Address

How = Literal["peer", "header", "unreadable", "no_peer"]
MAX_HOPS: Final = 64
MAX_ELEMENT: Final = 512
"""Characters of one element of Forwarded; nobody's is longer, and a longer one is not read."""
_MAX_NODE: Final = 100
_MAX_SEEN: Final = 10_000

_BRACKETED: Final = re.compile(r"\[([^\[\]]{2,60})\](?::(?:[0-9]{1,5}|_[A-Za-z0-9._-]{1,32}))?", re.ASCII)
_DOTTED: Final = re.compile(r"([0-9.]{7,15})(?::(?:[0-9]{1,5}|_[A-Za-z0-9._-]{1,32}))?", re.ASCII)
_PAIR: Final = re.compile(
    r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^";,\s]*)[ \t]*(?:;|\Z)""", re.ASCII
)
_EMPTY: Final = re.compile(r"[ \t]*;|[ \t]+\Z")
_ESCAPED: Final = re.compile(r"\\(.)")


class Client(NamedTuple):
    """Whom a request is from.

    Attributes:
        address: IPv4 dotted or IPv6, without zone or port; None when nobody can say.
        how: ``peer`` (the connection's other end), ``header`` (found by the walk), ``unreadable`` (a trusted proxy
            says something that is no address), ``no_peer`` (a connection without addresses, and nothing else known).
        through_proxy: the connection comes from a trusted proxy.
    """

    address: str | None
    how: How
    through_proxy: bool


class ClientAddresses:
    """Finds the client of a request.

    Args:
        trusted: the proxies, as addresses or CIDR ranges; ``unix`` for connections over a Unix socket.
        header: the one header that these proxies write: ``X-Forwarded-For``, ``Forwarded``, or any that is written
            like the former, with one address or several. Empty: the peer counts. No other header is looked at.
        unreadable: whether a request counts for the peer, or as one without address, when a trusted proxy says
            something that is no address (``unknown``, a hidden identifier, garbage).

    Raises:
        ConfigurationError: a range that is none or holds everybody, or a header that nobody is trusted to write.
    """

    def __init__(
        self,
        trusted: Iterable[str] = (),
        header: str = "",
        *,
        unreadable: Literal["peer", "missing"] = "peer",
    ) -> None:
        trusted = [text.strip() for text in trusted]
        self.header = header.lower()
        """The header's name in lower case."""
        self._ranges = [_range(text) for text in trusted if text != "unix"]
        self._trust_unix = "unix" in trusted
        self._unreadable = unreadable
        self._seen: dict[str, tuple[str | None, bool]] = {}
        if header and not trusted:
            raise ConfigurationError(
                f"client address: got the header {header} and no trusted proxy, wanted their CIDRs"
            )

    def find(self, peer: str | None, lines: Sequence[str] = ()) -> Client:
        """The client of a request.

        Args:
            peer: the address of the connection's other end; None, empty or a path for a Unix socket.
            lines: the values of `header` as they came, one per header line. They are not looked at unless the peer
                is trusted. From the right, at most `MAX_HOPS` entries are read.
        """
        address, trusted = self._known(peer) if peer else (None, False)
        through_proxy = trusted if address is not None else self._trust_unix and _is_unix(peer)
        known = Client(address, "no_peer" if address is None else "peer", through_proxy)
        if not through_proxy or not self.header:
            return known
        entries = _forwarded_nodes(lines) if self.header == "forwarded" else _entries(lines)
        for entry in entries:
            hop, trusted = (None, False) if entry is None else self._known(entry)
            if hop is None:
                return Client(known.address if self._unreadable == "peer" else None, "unreadable", through_proxy=True)
            if not trusted:
                return Client(hop, "header", through_proxy=True)
        return known

    def _known(self, text: str) -> tuple[str | None, bool]:
        """(the address that a hop says, whether it is trusted); remembered, since they come again and again."""
        found = self._seen.get(text)
        if found is None:
            address = read_node(text) if len(text) <= _MAX_NODE else None
            found = (None, False) if address is None else (str(address), self._trusts(address))
            if address is not None:
                if len(self._seen) >= _MAX_SEEN:
                    self._seen.clear()
                self._seen[text] = found
        return found

    def _trusts(self, address: Address) -> bool:
        return any(network.version == address.version and address in network for network in self._ranges)


def read_address(text: str) -> Address | None:
    """The address that a text is: mapped IPv4 is IPv4, the zone of a link-local address is dropped; else None."""
    if not text.isascii() or "/" in text:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return IPv6Address(int(address)) if address.is_link_local else None
        return address.ipv4_mapped or address
    return address


def read_node(text: str) -> Address | None:
    """The address of one hop: bare, in brackets, with a port; None for a hidden or unknown one and for garbage."""
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed is not None:
        return read_address(bracketed[1]) if ":" in bracketed[1] else None
    dotted = _DOTTED.fullmatch(text)
    return read_address(text if dotted is None else dotted[1])


def _range(text: str) -> IPv4Network | IPv6Network:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ConfigurationError(f"trusted proxy {shown(text)}: {error}; wanted an address or a CIDR range") from None
    if not network.prefixlen:
        raise ConfigurationError(f"trusted proxy {text}: everybody would be trusted to write any address")
    address = network.network_address
    if isinstance(address, IPv6Address) and address.ipv4_mapped and network.prefixlen > 96:  # noqa: PLR2004 - ::ffff:0:0/96
        return ip_network((address.ipv4_mapped, network.prefixlen - 96))
    return network


def _is_unix(peer: str | None) -> bool:
    return not peer or peer.startswith(("/", "@", "unix:"))


def _entries(lines: Sequence[str]) -> Iterator[str | None]:
    """The entries of X-Forwarded-For from the right; None where the reading ends early. Empty ones are passed over."""
    read = 0
    for line in reversed(lines):
        end: int | None = len(line)
        while end is not None:
            comma = line.rfind(",", 0, end)
            entry = line[comma + 1 : end].strip(" \t")
            end = comma if comma >= 0 else None
            read += 1
            if read > MAX_HOPS:
                yield None
                return
            if entry:
                yield entry


def _forwarded_nodes(lines: Sequence[str]) -> Iterator[str | None]:
    """The `for` of each element of Forwarded (RFC 7239) from the right; None for one that has none."""
    read = 0
    for line in reversed(lines):
        end: int | None = len(line)
        while end is not None:
            comma = _comma_before(line, end)
            read += 1
            if comma is None or read > MAX_HOPS:
                yield None
                return
            element = line[comma + 1 : end].strip(" \t")
            end = comma if comma >= 0 else None
            if element:
                yield _for(element)


def _comma_before(line: str, end: int) -> int | None:
    """Where the last comma outside quotes is; -1 when there is none, None when the quotes don't match.

    It reads from the right: a quote that a client left open must not swallow what a proxy has written after it.
    """
    quoted = False
    at, first = end - 1, max(0, end - MAX_ELEMENT)
    while at >= first:
        sign = line[at]
        if sign == '"':
            before = at
            while before > first and line[before - 1] == "\\":
                before -= 1
            escaped = (at - before) % 2 == 1
            if escaped and not quoted:
                return None
            quoted = quoted if escaped else not quoted
            at = before
        elif sign == "," and not quoted:
            return at
        at -= 1
    return -1 if first == 0 and not quoted else None


def _for(element: str) -> str | None:
    """The value of the one `for` of an element, without its quotes; None if there is not exactly one."""
    found: list[str] = []
    at = 0
    while at < len(element):
        pair = _PAIR.match(element, at)
        if pair is None:
            empty = _EMPTY.match(element, at)
            if empty is None:
                return None
            at = empty.end()
            continue
        at = pair.end()
        if pair[1].lower() == "for":
            value = pair[2]
            found.append(_ESCAPED.sub(r"\1", value[1:-1]) if value.startswith('"') else value)
    return found[0] if len(found) == 1 else None
