"""Subjects as people type them at a command."""

from __future__ import annotations

import pytest

from penaltybox.cli.console import typed_subject
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import Canonicaliser, hash_value

KEY = "documented key"
PLAIN = Settings()
HASHING = Settings(hashed_dimensions=("user", "ip"), hash_key=KEY)


def hashed(dimension: str, value: str) -> str:
    return hash_value(KEY.encode(), dimension, value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("user:10086", f"user:{hashed('user', '10086')}"),
        ("user:a@b", f"user:{hashed('user', 'a@b')}"),
        ("user:a%40b", f"user:{hashed('user', 'a@b')}"),
        ("ip:::ffff:203.0.113.7", f"ip:{hashed('ip', '203.0.113.7')}"),
        ("ip:2001:db8::1", f"ip:{hashed('ip', '2001:db8::2')}"),
        (f"user:{hashed('user', '10086')}", f"user:{hashed('user', '10086')}"),
        ("device:d1", "device:d1"),
        ("device+user:d1+10086", f"device+user:d1+{hashed('user', '10086')}"),
    ],
)
def test_plain_values_of_hashed_dimensions_are_hashed(text: str, wanted: str) -> None:
    """Else `unban user:10086` frees nobody and says that it did, and `explain` knows of nothing."""
    assert typed_subject(text, HASHING) == wanted
    dimension, value = wanted.split(":")
    if "+" not in dimension:  # what the worker makes of a published event
        assert Canonicaliser(hashed=("user", "ip")).subject(dimension, value) == wanted


def test_without_hashing_nothing_changes() -> None:
    """A subject is its canonical text."""
    assert typed_subject("ip:2001:db8::1", PLAIN) == "ip:2001:db8::/64"
    assert typed_subject(f"user:{hashed('user', '1')}", PLAIN) == f"user:{hashed('user', '1')}"
    with pytest.raises(BadEvent):
        typed_subject("ip:nowhere", HASHING)
