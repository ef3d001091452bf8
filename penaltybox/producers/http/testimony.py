"""What an application itself says about a request, in the form in which it counts: subjects and cost.

Its word is never missing because of its form, or whoever has a long user name would have no limits. Middlewares,
decorator and decision service share this, so a subject is the same one wherever an application names it.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Final

from penaltybox.contracts.events import MAX_SUBJECTS
from penaltybox.contracts.subjects import DIMENSION, MAX_VALUE_BYTES
from penaltybox.producers.http.client_address import read_address

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MAX_COST: Final = 1 << 31
SECRETS: Final = frozenset({"api_key"})
"""Dimensions whose values are secrets, unless somebody says otherwise."""
FIELDS_OF_DECISIONS: Final = frozenset({"scenario", "route"})
_DIGEST: Final = "sha256-"


def said_subjects(
    said: Mapping[str, object], found: Mapping[str, str], ignored: list[str], secrets: Collection[str] = SECRETS
) -> dict[str, str]:
    """Subjects that are known already, and what the application says, which wins.

    Args:
        said: dimension -> value of any type; None, False and empty texts say nothing.
        found: what is known already.
        ignored: gets what could not be used, ``dimension:reason``.
        secrets: dimensions whose values `secret_name` stands for.
    """
    found = dict(found)
    for dimension, word in said.items():
        value = "" if word is None or word is False else str(word)
        address = read_address(value) if dimension == "ip" else None
        if not DIMENSION.fullmatch(dimension) or dimension in FIELDS_OF_DECISIONS:
            ignored.append("subjects:dimension")
        elif not value or (dimension == "ip" and address is None):
            ignored.append(f"{dimension}:{'characters' if value else 'empty'}")
        elif len(found) >= MAX_SUBJECTS and dimension not in found:
            ignored.append("subjects:too_many")
        elif dimension in secrets:
            found[dimension] = secret_name(value)
        else:
            found[dimension] = str(address) if address is not None else _fitting(value)
    return found


def secret_name(secret: str) -> str:
    """What stands for a secret, such as an API key: the first 32 hex digits of its SHA-256 (of its UTF-8)."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def whole_cost(cost: object) -> int:
    """A cost as limits count it: whole, a fraction rounded up so that nothing is free, from 0 to `MAX_COST`.

    Raises:
        ValueError: it is no number, or none that can be counted (infinite, not a number).
    """
    try:
        whole = int(cost) if isinstance(cost, str) else math.ceil(cost)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"cost: got {cost!r}, wanted a number") from error
    return min(MAX_COST, max(0, whole))


def _fitting(value: str) -> str:
    """A value that can be a subject: itself, or a digest of it, which no other value can pretend to be."""
    data = value.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_VALUE_BYTES and value.isprintable() and not value.startswith(_DIGEST):
        return value
    return _DIGEST + hashlib.sha256(data).hexdigest()
