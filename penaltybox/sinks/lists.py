"""The lists that are kept by hand in Redis: who is allowlisted, and which ranges of addresses are banned.

A change is a command here and a record of the control topic; `Untold.commit` does both in one step. docs/keys.md
describes the form, which the limiters read too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.keyspace import Keyspace
from penaltybox.contracts.listing import as_range
from penaltybox.contracts.policy import AllowEntry
from penaltybox.contracts.subjects import Canonicaliser, parse_subject
from penaltybox.links.hashes import SCAN_COUNT, hash_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.links.exchange import Command, Link

_log = logging.getLogger(__name__)


class Allowed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value of `pbx:allow`."""

    until: int | None = None
    note: str = ""
    actor: str = ""


class Banned(msgspec.Struct, frozen=True):
    """A value of `pbx:cidr`."""

    action: Literal["deny", "challenge"] = "deny"
    until: int | None = None
    reason: str = ""
    actor: str = ""


class HandLists:
    """Reads the lists, and makes the commands that change them.

    Args:
        link: from `connections.open_link`; closed by whoever opened it.
        prefix: of all keys.
        canonicaliser: how subjects count.
    """

    def __init__(self, link: Link, prefix: str = "pbx", canonicaliser: Canonicaliser | None = None) -> None:
        self._link = link
        self.keys = Keyspace(prefix)
        self._canonicaliser = canonicaliser or Canonicaliser()

    async def allowed(self) -> dict[str, Allowed]:
        """Every entry of the allowlist in Redis, ended ones too; what cannot be read is left out, and logged.

        Raises:
            StoreUnavailable: Redis did not answer; nothing of this reading is to be used.
        """
        return await self._read(self.keys.allow, Allowed)

    async def banned(self) -> dict[str, Banned]:
        """Every banned range; raises as `allowed` does."""
        return await self._read(self.keys.cidr, Banned)

    async def entries(self) -> tuple[AllowEntry, ...]:
        """The allowlist in Redis as a policy would have it; raises as `allowed` does."""
        found = []
        for number, (field, value) in enumerate(sorted((await self.allowed()).items()), 1):
            if number % SCAN_COUNT == 0:
                await asyncio.sleep(0)  # a worker goes on meanwhile
            entry = self.entry(field, value)
            if entry is None:
                _log.warning("field %r of %s is no subject and no range, and does nothing", field[:80], self.keys.allow)
            else:
                found.append(entry)
        return tuple(found)

    def entry(self, field: str, value: Allowed) -> AllowEntry | None:
        """An entry of the hash; see `allow_entry`."""
        return allow_entry(field, value, self._canonicaliser)

    def allow(self, entries: Mapping[str, Allowed]) -> Command:
        """The command that sets entries of the allowlist."""
        return ("HSET", self.keys.allow, *_flat(entries))

    def disallow(self, fields: Sequence[str]) -> Command:
        """The command that removes them."""
        return ("HDEL", self.keys.allow, *fields)

    def ban(self, entries: Mapping[str, Banned]) -> Command:
        """The command that bans ranges."""
        return ("HSET", self.keys.cidr, *_flat(entries))

    def unban(self, fields: Sequence[str]) -> Command:
        """The command that ends their bans."""
        return ("HDEL", self.keys.cidr, *fields)

    async def _read(self, key: str, kind: type[Value]) -> dict[str, Value]:
        found, wrong = {}, []
        async for field, value in hash_fields(self._link, key):
            try:
                found[field.decode()] = msgspec.json.decode(value, type=kind)
            except ValueError:
                wrong.append(field)
        if wrong:
            _log.warning(
                "%d entries of %s cannot be read and do nothing, e.g. field %r", len(wrong), key, wrong[0][:80]
            )
        return found


def allow_entry(field: str, value: Allowed, canonicaliser: Canonicaliser) -> AllowEntry | None:
    """What an entry of the hash means; None when its field is neither a subject nor a range.

    An IPv6 address or range within the prefix that counts lists the whole prefix.
    """
    network = as_range(field)
    text = field if ":" in field.partition("/")[0] or network is not None else f"ip:{field}"
    if network is not None:
        if not (network.version == 6 and network.prefixlen >= canonicaliser.ipv6_prefix):  # noqa: PLR2004 - IPv6
            return AllowEntry(cidr=str(network), until=value.until, note=value.note)
        text = f"ip:{network.network_address}"
    try:
        subject = parse_subject(text, canonicaliser)
    except BadEvent:
        try:  # a bare IPv6 address
            subject = parse_subject(f"ip:{field}", canonicaliser)
        except BadEvent:
            return None
    return AllowEntry(subject=subject, until=value.until, note=value.note)


Value = TypeVar("Value", Allowed, Banned)


def _flat(entries: Mapping[str, Allowed] | Mapping[str, Banned]) -> list[str | bytes]:
    return [part for field, value in entries.items() for part in (field, msgspec.json.encode(value))]
