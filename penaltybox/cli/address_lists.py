"""What is in force as a list of networks that do not overlap, for programs that know addresses only."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penaltybox.producers.feed.lines import InForce, Name

Network: TypeAlias = IPv4Network | IPv6Network
_RANK = {"allow": 2, "deny": 1, "challenge": 0}
_NEVER = 1 << 62


class Ban(NamedTuple):
    """A network, what happens to it, and until when (ms; None is for good)."""

    network: Network
    action: Literal["deny", "challenge"]
    until: int | None


class AddressList(NamedTuple):
    """Bans in the order of addresses, IPv4 first, none within another; and what no list of addresses can hold.

    Attributes:
        bans: who is denied or challenged.
        left_out: how many, by why.
    """

    bans: list[Ban]
    left_out: Counter[str]

    def denied(self) -> AddressList:
        """Only who is denied, for programs that cannot ask anything."""
        left = Counter(self.left_out)
        challenged = sum(ban.action == "challenge" for ban in self.bans)
        if challenged:
            left["challenged"] += challenged
        return AddressList([ban for ban in self.bans if ban.action == "deny"], left)


class _Node:
    """A network on the way through the list, with the parts of it that somebody else decides."""

    __slots__ = ("action", "holes", "network", "until")

    def __init__(self, network: Network, entry: InForce) -> None:
        self.network, self.action, self.until = network, entry.action, entry.until
        self.holes: list[Network] = []

    @property
    def weight(self) -> tuple[int, int]:
        return _RANK[self.action], _NEVER if self.until is None else self.until


def address_list(names: Mapping[Name, Sequence[InForce]], now_ms: int) -> AddressList:
    """The networks in what is in force: allow wins over deny over challenge, then the later end.

    Args:
        names: as the feed tells them.
        now_ms: what has ended by then is not in the list.
    """
    nodes: dict[Network, _Node] = {}
    left_out: Counter[str] = Counter()
    for (kind, text), in_force in names.items():
        running = [one for one in in_force if one.until is None or one.until > now_ms]
        if not running:
            continue
        network = _network(kind, text)
        if network is None:
            if kind != "allow":
                left_out[_why(text)] += 1
            continue
        for one in running:
            node = _Node(network, one)
            if network not in nodes or nodes[network].weight < node.weight:
                nodes[network] = node
    return AddressList(list(_apart(nodes.values())), left_out)


def _network(kind: str, text: str) -> Network | None:
    if kind == "subject" or (kind == "allow" and ":" in text.partition("/")[0]):
        if not text.startswith("ip:") and kind == "subject":
            return None
        text = text.removeprefix("ip:")
    try:
        return ip_network(text)
    except ValueError:
        return None


def _why(text: str) -> str:
    dimension = text.partition(":")[0]
    return "ip (hashed)" if dimension == "ip" else dimension


def _apart(nodes: Iterable[_Node]) -> Iterator[Ban]:
    """Bans that do not overlap: of two, one within the other, the weightier decides about what they share."""
    kept: list[_Node] = []
    around: list[_Node] = []  # kept ones that the next may lie in, outermost first
    order = sorted(nodes, key=lambda node: _position(node.network))
    for node in order:
        while around and not _within(node.network, around[-1].network):
            around.pop()
        if around and around[-1].weight >= node.weight:
            continue
        if around:
            around[-1].holes.append(node.network)
        around.append(node)
        kept.append(node)
    parts = (
        Ban(network, node.action, node.until)
        for node in kept
        if node.action != "allow"
        for network in _without(node.network, node.holes)
    )
    return iter(sorted(parts, key=lambda ban: _position(ban.network)))


def _position(network: Network) -> tuple[int, int, int]:
    return network.version, int(network.network_address), network.prefixlen


def _within(inner: Network, outer: Network) -> bool:
    if inner.version != outer.version or inner.prefixlen < outer.prefixlen:
        return False
    shift = outer.max_prefixlen - outer.prefixlen
    return int(inner.network_address) >> shift == int(outer.network_address) >> shift


def _without(network: Network, holes: Sequence[Network]) -> Iterator[Network]:
    """The parts of a network outside of all holes, which lie in it and not in each other."""
    if not holes:
        yield network
    elif holes[0] != network:
        for half in network.subnets():
            yield from _without(half, [hole for hole in holes if _within(hole, half)])
