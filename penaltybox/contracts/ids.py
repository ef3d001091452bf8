"""Identifiers: ULIDs for new events, hashes for what must come out the same twice."""

from __future__ import annotations

import hashlib
import secrets

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]
_SHIFTS = range(120, -10, -10)


def ulid(now_ms: int, entropy: int | None = None) -> str:
    """A ULID: 48 bits of time and 80 random bits in Crockford's base 32, 26 characters.

    Args:
        now_ms: milliseconds since the epoch.
        entropy: 80 bits, for tests and simulations that must repeat; drawn if absent.
    """
    value = (now_ms << 80) | (secrets.randbits(80) if entropy is None else entropy & ((1 << 80) - 1))
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in _SHIFTS])


def stable_id(*parts: str) -> str:
    """32 hex digits that depend on the parts alone (and on where they are cut)."""
    data = [part.encode() for part in parts]
    cut = b"".join([len(one).to_bytes(4, "big") + one for one in data])
    return hashlib.blake2b(cut, digest_size=16).hexdigest()


def penalty_id(subject: str, rule: str, trigger_id: str, to: str) -> str:
    """The id of a penalty: the same step made twice has the same id."""
    return stable_id("penalty", subject, rule, trigger_id, to)
