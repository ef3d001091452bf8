"""Banned ranges and allowlist as names with what is in force; the policy's own allowlist too."""

from __future__ import annotations

from ipaddress import IPv6Network, ip_network
from typing import TYPE_CHECKING, Literal

import msgspec

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.listing import as_range
from penaltybox.contracts.subjects import parse_subject
from penaltybox.links.hashes import hash_fields
from penaltybox.producers.feed.lines import InForce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.keyspace import Keyspace
    from penaltybox.contracts.policy import AllowEntry
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.links.exchange import Link
    from penaltybox.producers.feed.lines import Name

Entries = dict["Name", tuple[InForce, ...]]


class _Ban(msgspec.Struct, frozen=True):
    action: Literal["deny", "challenge"] = "deny"
    until: int | None = None


class _Allow(msgspec.Struct, frozen=True):
    until: int | None = None


async def read_entries(
    link: Link, keys: Keyspace, canonicaliser: Canonicaliser, allow: Sequence[AllowEntry], now_ms: int
) -> Entries:
    """Everything on the lists that has not ended; what cannot be read does nothing, as everywhere.

    Raises:
        StoreUnavailable: Redis did not answer; nothing of this reading is to be used.
    """
    found: Entries = {}
    async for field, value in hash_fields(link, keys.cidr):
        try:
            ban = msgspec.json.decode(value, type=_Ban)
            name = range_name(field.decode())
        except ValueError:
            continue
        if name and _runs(ban.until, now_ms):
            found["range", name] = (InForce(ban.action, ban.until),)
    listed = [(entry.subject or entry.cidr, entry.until) for entry in allow]
    async for field, value in hash_fields(link, keys.allow):
        try:
            listed.append((field.decode(), msgspec.json.decode(value, type=_Allow).until))
        except ValueError:
            continue
    for text, until in listed:
        name = allow_name(text, canonicaliser)
        if name and _runs(until, now_ms):
            before = found.get(("allow", name))
            if before is None or _later(until, before[0].until):
                found["allow", name] = (InForce("allow", until),)
    return found


def range_name(text: str) -> str:
    """A range or an address as a network, host bits dropped; `""` for what is neither."""
    network = as_range(text)
    if network is None:
        try:
            network = ip_network(text.removeprefix("ip:"))
        except ValueError:
            return ""
    return str(network)


def allow_name(text: str, canonicaliser: Canonicaliser) -> str:
    """A network, IPv6 at least the prefix that counts, or a canonical subject; `""` for what is neither."""
    name = range_name(text)
    if name:
        network = ip_network(name)
        if isinstance(network, IPv6Network) and network.prefixlen > canonicaliser.ipv6_prefix:
            network = network.supernet(new_prefix=canonicaliser.ipv6_prefix)
        return str(network)
    try:
        return parse_subject(text, canonicaliser)
    except BadEvent:
        return ""


def _runs(until: int | None, now_ms: int) -> bool:
    return until is None or until > now_ms


def _later(one: int | None, other: int | None) -> bool:
    return other is not None and (one is None or one > other)
