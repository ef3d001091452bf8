"""Whom the lists in memory let through or refuse: the allowlist, and bans of address ranges.

Ranges are kept by prefix length: a look-up masks the address once per length that occurs (at most 33 or 129), however
many entries there are.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.keyspace import Keyspace
from penaltybox.contracts.subjects import Canonicaliser, parse_subject
from penaltybox.links.hashes import hash_fields
from penaltybox.producers.limiter import subject_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penaltybox.contracts.policy import AllowEntry
    from penaltybox.contracts.subjects import Name
    from penaltybox.links.exchange import Link
    from penaltybox.producers.limiter import Request

_log = logging.getLogger(__name__)
NEVER: Final = 1 << 62
"""End of what has no end."""
_MAPPED: Final = b"\x00" * 10 + b"\xff\xff"
_V4, _V6 = 32, 128
_MAPPED_BITS = _V6 - _V4
Entry = TypeVar("Entry")


class Listing(NamedTuple):
    """An entry that is in force for a request.

    Attributes:
        action: what it says.
        name: the subject or range that is listed.
        until_ms: its end (ms since the epoch), `NEVER` if it has none.
    """

    action: Literal["allow", "deny", "challenge"]
    name: str
    until_ms: int


class _Allow(msgspec.Struct, frozen=True):
    until: int | None = None


class _Ban(msgspec.Struct, frozen=True):
    action: Literal["deny", "challenge"] = "deny"
    until: int | None = None


_allow_value = msgspec.json.Decoder(_Allow)
_ban_value = msgspec.json.Decoder(_Ban)


class Range(NamedTuple):
    """An address (length = bits) or a range of them: bits of its family, the number, how many leading bits count."""

    bits: int
    number: int
    length: int

    @classmethod
    def of(cls, text: str) -> Range | None:
        """An address or range in text; an IPv4-mapped one is IPv4's; None when it is neither."""
        address, slash, length = text.partition("/")
        try:
            packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
        except (OSError, UnicodeError, ValueError):
            return None
        bits = len(packed) * 8
        if slash and not (length.isascii() and length.isdecimal() and int(length) <= bits):
            return None
        counted = int(length) if slash else bits
        if packed.startswith(_MAPPED) and bits == _V6 and counted >= _MAPPED_BITS:
            packed, bits, counted = packed[12:], _V4, counted - _MAPPED_BITS
        return cls(bits, int.from_bytes(packed, "big") >> (bits - counted), counted)


class Ranges(Generic[Entry]):
    """Entries by address range: `length -> leading bits -> entries`, per family."""

    def __init__(self) -> None:
        self._families: dict[int, dict[int, dict[int, tuple[Entry, ...]]]] = {_V4: {}, _V6: {}}

    def add(self, where: Range, entry: Entry) -> None:
        """One more entry; several for one range are all kept."""
        table = self._families[where.bits].setdefault(where.length, {})
        table[where.number] = (*table.get(where.number, ()), entry)

    def around(self, where: Range) -> Iterator[Entry]:
        """Every entry whose range holds all of `where`."""
        bits, number, counted = where
        for length, table in self._families[bits].items():
            if length <= counted:
                found = table.get(number >> (counted - length))
                if found is not None:
                    yield from found


