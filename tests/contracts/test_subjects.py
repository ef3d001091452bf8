"""Canonical subjects: one text for one subject, whoever writes it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.subjects import (
    Canonicaliser,
    canonical_ip,
    decode_value,
    encode_value,
    hash_value,
    most_specific,
    parse_subject,
    value_hash,
)
from penaltybox.contracts.topics import record_key
from tests.contracts.subject_vectors import HASHES, KEYS, PREFIXES, SUBJECTS, page

DOCS = Path(__file__).parent.parent.parent / "docs" / "subjects.md"


@pytest.mark.parametrize(("dimension", "value", "canonical"), SUBJECTS)
def test_vectors_of_subjects(dimension: str, value: str, canonical: str) -> None:
    """Every subject of the documented table has its documented canonical form."""
    assert Canonicaliser().subject(dimension, value) == canonical


@pytest.mark.parametrize(("value", "prefix", "canonical"), PREFIXES)
def test_vectors_of_prefixes(value: str, prefix: int, canonical: str) -> None:
    """Other IPv6 prefixes give the documented forms."""
    assert canonical_ip(value, prefix) == canonical


@pytest.mark.parametrize(("subjects", "key"), KEYS)
def test_vectors_of_record_keys(subjects: dict[str, str], key: str) -> None:
    """A record is keyed by its most specific subject."""
    assert record_key(subjects, Canonicaliser()).decode() == key


@pytest.mark.parametrize(("dimension", "value", "hashed"), HASHES)
def test_vectors_of_hashes(dimension: str, value: str, hashed: str) -> None:
    """The HMAC form of a value is the documented one; an address is normalised first."""
    assert hash_value(b"documented key", dimension, value) == hashed


def test_page_is_current() -> None:
    """docs/subjects.md shows the vectors that these tests check (python -m tests.contracts.subject_vectors)."""
    assert DOCS.read_text(encoding="utf-8") == page()


@given(st.text(min_size=1, max_size=60))
def test_no_value_forges_a_key(value: str) -> None:
    """Whatever is in a value, nothing in the canonical text can end a hash tag, add a part or break a line."""
    try:
        canonical = Canonicaliser().subject("user", value)
    except BadEvent:
        return
    assert re.fullmatch(r"user:[A-Za-z0-9\-._~%]+", canonical)
    assert unquote(canonical.removeprefix("user:")) == value
    assert decode_value(encode_value(value)) == value


@given(st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=2, unique=True))
def test_different_values_are_different_subjects(values: list[str]) -> None:
    """No two values share a canonical text: nobody is punished for another."""
    first, second = (encode_value(value) for value in values)
    assert first != second


@given(st.ip_addresses(v=6))
def test_a_canonical_address_is_canonical(address: object) -> None:
    """Canonicalising twice changes nothing, and typing the canonical form finds the same subject."""
    once = canonical_ip(str(address))
    assert canonical_ip(once) == once
    assert parse_subject(f"ip:{once}") == f"ip:{once}"


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_the_ipv4_address(address: object) -> None:
    """`::ffff:a.b.c.d` is a.b.c.d in every spelling."""
    assert canonical_ip(f"::ffff:{address}") == canonical_ip(str(address)) == str(address)


@given(st.text(min_size=1, max_size=30))
def test_a_subject_as_typed_is_the_subject_as_stored(value: str) -> None:
    """A canonical text typed back by a person is the same subject; so is a combination."""
    canonicaliser = Canonicaliser()
    try:
        single = canonicaliser.subject("user", value)
    except BadEvent:
        return
    assert parse_subject(single) == single
    both = canonicaliser.combination("user+scenario", {"user": value, "scenario": "login"})
    assert parse_subject(both) == both


@pytest.mark.parametrize("text", ["", "user", "user:", ":x", "User:x", "ip:nobody", "user+device:a", "ip:1.2.3.4/33"])
def test_what_is_no_subject_is_refused(text: str) -> None:
    """A typing mistake on the command line is told, not stored."""
    with pytest.raises(BadEvent):
        parse_subject(text)


def test_a_hashed_address_is_no_address() -> None:
    """With `ip` hashed by the publisher, its value is taken as it comes."""
    assert Canonicaliser(hashed=["ip"]).subject("ip", "3q2-7w") == "ip:3q2-7w"
    with pytest.raises(BadEvent):
        Canonicaliser().subject("ip", "3q2-7w")


def test_specificity() -> None:
    """api_key, user, device, others by name, ip; a combination after its most specific part."""
    order = ["api_key", "user", "user+ip", "device", "device+scenario", "card", "login_name", "ip", "ip+route"]
    assert [most_specific(order[start:]) for start in range(len(order))] == order


def test_the_memory_of_a_canonicaliser_is_bounded() -> None:
    """A flood of new values does not grow it for ever."""
    canonicaliser = Canonicaliser()
    for number in range(200_001):
        canonicaliser.subject("user", str(number))
    assert sum(map(len, canonicaliser.known.values())) <= 200_000


def test_value_hashes_are_stable() -> None:
    """The hash that distinct sets hold is the same in every process and release."""
    assert value_hash("10086") == 9213485910076197828
