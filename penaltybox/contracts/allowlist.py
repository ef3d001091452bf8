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
        self._ranges = [(ip_network(entry.cidr), entry) for entry in entries if entry.cidr]
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
                # A listed address inside a /64 lists the /64: it is the unit that would be blocked.
                found += [
                    entry for network, entry in self._ranges
                    if network.version == address.version and network.overlaps(address)
                ]  # fmt: skip
        return tuple(found)


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text)
    except ValueError:
        return None  # an HMAC: ranges do not apply to it
