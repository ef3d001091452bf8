"""Who is listed: subjects and address ranges that nothing happens to, with an end of the listing."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING

from penaltybox.contracts.subjects import decode_value

if TYPE_CHECKING:
    from penaltybox.contracts.policy import AllowEntry

_BOUND = 100_000


class Allowlist:
    """A policy's allowlist, looked up by canonical subject and event time."""

    def __init__(self, entries: tuple[AllowEntry, ...]) -> None:
        self.entries = entries
        self._exact: dict[str, list[AllowEntry]] = {}
        for entry in entries:
            if entry.subject:
                self._exact.setdefault(entry.subject, []).append(entry)
        self._ranges = _Ranges()
        for entry in entries:
            if entry.cidr:
                self._ranges.add(entry)
        self._found: dict[str, tuple[AllowEntry, ...]] = {}

    def covers(self, subject: str, t: int) -> bool:
        """Whether the subject is listed at time `t` (ms)."""
        found = self._found.get(subject)
        if found is None:
            if len(self._found) >= _BOUND:
                self._found.clear()
            found = self._found[subject] = self.matching(subject)
        return any(entry.until is None or t < entry.until for entry in found)

    def matching(self, subject: str) -> tuple[AllowEntry, ...]:
        """Every entry for the subject, or for a part of it if it is a combination; whether ended or not."""
        dimensions, _, values = subject.partition(":")
        if "+" in dimensions:
            found = list(self._exact.get(subject, ()))
            for dimension, value in zip(dimensions.split("+"), values.split("+"), strict=True):
                found += self.matching(f"{dimension}:{decode_value(value) if dimension == 'ip' else value}")
            return tuple(found)
        found = list(self._exact.get(subject, ()))
        if self._ranges and subject.startswith("ip:"):
            address = _network(subject[3:])
            if address is not None:
                found += self._ranges.overlapping(address)
        return tuple(found)


class _Ranges:
    """Entries by address range: (IP version, prefix length) -> leading bits -> entries."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, int], dict[int, list[AllowEntry]]] = {}
        self._within: dict[tuple[int, int], dict[int, list[AllowEntry]]] = {}
        """The same of ranges that are longer than a length that was asked for, by their bits of that length."""

    def __bool__(self) -> bool:
        return bool(self._tables)

    def add(self, entry: AllowEntry) -> None:
        version, length, bits = _bits(ip_network(entry.cidr))
        self._tables.setdefault((version, length), {}).setdefault(bits, []).append(entry)
        self._within = {}

    def overlapping(self, network: IPv4Network | IPv6Network) -> list[AllowEntry]:
        """Entries around a network, and those in it: a listed address lists its /64, which would be blocked."""
        version, length, bits = _bits(network)
        found: list[AllowEntry] = []
        for (family, shorter), table in self._tables.items():
            if family == version and shorter <= length:
                found += table.get(bits >> (length - shorter), ())
        return found + self._longer(version, length).get(bits, [])

    def _longer(self, version: int, length: int) -> dict[int, list[AllowEntry]]:
        known = self._within.get((version, length))
        if known is None:
            known = self._within[version, length] = {}
            for (family, longer), table in self._tables.items():
                if family == version and longer > length:
                    for bits, entries in table.items():
                        known.setdefault(bits >> (longer - length), []).extend(entries)
        return known


def _bits(network: IPv4Network | IPv6Network) -> tuple[int, int, int]:
    """(version, prefix length, leading bits)."""
    unused = network.max_prefixlen - network.prefixlen
    return network.version, network.prefixlen, int(network.network_address) >> unused


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text)
    except ValueError:
        return None  # an HMAC: ranges do not apply to it
