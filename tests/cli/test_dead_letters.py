"""Which dead letters a person means."""

from __future__ import annotations

import pytest

from penaltybox.cli.dead_letters import check_places
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import DeadLetter
from penaltybox.processors.dead_letters import Placed


def test_a_place_without_a_dead_letter_is_told() -> None:
    """A typing error in `--at` is no success that sent nothing."""
    letter = DeadLetter(ts=1, reason="bad_ip", detail="d", topic="t", partition=0, offset=7, raw=b"x")
    found = [Placed(0, 1, letter), Placed(2, 5, letter)]
    check_places([], found)
    check_places([(2, 5), (0, 1)], found)
    with pytest.raises(ConfigurationError, match=r"no such dead letter at 0:99, 5:2;.*Nothing was sent"):
        check_places([(0, 99), (2, 5), (5, 2)], found)
