"""Identifiers that other programs, and other releases, must find again."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.ids import stable_id, ulid

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@given(st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 80) - 1))
def test_a_ulid_is_its_number_in_base_32(now_ms: int, entropy: int) -> None:
    """26 digits of five bits, the highest first, so that they sort by time."""
    text, value = ulid(now_ms, entropy), 0
    for digit in text:
        value = value << 5 | ALPHABET.index(digit)
    assert (len(text), value) == (26, now_ms << 80 | entropy)


@given(st.lists(st.text()))
def test_a_stable_id_depends_on_its_parts(parts: list[str]) -> None:
    """Each with its length before it: cutting the same text elsewhere gives another id."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part.encode()).to_bytes(4, "big") + part.encode())
    assert stable_id(*parts) == digest.hexdigest()
    assert stable_id("ab", "c") != stable_id("a", "bc")
