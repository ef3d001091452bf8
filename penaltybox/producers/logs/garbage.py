"""Garbage collection while lines are read."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_YOUNG: Final = 50_000


@contextmanager
def collected_less_often() -> Iterator[None]:
    """Collects after many new objects only: reading makes some for each line, and hardly any are in cycles."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
