"""Quotas in header fields: the IETF draft's structured fields, or one of the triples that came before them.

Draft: draft-ietf-httpapi-ratelimit-headers-11 (23 May 2026). A limit is a List item named by a String:
``RateLimit-Policy: "user:daily";q=3;w=86400`` and ``RateLimit: "user:daily";r=2;t=3600``.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from penaltybox.contracts.ids import stable_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penaltybox.producers.verdict import LimitState, Verdict

HeaderMode = Literal["structured", "triple", "x_triple", "none"]
Fields = list[tuple[str, str]]
Late: TypeAlias = "Callable[[int], int]"
"""Seconds to wait -> seconds to add."""
MAX_SECONDS: Final = (1 << 31) - 1
"""Longer waits are told as this one: many clients keep seconds in 32 bits."""
_MAX_INTEGER: Final = 999_999_999_999_999


class Told(NamedTuple):
    """One limit as a client may see it. Times are whole seconds."""

    name: str
    limit: int
    window_s: int
    remaining: int
    reset_s: int
    violated: bool
    endless: bool
    """It is violated, and waiting does not help: the request costs more than the limit ever allows."""


def whole_seconds(duration_ms: int) -> int:
    """Rounded up, so that whoever waits for it does not come too early; from 0 to `MAX_SECONDS`."""
    return min(MAX_SECONDS, max(0, -(-duration_ms // 1000)))


def public_name(name: str, *, hidden: bool) -> str:
    """A limit's name as clients see it: printable ASCII. Hidden, it is always the same eight digits instead."""
    if hidden:
        return stable_id("limit", name)[:8]
    return name if name.isascii() and name.isprintable() else quote(name, safe=":+")


def told_limits(
    verdict: Verdict, *, hidden: bool, untold: frozenset[str], late: Late, retry_after_s: int | None
) -> list[Told]:
    """The limits of a verdict that its client may know about, in the policy's order.

    Not told are dry runs, limits on the `untold` dimensions, and all of them where one would answer with a false
    success: who is shown a quota that is used up, and served all the same, knows that the success is false.

    Args:
        verdict: the answer about the request.
        hidden: names are hidden.
        untold: dimensions that can be somebody else's.
        late: by how many seconds the wait for a used-up quota is lengthened, so that not all clients come at once.
        retry_after_s: what the client is told to wait, if anything.
    """
    told = []
    for limit in verdict.limits:
        if limit.dry_run:
            continue
        if limit.answer == "shadow":
            return []
        name, dimensions, quota, window_s = _constant(limit.name, limit.limit, limit.window_ms, hidden)
        if untold.isdisjoint(dimensions):
            reset_s = _reset_s(limit, verdict, late, retry_after_s)
            violated = limit.wait_ms != 0 and not verdict.allowed
            remaining = limit.remaining if 0 <= limit.remaining <= _MAX_INTEGER else 0
            told.append(Told(name, quota, window_s, remaining, reset_s, violated, violated and limit.wait_ms < 0))
    return told


@lru_cache(maxsize=2048)
def _constant(name: str, limit: int, window_ms: int, hidden: bool) -> tuple[str, frozenset[str], int, int]:  # noqa: FBT001 - a cache's key
    """What is the same with every request: public name, dimensions, quota, window in seconds."""
    dimensions = frozenset(name.partition(":")[0].split("+"))
    quota = min(_MAX_INTEGER, max(0, limit))
    return public_name(name, hidden=hidden), dimensions, quota, max(1, whole_seconds(window_ms))


def _reset_s(limit: LimitState, verdict: Verdict, late: Late, retry_after_s: int | None) -> int:
    """Until the request would fit, if it did not; else until the whole quota is back."""
    violated = limit.wait_ms != 0 and not verdict.allowed
    if not violated and limit.remaining > 0:
        return whole_seconds(limit.reset_ms)
    reset_s = max(1, whole_seconds(limit.wait_ms if violated and limit.wait_ms > 0 else limit.reset_ms))
    reset_s = min(MAX_SECONDS, reset_s + late(reset_s))
    if violated and limit.wait_ms > 0 and retry_after_s is not None:
        return min(reset_s, retry_after_s)  # the draft: Retry-After is not before the window's end
    return reset_s


def quota_fields(mode: HeaderMode, told: Sequence[Told], *, epoch_s: int | None, partition: bytes | None) -> Fields:
    """The header fields about the limits; none when there is nothing to tell.

    Args:
        mode: which fields.
        told: the limits. The triples have room for one: the one that refuses longest, else the one with least left.
        epoch_s: the time now, if ``X-RateLimit-Reset`` shall be a time and not a number of seconds.
        partition: what tells this client's quotas from another's (the draft's `pk`), if it shall be told.
    """
    if not told or mode == "none":
        return []
    if mode == "structured":
        key = "" if partition is None else f";pk=:{base64.b64encode(partition).decode()}:"
        policies = ", ".join([f"{_string(one.name)};q={one.limit};w={one.window_s}{key}" for one in told])
        states = ", ".join([f"{_string(one.name)}{_state(one)}{key}" for one in told])
        return [("RateLimit-Policy", policies), ("RateLimit", states)]
    one = tightest(told)
    stem, reset = "RateLimit", one.reset_s
    if mode == "x_triple":
        stem, reset = "X-RateLimit", one.reset_s + (epoch_s or 0)
    return [(f"{stem}-Limit", str(one.limit)), (f"{stem}-Remaining", str(one.remaining)), (f"{stem}-Reset", str(reset))]


def tightest(told: Sequence[Told]) -> Told:
    """The limit that says most about what the client can do next."""
    violated = [one for one in told if one.violated]
    if violated:
        return max(violated, key=lambda one: (one.endless, one.reset_s))
    return min(told, key=lambda one: (one.remaining, -one.window_s))


def _state(one: Told) -> str:
    """``;r=2;t=30``; no `t` when the whole quota is there, since a window of no time means nothing."""
    return f";r={one.remaining};t={one.reset_s}" if one.reset_s else f";r={one.remaining}"


@lru_cache(maxsize=1024)
def _string(text: str) -> str:
    """A String of RFC 9651: printable ASCII in quotes, which with the backslash are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
