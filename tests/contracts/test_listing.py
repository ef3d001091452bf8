"""What people type where a list wants a subject."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts import listing
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.listing import as_address, as_range, subject_text

ODD = [
    "ip:1.2.3.4",
    "ip:01.2.3.4",
    "ip:999.1.1.1",
    "fe80:1",
    "ab:cd",
    "user:10086",
    "ip:::1",
    "::1",
    "1.2.3.4",
    "user:a/8",
    "10.0.0.0/8",
    "ip:10.0.0.0/32",
    "login_name:x",
    "user+device:a+b",
    "user:",
    ":x",
    "a",
    "user:ü",
    "dead:beef::1",
    "user:fe80%3A%3A1",
]


def slowly(text: str) -> str | None:
    """What the look at everything that it may be says."""
    network = as_range(text)
    if network is not None:
        return f"ip:{network.network_address}"
    address = as_address(text)
    if address is not None:
        return address
    return text if ":" in text else None


@given(st.one_of(st.sampled_from(ODD), st.from_regex(r"[a-z0-9_]{1,6}:[A-Za-z0-9.~_:/-]{0,9}", fullmatch=True)))
def test_the_short_cut_takes_nothing_for_what_it_is_not(text: str) -> None:
    """What looks like a subject at once is what a closer look makes of it."""
    if listing._SUBJECT.fullmatch(text):
        assert subject_text(text) == slowly(text) == text


@pytest.mark.parametrize("text", ["a", "", "example.org"])
def test_what_is_no_subject(text: str) -> None:
    """Names of hosts are not looked up."""
    with pytest.raises(ConfigurationError, match="wanted dimension:value"):
        subject_text(text)