class Lists:
    """The lists at one time. Filled once, then only asked.

    An allowlisted IPv6 address lists its whole prefix (/64 by default): that is the unit which counts and is blocked.
    A ban means exactly its range.

    Args:
        entries: the policy's allowlist.
        canonicaliser: how subjects count.
    """

    def __init__(self, entries: Iterable[AllowEntry] = (), canonicaliser: Canonicaliser | None = None) -> None:
        self._canonicaliser = canonicaliser or Canonicaliser()
        self._subjects: dict[str, int] = {}
        self._combined: set[str] = set()
        self._allowed: Ranges[Listing] = Ranges()
        self._banned: Ranges[Listing] = Ranges()
        self.size = 0
        """Entries, ended ones too."""
        for entry in entries:
            self.allow(entry.subject or entry.cidr, entry.until)

    def allow(self, name: str, until_ms: int | None = None) -> bool:
        """Lists a subject or a range; False when `name` is neither."""
        end = NEVER if until_ms is None else until_ms
        where = Range.of(name.removeprefix("ip:"))
        if where is not None:
            unit = self._canonicaliser.ipv6_prefix
            if where.bits == _V6 and where.length > unit:
                where = Range(_V6, where.number >> (where.length - unit), unit)
            self._allowed.add(where, Listing("allow", name, end))
        else:
            try:
                subject = parse_subject(name, self._canonicaliser)
            except BadEvent:
                return False
            self._subjects[subject] = max(end, self._subjects.get(subject, 0))
            dimensions = subject.partition(":")[0]
            if "+" in dimensions:
                self._combined.add(dimensions)
        self.size += 1
        return True

    def ban(self, cidr: str, action: Literal["deny", "challenge"] = "deny", until_ms: int | None = None) -> bool:
        """Bans a range; False when `cidr` is none."""
        where = Range.of(cidr)
        if where is None:
            return False
        self._banned.add(where, Listing(action, cidr, NEVER if until_ms is None else until_ms))
        self.size += 1
        return True

    def find(self, request: Request, names: Iterable[Name], address: str | None = None) -> Listing | None:
        """What the lists say about a request at its own time: allow before deny before challenge, then the later end.

        Args:
            request: its subjects as they are stored (hashed ones as HMAC).
            names: their canonical names.
            address: of the request, as it came; it is looked up itself, not by its prefix.
        """
        if not self.size:
            return None
        now = request.ts_ms
        subjects = self._subjects
        if subjects:
            for name in names:
                if subjects.get(name.text, 0) > now:
                    return Listing("allow", name.text, subjects[name.text])
            for dimensions in self._combined:
                text = subject_of(dimensions, request, request.subjects, self._canonicaliser)
                if text is not None and subjects.get(text, 0) > now:
                    return Listing("allow", text, subjects[text])
        where = Range.of(address) if address is not None else None
        if where is None:
            return None
        for listing in self._allowed.around(where):
            if listing.until_ms > now:
                return listing
        return max((one for one in self._banned.around(where) if one.until_ms > now), key=_severity, default=None)


def _severity(listing: Listing) -> tuple[bool, int]:
    return listing.action == "deny", listing.until_ms


class ListSource:
    """Reads `pbx:allow` and `pbx:cidr`, in steps.

    Args:
        link: a way to Redis; closed by whoever opened it.
        prefix: of all keys.
        canonicaliser: how subjects count.
    """

    def __init__(self, link: Link, prefix: str = "pbx", canonicaliser: Canonicaliser | None = None) -> None:
        self._link = link
        self._keys = Keyspace(prefix)
        self._canonicaliser = canonicaliser or Canonicaliser()

    async def read(self, entries: Iterable[AllowEntry] = ()) -> Lists:
        """The lists as they stand, with the policy's own entries; what cannot be read is skipped, and told once.

        Raises:
            StoreUnavailable: Redis did not answer; nothing of this reading is to be used.
        """
        lists = Lists(entries, self._canonicaliser)
        wrong = []
        async for field, value in hash_fields(self._link, self._keys.allow):
            try:
                understood = lists.allow(field.decode(), _allow_value.decode(value).until)
            except ValueError:
                understood = False
            if not understood:
                wrong.append((self._keys.allow, field))
        async for field, value in hash_fields(self._link, self._keys.cidr):
            try:
                ban = _ban_value.decode(value)
                understood = lists.ban(field.decode(), ban.action, ban.until)
            except ValueError:
                understood = False
            if not understood:
                wrong.append((self._keys.cidr, field))
        if wrong:
            _log.warning(
                "lists in Redis: %d entries cannot be read and do nothing, for example field %r of %s; "
                "docs/keys.md has their form",
                len(wrong),
                wrong[0][1][:80],
                wrong[0][0],
            )
        return lists
