"""`grant` against a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from tests.cli.desks import WHY

if TYPE_CHECKING:
    from tests.cli.desks import Desk


def trust(desk: Desk) -> Any:
    """The value of user:u1's key that limiters read."""
    return desk.key("user:u1", "trust")


def test_a_grant_is_in_the_trust_key_at_once(desk: Desk) -> None:
    """Points raise the quota that limiters read, more points raise it further, and points taken away lower it."""
    assert trust(desk) is None
    told = desk.json("grant", "user:u1", "--points", "4", *WHY)
    assert told["penalties"][0]["action"] == "note"
    assert trust(desk) == {"multiplier": 1.5, "established": True}
    assert "user:u1 has +6 points" in desk.run("grant", "user:u1", "--points", "6", *WHY)
    assert trust(desk) == {"multiplier": 2, "established": True}
    desk.run("grant", "user:u1", "--points", "-10", *WHY)
    assert trust(desk) is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("ip:203.0.113.7", "--points", "4", *WHY), "wanted a user, device or api_key"),
        (("login_name:x", "--points", "4", *WHY), "wanted a user, device or api_key"),
        (("user:u1", "--points", "0", *WHY), "--points"),
        (("user:u1", "--points", "4", "--reason", " ", "--actor", "bob"), "--reason"),
    ],
)
def test_what_cannot_be_granted(desk: Desk, arguments: tuple[str, ...], sentence: str) -> None:
    """Each is a sentence, and nothing is written."""
    with pytest.raises(ConfigurationError, match=sentence):
        desk.run("grant", *arguments)
    assert trust(desk) is None


def test_a_redis_without_workers_is_told(bare_desk: Desk) -> None:
    """On a Redis that no worker has used nothing is written, because the wrong server is the likelier reason."""
    with pytest.raises(StoreUnavailable, match="never seen a worker"):
        bare_desk.run("grant", "user:u1", "--points", "4", *WHY)
