"""What is in force as a list of networks that do not overlap, for programs that know addresses only."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from penaltybox.producers.lists import Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penaltybox.producers.feed.lines import InForce, Name

Network: TypeAlias = IPv4Network | IPv6Network
_Position: TypeAlias = tuple[int, int, int]
"""Bits of the family, first address, prefix length."""
_RANKS: Final = ("challenge", "deny", "allow")
_DENY: Final = 1
_ALLOW: Final = 2
_NEVER: Final = 1 << 62
_V4, _V6 = 32, 128
_FEW: Final = 1_000
"""Changes that are put in order one by one; more of them by sorting all."""


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
    """A range of the list: what holds there, unless something weightier around or within it does."""

    __slots__ = ("end", "rank", "where")

    def __init__(self, where: Range, entry: InForce) -> None:
        self.where = where
        self.rank = _RANKS.index(entry.action)
        self.end = _NEVER if entry.until is None else entry.until

    def outweighs(self, other: _Node) -> bool:
        """Whether this one decides where both are."""
        return (self.rank, self.end) > (other.rank, other.end)


class Difference(NamedTuple):
    """What a change makes of a list: bans that are gone, and bans that have come; neither within one that stays."""

    gone: list[Ban]
    come: list[Ban]


class LiveList:
    """An address list that is kept, change by change: what a change costs is what overlaps with it, not the list.

    Whatever lies in one outermost range depends on nothing outside of it, so that much is worked out anew.
    """

    def __init__(self) -> None:
        self._entries: dict[Range, dict[Name, Sequence[InForce]]] = {}
        self._nodes: dict[Range, _Node] = {}
        self._order: list[_Position] = []
        """Of all nodes: a range comes just before what lies in it."""
        self._lengths: Counter[tuple[int, int]] = Counter()
        """How many nodes there are, by (bits of the family, prefix length)."""
        self._others: dict[Name, str] = {}

    @property
    def left_out(self) -> Counter[str]:
        """What no list of addresses can hold: how many, by why."""
        return Counter(self._others.values())

    def bans(self) -> list[Ban]:
        """The whole list."""
        return _apart([self._nodes[_range(at)] for at in self._order])

    def take(self, changes: Mapping[Name, Sequence[InForce]], now_ms: int) -> Difference:
        """Takes up what is in force now against some names, and says what of the list is another by it.

        Args:
            changes: as the feed tells them; nothing in force takes the name away.
            now_ms: what has ended by then counts as nothing.
        """
        touched = [where for name, told in changes.items() if (where := self._enter(name, told, now_ms)) is not None]
        if not self._order:
            self._arrange(touched)
            return Difference([], self.bans())
        areas = self._areas(touched)
        before = [ban for area in areas for ban in _apart(self._nodes_in(area))]
        self._arrange(touched)
        after = [ban for area in areas for ban in _apart(self._nodes_in(area))]
        kept = set(before) & set(after)
        return Difference([ban for ban in before if ban not in kept], [ban for ban in after if ban not in kept])

    def _enter(self, name: Name, in_force: Sequence[InForce], now_ms: int) -> Range | None:
        """Notes what is in force against a name; the range that it is about."""
        kind, text = name
        running = [one for one in in_force if one.until is None or one.until > now_ms]
        where = Range.of(text[3:]) if text.startswith("ip:") else None if kind == "subject" else Range.of(text)
        if where is None:
            self._others.pop(name, None)
            if running and kind != "allow":
                self._others[name] = _why(text)
            return None
        entries = self._entries.setdefault(where, {})
        if running:
            entries[name] = running
        else:
            entries.pop(name, None)
        return where

    def _areas(self, touched: Sequence[Range]) -> list[Range]:
        """The outermost ranges that a change of these may reach, none within another, in the order of addresses."""
        lengths: dict[int, list[int]] = {_V4: [], _V6: []}
        for bits, length in sorted({*self._lengths, *((one.bits, one.length) for one in touched)}):
            lengths[bits].append(length)
        added = set(touched)
        found: list[Range] = []
        outermost = {self._outermost(one, lengths[one.bits], added) for one in touched}
        for area in sorted(outermost, key=_position):
            if not found or not _within(area, found[-1]):
                found.append(area)
        return found

    def _outermost(self, where: Range, lengths: Sequence[int], added: set[Range]) -> Range:
        bits, number, length = where
        for shorter in lengths:
            if shorter >= length:
                break
            around = Range(bits, number >> (length - shorter), shorter)
            if around in self._nodes or around in added:
                return around
        return where

    def _nodes_in(self, area: Range) -> list[_Node]:
        """The nodes in an area, itself included, in their order."""
        bits, start, length = _position(area)
        if length == bits:
            node = self._nodes.get(area)
            return [] if node is None else [node]
        first = bisect_left(self._order, (bits, start, length))
        last = bisect_left(self._order, (bits, start + (1 << (bits - length)), -1), first)
        return [self._nodes[_range(at)] for at in self._order[first:last]]

    def _arrange(self, touched: Sequence[Range]) -> None:
        """Makes nodes of what was noted about these ranges."""
        gone, come = set[_Position](), set[_Position]()
        for where in touched:
            entries = self._entries.get(where)
            nodes = [_Node(where, one) for running in (entries or {}).values() for one in running]
            before = self._nodes.pop(where, None)
            if nodes:
                self._nodes[where] = max(nodes, key=lambda node: (node.rank, node.end))
            elif entries is not None:
                del self._entries[where]
            if (before is None) == bool(nodes):
                (come if nodes else gone).add(_position(where))
                self._lengths[where.bits, where.length] += 1 if nodes else -1
                if not self._lengths[where.bits, where.length]:
                    del self._lengths[where.bits, where.length]
        self._reorder(gone, come)

    def _reorder(self, gone: set[_Position], come: set[_Position]) -> None:
        if len(gone) + len(come) > _FEW:
            self._order = sorted(come.union(at for at in self._order if at not in gone))
            return
        for at in gone:
            del self._order[bisect_left(self._order, at)]
        for at in come:
            insort(self._order, at)


def address_list(names: Mapping[Name, Sequence[InForce]], now_ms: int) -> AddressList:
    """The networks in what is in force: allow wins over deny over challenge, then the later end.

    Args:
        names: as the feed tells them.
        now_ms: what has ended by then is not in the list.
    """
    live = LiveList()
    return AddressList(live.take(names, now_ms).come, live.left_out)


def _why(text: str) -> str:
    dimension = text.partition(":")[0]
    return "ip (hashed)" if dimension == "ip" else dimension


def _apart(nodes: Sequence[_Node]) -> list[Ban]:
    """Bans that do not overlap, of nodes in their order: of two, the weightier decides about what they share."""
    if len(nodes) == 1:
        return [_ban(nodes[0].where, nodes[0])] if nodes[0].rank != _ALLOW else []
    kept: list[tuple[_Node, list[Range]]] = []  # with the parts that somebody else decides about
    around: list[tuple[_Node, list[Range]]] = []  # kept ones that the next may lie in, outermost first
    for node in nodes:
        while around and not _within(node.where, around[-1][0].where):
            around.pop()
        if around:
            outer, holes = around[-1]
            if not node.outweighs(outer):
                continue
            holes.append(node.where)
        around.append((node, []))
        kept.append(around[-1])
    parts = [(part, node) for node, holes in kept if node.rank != _ALLOW for part in _without(node.where, holes)]
    if any(holes for _, holes in kept):
        parts.sort(key=lambda part: _position(part[0]))
    return [_ban(part, node) for part, node in parts]


def _ban(part: Range, node: _Node) -> Ban:
    return Ban(_network(part), "deny" if node.rank == _DENY else "challenge", None if node.end == _NEVER else node.end)


def _position(where: Range) -> _Position:
    bits, number, length = where
    return bits, number << (bits - length), length


def _range(at: _Position) -> Range:
    bits, start, length = at
    return Range(bits, start >> (bits - length), length)


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
