"""Which device fingerprints may become keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.http.fingerprints import Checked, Fingerprints


@pytest.mark.parametrize(
    "text",
    [
        "3f9c1d2e-0001-4bbb-8ccc-0123456789ab",
        "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3",
        "q1W2/e3R+4t==",
        "x" * 7 + "y" * 121,
    ],
)
def test_fingerprints_that_are_used(text: str) -> None:
    """UUIDs, hashes and base64, from 8 to 128 characters, with white space around them removed."""
    assert Fingerprints().check(f" {text}\t") == Checked(text, None)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("", "empty"),
        ("  \t", "empty"),
        ("1234567", "too_short"),
        ("x" * 64 + "y" * 65, "too_long"),
        ("x" * 10_240, "too_long"),
        ("12345678 9", "characters"),
        ("12345678\n", "characters"),
        ("1234{5678}", "characters"),
        ("1234%005678", "characters"),
        ("gerät-12345", "characters"),
        ("\uff11\uff12345678", "characters"),
        ("00000000-0000-0000-0000-000000000000", "everybodys"),
        ("ffffffffffffffff", "everybodys"),
        ("02:00:00:00:00:00", "everybodys"),
        ("9774D56D682E549C", "everybodys"),
        ("undefined", "everybodys"),
        ("d41d8cd98f00b204e9800998ecf8427e", "everybodys"),
        ("--------", "everybodys"),
    ],
)
def test_fingerprints_that_are_refused(text: str, refusal: str) -> None:
    """Each has a reason; none is cut or cleaned into one that could be another device's."""
    assert Fingerprints().check(text) == Checked(None, refusal)


@given(st.text())
def test_what_is_used_is_a_key_as_it_is(text: str) -> None:
    """Any text is used unchanged but for white space around it, or refused; what is used is a valid subject."""
    value, refusal = Fingerprints().check(text)
    assert (value is None) != (refusal is None)
    if value is not None:
        assert value == text.strip(" \t")
        assert Canonicaliser().subject("device", value)


@pytest.mark.parametrize(("least", "most"), [(0, 8), (9, 8), (1, 129)])
def test_lengths_that_no_value_has_are_refused(least: int, most: int) -> None:
    """Told at the start."""
    with pytest.raises(ConfigurationError, match="fingerprints"):
        Fingerprints(least, most)
