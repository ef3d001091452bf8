"""Subjects: who a decision is about, in one canonical text ``dimension:value``.

The canonical form is what Kafka keys, Redis keys and penalties carry, so programs in any language must agree on it:
``docs/subjects.md`` has a table of test vectors.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import socket
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import msgspec

from penaltybox.contracts.errors import BadEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_VALUE_BYTES: Final = 128
_SHORT: Final = MAX_VALUE_BYTES // 4
"""So many characters are never more bytes than that in UTF-8."""
MAX_CACHED: Final = 200_000
MAX_GROUPS: Final = 65_536
DIMENSION: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_SAFE = re.compile(r"[A-Za-z0-9\-._~]+")
_spell = msgspec.json.Encoder().encode
_MAPPED_PREFIX = b"\x00" * 10 + b"\xff\xff"
_OTHERS = 3
TRUSTED: Final = ("api_key", "user", "device")
"""Dimensions that earn trust, the most specific first; others have none."""
_SPECIFICITY = {"api_key": 0, "user": 1, "device": 2, "ip": 8, "scenario": 9, "route": 9}


def specificity(dimension: str) -> tuple[int, str]:
    """Sort key: api_key, user, device, others by name, ip. A combination counts as its most specific part, after it.

    `scenario` and `route` are fields of a decision that combinations may use; they come last.
    """
    parts = dimension.split("+")
    rank, name = min((_SPECIFICITY.get(part, _OTHERS), part) for part in parts)
    return rank, name if len(parts) == 1 else f"{name}+{dimension}"


def leading_part(dimension: str) -> str:
    """The most specific part of a combination; a single dimension itself."""
    return min(dimension.split("+"), key=specificity)


def most_specific(dimensions: Iterable[str]) -> str:
    """The dimension a record is keyed by, or a denial is charged to."""
    return min(dimensions, key=specificity)


def value_hash(value: str) -> int:
    """63-bit hash of a value, the same in every process: what distinct sets hold instead of values."""
    return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "big") >> 1


class Name:
    """A subject's canonical text, and the hash of its value. There is one per (dimension, value) seen lately."""

    __slots__ = ("hash", "hint", "text")

    def __init__(self, text: str) -> None:
        self.hint: Any = None
        """Whatever a worker last found under this name: it saves a look-up, and must be checked before use."""
        self.text: Final = text
        self.hash: Final = value_hash(text.split(":", 1)[1])


class Names(list[Name]):
    """The names of subjects that came together, in their order, and what a worker has found out about all of them.

    That is kept here, flat, because the names are at hand for every decision: see processors/residents.py.
    """

    __slots__ = ("epoch", "held", "here", "hint", "quick", "seen_s", "shape", "since", "until")

    def __init__(self, names: Iterable[Name], shape: int = -1) -> None:
        super().__init__(names)
        self.shape = shape
        """The same number for the same dimensions in the same order, never used for others; -1: made for nobody."""
        self.hint: Any = None
        """What a replay has found out: processors/replay/world.py."""
        self.epoch = -1
        """Epoch of the residents in which the rest holds."""
        self.here = 0
        """Bit n is set: the n-th subject is resident."""
        self.quick: Any = None
        """The plans of which it is proved that a decision from `since` until before `until` (ms) changes nothing."""
        self.since = self.until = 0
        self.held: Any = None
        """A resident whose block is part of the proof: it must be looked at."""
        self.seen_s = 0.0
        """When the breaker counted the one of the others that it counted first."""


