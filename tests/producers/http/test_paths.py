"""The path of a request as a server looks for its handler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.producers.http.paths import plain_path, target_path


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/login?next=/x", "/login"),
        ("/%6Cogin", "/login"),
        ("/a%2Flogin", "/a/login"),
        ("/%256Cogin", "/%6Cogin"),
        ("//login//", "/login"),
        ("/a/%2e%2e/login", "/login"),
        ("/../../login", "/login"),
        ("http://host/login#x", "/login"),
        ("http://host", "/"),
        ("/%ff%00", "/\ufffd\x00"),
        ("/..login/.x", "/..login/.x"),
        ("*", "*"),
        ("", ""),
    ],
)
def test_targets(target: str, path: str) -> None:
    """Decoded once, without host, query, dots and doubled slashes."""
    assert target_path(target) == path


@given(st.text(st.sampled_from("/.a%2e?#"), max_size=30))
def test_a_plain_path_is_plain(path: str) -> None:
    """A second pass changes nothing, and no dot segment is left."""
    plain = plain_path(f"/{path}")
    assert plain_path(plain) == plain
    assert plain.startswith("/")
    assert not {".", ".."} & set(plain.split("/"))
