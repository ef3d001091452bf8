"""What is in force as a list of networks that do not overlap, for programs that know addresses only."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from penaltybox.producers.lists import Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penaltybox.producers.feed.lines import InForce, Name

Network: TypeAlias = IPv4Network | IPv6Network
_RANKS: Final = ("challenge", "deny", "allow")
_DENY: Final = 1
_ALLOW: Final = 2
_NEVER: Final = 1 << 62
_V4: Final = 32


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
    """A range on the way through the list, with the parts of it that somebody else decides."""

    __slots__ = ("end", "holes", "rank", "where")

    def __init__(self, where: Range, entry: InForce) -> None:
        self.where = where
        self.rank = _RANKS.index(entry.action)
        self.end = _NEVER if entry.until is None else entry.until
        self.holes: list[Range] = []

    def outweighs(self, other: _Node) -> bool:
        """Whether this one decides where both are."""
        return (self.rank, self.end) > (other.rank, other.end)


def address_list(names: Mapping[Name, Sequence[InForce]], now_ms: int) -> AddressList:
    """The networks in what is in force: allow wins over deny over challenge, then the later end.

    Args:
        names: as the feed tells them.
        now_ms: what has ended by then is not in the list.
    """
    nodes: dict[Range, _Node] = {}
    left_out: Counter[str] = Counter()
    for (kind, text), in_force in names.items():
        running = [one for one in in_force if one.until is None or one.until > now_ms]
        if not running:
            continue
        where = Range.of(text[3:]) if text.startswith("ip:") else None if kind == "subject" else Range.of(text)
        if where is None:
            if kind != "allow":
                left_out[_why(text)] += 1
            continue
        for one in running:
            node = _Node(where, one)
            if where not in nodes or node.outweighs(nodes[where]):
                nodes[where] = node
    return AddressList(_apart(nodes.values()), left_out)


def _why(text: str) -> str:
    dimension = text.partition(":")[0]
    return "ip (hashed)" if dimension == "ip" else dimension


def _apart(nodes: Iterable[_Node]) -> list[Ban]:
    """Bans that do not overlap: of two, one within the other, the weightier decides about what they share."""
    kept: list[_Node] = []
    around: list[_Node] = []  # kept ones that the next may lie in, outermost first
    for node in sorted(nodes, key=lambda node: _position(node.where)):
        while around and not _within(node.where, around[-1].where):
            around.pop()
        if around:
            if not node.outweighs(around[-1]):
                continue
            around[-1].holes.append(node.where)
        around.append(node)
        kept.append(node)
    parts = [(part, node) for node in kept if node.rank != _ALLOW for part in _without(node.where, node.holes)]
    if any(node.holes for node in kept):
        parts.sort(key=lambda part: _position(part[0]))
    return [
        Ban(_network(part), "deny" if node.rank == _DENY else "challenge", None if node.end == _NEVER else node.end)
        for part, node in parts
    ]


def _position(where: Range) -> tuple[int, int, int]:
    bits, number, length = where
    return bits, number << (bits - length), length


def _within(inner: Range, outer: Range) -> bool:
    return (
        inner.bits == outer.bits
        and inner.length >= outer.length
        and inner.number >> (inner.length - outer.length) == outer.number
    )


def _without(where: Range, holes: Sequence[Range]) -> Iterator[Range]:
    """The parts of a range outside of all holes, which lie in it and not in each other."""
    if not holes:
        yield where
    elif holes[0] != where:
        for last in (0, 1):
            half = Range(where.bits, where.number << 1 | last, where.length + 1)
            yield from _without(half, [hole for hole in holes if _within(hole, half)])


def _network(where: Range) -> Network:
    bits, number, length = where
    made = (number << (bits - length), length)
    return IPv4Network(made) if bits == _V4 else IPv6Network(made)
