"""Quotas in header fields: the IETF draft's structured fields, or one of the triples that came before them.

Draft: draft-ietf-httpapi-ratelimit-headers-11 (23 May 2026). A limit is a List item named by a String:
``RateLimit-Policy: "user:daily";q=3;w=86400`` and ``RateLimit: "user:daily";r=2;t=3600``.
"""

from __future__ import annotations

import base64
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
    limits = [limit for limit in verdict.limits if not limit.dry_run]
    if any(limit.answer == "shadow" for limit in limits):
        return []
    return [
        _told(limit, verdict, late, retry_after_s)._replace(name=public_name(limit.name, hidden=hidden))
        for limit in limits
        if untold.isdisjoint(limit.name.partition(":")[0].split("+"))
    ]


def _told(limit: LimitState, verdict: Verdict, late: Late, retry_after_s: int | None) -> Told:
    violated = limit.wait_ms != 0 and not verdict.allowed
    endless = violated and limit.wait_ms < 0
    reset_s = whole_seconds(limit.wait_ms if violated and not endless else limit.reset_ms)
    if violated or limit.remaining <= 0:
        reset_s = max(1, reset_s)
        reset_s = min(MAX_SECONDS, reset_s + late(reset_s))
    if violated and not endless and retry_after_s is not None:
        reset_s = min(reset_s, retry_after_s)  # the draft: Retry-After is not before the window's end
    return Told(
        name=limit.name,
        limit=min(_MAX_INTEGER, max(0, limit.limit)),
        window_s=max(1, whole_seconds(limit.window_ms)),
        remaining=min(_MAX_INTEGER, max(0, limit.remaining)),
        reset_s=reset_s,
        violated=violated,
        endless=endless,
    )


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
        names = [_string(one.name) for one in told]
        return [
            (
                "RateLimit-Policy",
                ", ".join(f"{name};q={one.limit};w={one.window_s}{key}" for name, one in zip(names, told, strict=True)),
            ),
            ("RateLimit", ", ".join(f"{name}{_state(one)}{key}" for name, one in zip(names, told, strict=True))),
        ]
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


def _string(text: str) -> str:
    """A String of RFC 9651: printable ASCII in quotes, which with the backslash are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
