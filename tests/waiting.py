"""Waiting in tests: for a condition, with a deadline; never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
POLL_S = 0.01


async def wait_until(condition: Callable[[], T | Awaitable[T]], deadline_s: float = 10.0, what: str = "") -> T:
    """The first true value of `condition` (plain or async); fails after `deadline_s` seconds, saying the last value."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(_sentence(condition, deadline_s, what, value))
        await asyncio.sleep(POLL_S)


def block_until(condition: Callable[[], T], deadline_s: float = 10.0, what: str = "") -> T:
    """`wait_until` for tests without an event loop: blocks the thread."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(_sentence(condition, deadline_s, what, value))
        time.sleep(POLL_S)


def _sentence(condition: Callable[[], object], deadline_s: float, what: str, value: object) -> str:
    return f"Not within {deadline_s:g} s: {what or getattr(condition, '__name__', condition)}; last value {value!r}."