class Canonicaliser:
    """Turns (dimension, value) into canonical text. One per process: it remembers what it has seen, bounded.

    Args:
        ipv6_prefix: IPv6 addresses count and block by this prefix (64; 56 and 128 are possible).
        hashed: dimensions whose values arrive as an HMAC already (publishers applied it).
    """

    def __init__(self, ipv6_prefix: int = 64, hashed: Iterable[str] = ()) -> None:
        self.ipv6_prefix = ipv6_prefix
        self.hashed = frozenset(hashed)
        self.known: dict[str, dict[str, Name]] = {}
        """dimension -> value -> its name: what was made before, for loops that cannot afford a call."""
        self.groups: dict[bytes, Names] = {}
        """JSON of the subjects, as our own publishers write it -> names: what came together lately."""
        self._shapes: dict[tuple[str, ...], int] = {}
        self._shaped = 0
        self._room, self._group_room = MAX_CACHED, MAX_GROUPS

    def subject(self, dimension: str, value: str) -> str:
        """Canonical text of one subject, e.g. ``ip:203.0.113.7``, ``user:10086``, ``ip:2001:db8::/64``.

        Raises:
            BadEvent: the dimension's name, or the value, is not allowed (empty, over 128 bytes, control characters,
                not an address).
        """
        return self.name(dimension, value).text

    def text(self, dimension: str, value: str) -> str:
        """What `subject` returns, of one that nobody will ask for again: it is not remembered; raises as `subject`."""
        return self._make(dimension, value)

    def name(self, dimension: str, value: str) -> Name:
        """The name of one subject; raises as `subject` does."""
        try:
            return self.known[dimension][value]
        except KeyError:
            return self._learn(dimension, value)

    def names(self, subjects: Mapping[str, str]) -> Names:
        """The names of subjects (dimension -> value), in their order; raises as `subject` does. Not to be changed."""
        # The same user, device and address come together again and again: one look-up for all of them.
        try:
            return self.groups[_spell(subjects)]
        except (KeyError, UnicodeEncodeError):
            return self._learn_group(subjects)

    def _learn_group(self, subjects: Mapping[str, str]) -> Names:
        made = [self.name(dimension, value) for dimension, value in subjects.items()]
        if self._group_room <= 0:
            self.groups.clear()
            self._shapes.clear()
            self._group_room = MAX_GROUPS
        self._group_room -= 1
        dimensions = tuple(subjects)
        shape = self._shapes.get(dimensions)
        if shape is None:
            self._shaped += 1
            shape = self._shapes[dimensions] = self._shaped
        names = self.groups[_spell(subjects)] = Names(made, shape)
        return names

    def _learn(self, dimension: str, value: str) -> Name:
        name = Name(self._make(dimension, value))
        if self._room <= 0:
            self.known.clear()
            self.groups.clear()
            self._room, self._group_room = MAX_CACHED, MAX_GROUPS
        self._room -= 1
        self.known.setdefault(dimension, {})[value] = name
        return name

    def combination(self, dimensions: str, values: Mapping[str, str]) -> str:
        """Canonical text of a combination: ``device+scenario`` over its values is ``device+scenario:d1+login``."""
        parts = [self.subject(name, values[name]).split(":", 1)[1] for name in dimensions.split("+")]
        return f"{dimensions}:{'+'.join(parts)}"

    def _make(self, dimension: str, value: str) -> str:
        if DIMENSION.fullmatch(dimension) is None:
            raise BadEvent("bad_dimension", f"dimension {dimension[:40]!r}: wanted lower-case letters, digits and _")
        if not value:
            raise BadEvent("empty_subject", f"subject {dimension!r} is empty")
        if len(value) > _SHORT and len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES:
            raise BadEvent("value_too_long", f"subject {dimension!r} is longer than {MAX_VALUE_BYTES} bytes")
        if not value.isprintable():
            raise BadEvent("control_characters", f"subject {dimension!r} has characters that cannot be printed")
        if dimension == "ip" and dimension not in self.hashed:
            return f"ip:{canonical_ip(value, self.ipv6_prefix)}"
        return f"{dimension}:{encode_value(value)}"


def encode_value(value: str) -> str:
    """Everything but ``A-Za-z0-9-._~`` becomes %XX of its UTF-8, so no value can forge a key."""
    if value.isalnum() and value.isascii():  # most are, and a pattern takes five times as long
        return value
    return value if _SAFE.fullmatch(value) else quote(value, safe="")


def decode_value(encoded: str) -> str:
    """The value behind its encoded form."""
    return unquote(encoded)


def canonical_ip(text: str, ipv6_prefix: int = 64) -> str:
    """An address as it counts: IPv4 dotted, IPv4-mapped as IPv4, IPv6 as its prefix in RFC 5952 form (``…/64``).

    Raises:
        BadEvent: not an IP address (zone ids and CIDR notation are not addresses either).
    """
    try:
        if ":" not in text:
            return socket.inet_ntop(socket.AF_INET, socket.inet_pton(socket.AF_INET, text))
        packed = socket.inet_pton(socket.AF_INET6, text)
    except OSError as error:
        if ":" in text and text.endswith(f"/{ipv6_prefix}") and text.count("/") == 1:
            return canonical_ip(text.partition("/")[0], ipv6_prefix)  # already canonical
        raise BadEvent("bad_ip", f"subject 'ip': got {text[:64]!r}, wanted an IPv4 or IPv6 address") from error
    if packed.startswith(_MAPPED_PREFIX):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    if ipv6_prefix == 128:  # noqa: PLR2004 - the whole address
        return f"{IPv6Address(packed)}/128"
    return str(IPv6Network((packed, ipv6_prefix), strict=False))


def parse_subject(text: str, canonicaliser: Canonicaliser | None = None) -> str:
    """Canonical text of a subject as a person types it: ``ip:::ffff:203.0.113.7`` is ``ip:203.0.113.7``.

    A value that is canonical already stays as it is (``user:a%40b``); anything else is encoded.

    Raises:
        BadEvent: no dimension, or a value that is not allowed.
    """
    canonicaliser = canonicaliser or Canonicaliser()
    dimension, colon, value = text.partition(":")
    if not colon or not dimension:
        raise BadEvent("bad_subject", f"got {text[:80]!r}, wanted dimension:value, for example ip:203.0.113.7")
    names = dimension.split("+")
    values = value.split("+")
    if len(names) > 1 and len(values) != len(names):
        raise BadEvent("bad_subject", f"got {text[:80]!r}, wanted {len(names)} values joined with +")
    if len(names) == 1:
        values = [value]
    pairs = {name: decode_value(part) if name != "ip" else part for name, part in zip(names, values, strict=True)}
    if len(names) == 1:
        return canonicaliser.text(dimension, pairs[dimension])
    return canonicaliser.combination(dimension, pairs)


def hash_value(key: bytes, dimension: str, value: str, ipv6_prefix: int = 64) -> str:
    """HMAC form of a value, for those who must not put personal data on the wire.

    base64url without padding of the first 16 bytes of HMAC-SHA256(key, dimension ‖ 0x00 ‖ normalised value); an
    address is normalised first. CIDR rules and prefixes don't apply to hashed addresses, and a new key forgets all.
    """
    normal = canonical_ip(value, ipv6_prefix) if dimension == "ip" else value
    digest = hmac.new(key, dimension.encode() + b"\x00" + normal.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest[:16]).rstrip(b"=").decode()
