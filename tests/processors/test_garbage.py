"""Cyclic garbage is collected seldom, and never lost."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from penaltybox.processors.garbage import LONGEST_S, MOST, Collecting

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Loop:
    """Holds itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collector_off() -> Iterator[None]:
    """As in a worker."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector_off")
def test_a_cycle_lasts_until_it_is_time() -> None:
    """What holds itself stays for less than an hour, and is gone after it."""
    held = weakref.ref(_Loop())
    collecting = Collecting(100.0)
    assert not collecting.look(100.0 + LONGEST_S - 1, more=MOST - 1)
    assert held() is not None
    assert collecting.look(100.0 + LONGEST_S, more=0)
    assert held() is None


@pytest.mark.usefixtures("collector_off")
def test_many_new_objects_are_looked_at_once() -> None:
    """Growth has everything looked through before the hour; growth that was no garbage must double to do so again."""
    collecting = Collecting(0.0)
    assert collecting.look(60.0, more=MOST)
    assert not collecting.look(120.0, more=2 * MOST - 1)
    assert collecting.look(180.0, more=2 * MOST)
    assert not collecting.look(180.0 + LONGEST_S - 1, more=4 * MOST - 1)
    assert collecting.look(180.0 + LONGEST_S, more=0)
