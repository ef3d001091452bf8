"""How a subject becomes a Redis key, and a key a subject again. `docs/keys.md` describes every key."""

from __future__ import annotations

import re
from binascii import crc_hqx
from functools import cache
from typing import TYPE_CHECKING

from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError
from penaltybox.contracts.ids import stable_id
from penaltybox.contracts.subjects import encode_value

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOTS = 16384
LISTS_CHANGED = "#lists"
"""Message on the events channel: allowlist or banned ranges have changed. No subject looks like it."""
POLICY_CHANGED = "#policy"
"""Message on the events channel: another policy is in force."""
MAX_NAME_BYTES = 128
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def slot_of(tag: str) -> int:
    """The cluster slot of a hash tag: CRC16/XMODEM modulo 16384 (Redis cluster specification)."""
    return crc_hqx(tag.encode(), 0) % SLOTS


@cache
def slot_tags() -> tuple[str, ...]:
    """For each slot the smallest decimal number that hashes to it; with these every slot can have keys of its own.

    No subject can be one of them, because a canonical subject has a colon.
    """
    tags: dict[int, str] = {}
    number = 0
    while len(tags) < SLOTS:
        tag = str(number)
        tags.setdefault(slot_of(tag), tag)
        number += 1
    return tuple(tags[slot] for slot in range(SLOTS))


def require_canonical(subjects: Sequence[str]) -> None:
    """Refuse a subject that would be another one's key.

    Raises:
        PenaltyboxError: an empty subject, or one with a brace in it.
    """
    joined = "".join(subjects)
    if "{" in joined or "}" in joined or not all(subjects):
        wrong = next(subject for subject in subjects if not subject or "{" in subject or "}" in subject)
        raise PenaltyboxError(
            f"Subject {wrong!r} cannot be a key: wanted canonical dimension:value with braces percent-encoded; "
            "build it with penaltybox.contracts.subjects."
        )


def _short(key: str) -> str:
    """A caller's key as part of ours: encoded, and a hash of it when it is long, or no text (half a surrogate pair)."""
    try:
        encoded = encode_value(key)
    except UnicodeEncodeError:
        return stable_id("key", key.encode("utf-8", "surrogatepass").hex())
    return encoded if len(encoded) <= MAX_NAME_BYTES else stable_id("key", key)


class Keyspace:
    """The names of all keys under one prefix.

    Args:
        prefix: letters, digits and ``_.:-``; ``pbx`` by default.

    Raises:
        ConfigurationError: a prefix that would change the hash tag or match other keys in a SCAN.
    """

    __slots__ = (
        "_mark",
        "allow",
        "cidr",
        "events",
        "generation",
        "pause",
        "pending",
        "policy",
        "policy_history",
        "prefix",
        "telling",
        "untold",
    )

    def __init__(self, prefix: str = "pbx") -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(
                f"Redis key prefix {prefix!r}: wanted 1 to 64 letters, digits, or one of _ . : -; change redis_prefix."
            )
        self.prefix = prefix
        self.generation = f"{prefix}:generation"
        self.pending = f"{prefix}:pending"
        self.pause = f"{prefix}:pause"
        self.events = f"{prefix}:events"
        self.allow = f"{prefix}:allow"
        self.cidr = f"{prefix}:cidr"
        self.policy = f"{prefix}:policy"
        self.policy_history = f"{prefix}:policy:history"
        self.untold = f"{prefix}:untold"
        self.telling = f"{prefix}:telling"
        self._mark = re.compile(re.escape(prefix) + r":\{([^{}]+)\}:([a-z]+)")

    def subject_keys(self, subjects: Sequence[str], name: str = "state") -> list[str]:
        """One key per subject; all keys of a subject share its hash tag, so they sit in one slot.

        Raises:
            PenaltyboxError: a subject that isn't canonical and could forge another one's key.
        """
        require_canonical(subjects)
        stem, tail = f"{self.prefix}:{{", f"}}:{name}"
        return [f"{stem}{subject}{tail}" for subject in subjects]

    def stem(self, subject: str) -> str:
        """What all keys of a canonical subject start with; ``:block`` and the like follow."""
        return f"{self.prefix}:{{{subject}}}"

    @staticmethod
    def counter_tail(scenario: str, limit_name: str) -> str:
        """What follows a subject's stem in the key of a limit's counter."""
        return f":l:{encode_value(scenario)}:{encode_value(limit_name)}"

    @staticmethod
    def record_tail(key: str) -> str:
        """What follows a subject's stem in a cluster's record of what a request took from it."""
        return f":r:{_short(key)}"

    def refund(self, idempotency_key: str) -> str:
        """The key under which a refund finds what the request of this idempotency key took."""
        return f"{self.prefix}:{{r:{_short(idempotency_key)}}}:refund"

    def policy_version(self, version: str) -> str:
        """The key that holds the text of a policy version."""
        return f"{self.prefix}:policy:{encode_value(version)}"

    def slot_key(self, slot: int, name: str) -> str:
        """The key called `name` (``generation`` or ``pending``) that lives in this cluster slot."""
        return f"{self.prefix}:{{{slot_tags()[slot]}}}:{name}"

    def subject_and_name(self, key: bytes) -> tuple[str, str] | None:
        """The subject and the key's name, e.g. ``("ip:203.0.113.7", "block")``; None if the key is none of ours."""
        found = self._mark.fullmatch(key.decode("utf-8", "replace"))
        return (found[1], found[2]) if found and ":" in found[1] else None
