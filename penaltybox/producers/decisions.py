"""What is published about a request, built from how its limits stand. The limiters in memory and on Redis share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.contracts.events import Decision
from penaltybox.contracts.ids import stable_id
from penaltybox.producers.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.events import Action, Reason
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.verdict import LimitState

NEVER: Final = -1
MAX_VIOLATED: Final = 16
_STATUS: Final[dict[Action, int]] = {"deny": 429, "challenge": 403}
_SEVERITY: Final = {"deny": 0, "challenge": 1, "shadow": 2}


def seconds(duration_ms: int) -> int:
    """Whole seconds, rounded up: a client that waits for them does not come too early."""
    return -(-duration_ms // 1000)


def bare(request: Request, source: str, action: Action, **more: Any) -> Decision:
    """A decision with nothing in it but the request, the action and what is given."""
    fields: dict[str, Any] = {"established": request.established, "status": request.status, "cost": request.cost}
    return Decision(
        v=1,
        id=request.id,
        ts=request.ts_ms,
        source=source,
        scenario=request.scenario,
        action=action,
        subjects=request.subjects,
        route=request.route,
        attrs=request.attrs,
        **(fields | more),
    )


def allowed(request: Request, source: str, states: Sequence[LimitState], *, established: bool | None) -> Decision:
    """Allowed; told is the limit in force of which least is left (of equals, the one with the longest window)."""
    told, least, longest_ms = None, 0, 0
    for state in states:
        remaining = state.remaining
        if (told is None or remaining < least or (remaining == least and state.window_ms > longest_ms)) and (
            not state.dry_run
        ):
            told, least, longest_ms = state, remaining, state.window_ms
    return Decision(
        v=1,
        id=request.id,
        ts=request.ts_ms,
        source=source,
        scenario=request.scenario,
        action="allow",
        subjects=request.subjects,
        established=established,
        route=request.route,
        status=request.status,
        limit=None if told is None else told.limit,
        window_s=None if told is None else seconds(told.window_ms),
        remaining=None if told is None else told.remaining,
        cost=request.cost,
        attrs=request.attrs,
    )


def binding(violated: Sequence[LimitState]) -> LimitState:
    """Of the limits that give the most severe answer, the one that lasts longest."""
    answer = min((state.answer for state in violated), key=_SEVERITY.__getitem__)
    return max((state for state in violated if state.answer == answer), key=_wait)


def refused(
    request: Request,
    source: str,
    violated: Sequence[LimitState],
    *,
    established: bool | None,
    enforced: bool,
) -> Decision:
    """The most severe answer of the violated limits; told is the binding one. Not enforced: a dry run's decision."""
    told = binding(violated)
    return Decision(
        v=1,
        id=request.id if enforced else stable_id("dry_run", request.id),
        ts=request.ts_ms,
        source=source,
        scenario=request.scenario,
        action=told.answer,
        reason="over_limit",
        violated=tuple([state.name for state in violated[:MAX_VIOLATED]]),
        subjects=request.subjects,
        established=established,
        route=request.route,
        status=_STATUS.get(told.answer, request.status),
        limit=told.limit,
        window_s=seconds(told.window_ms),
        remaining=told.remaining,
        retry_after_s=None if told.wait_ms == NEVER else seconds(told.wait_ms),
        cost=request.cost,
        enforced=enforced,
        attrs=request.attrs,
    )


def listed(request: Request, source: str, action: Action, wait_ms: int | None, **more: Any) -> Decision:
    """The decision about a request of a subject in the blocklist: nothing is counted, nobody is charged."""
    reason: Reason = "blocklist" if action == "deny" else "challenged"
    retry_after_s = None if wait_ms is None else seconds(wait_ms)
    return bare(request, source, action, reason=reason, status=403, retry_after_s=retry_after_s, **more)


def weighed(
    request: Request, source: str, states: Sequence[LimitState], *, established: bool | None
) -> tuple[Decision, ...]:
    """The decision, and behind it what a dry run would have answered if that differs."""
    violated = [state for state in states if state.wait_ms]
    if not violated:
        return (allowed(request, source, states, established=established),)
    real = [state for state in violated if not state.dry_run]
    if real:
        return (refused(request, source, real, established=established, enforced=True),)
    tried = refused(request, source, violated, established=established, enforced=False)
    return allowed(request, source, states, established=established), tried


def verdict_that_fits(
    request: Request, source: str, states: tuple[LimitState, ...], *, established: bool | None
) -> Verdict:
    """Allowed, and no limit is violated, not even one that is tried only."""
    only = allowed(request, source, states, established=established)
    return Verdict(action="allow", limits=states, decisions=(only,))


def verdict_on(request: Request, source: str, states: Sequence[LimitState], *, established: bool | None) -> Verdict:
    """What `weighed` says, as an answer to the request."""
    for state in states:
        if state.wait_ms:
            break
    else:
        return verdict_that_fits(request, source, tuple(states), established=established)
    told = weighed(request, source, states, established=established)
    action = told[0].action
    if action == "allow":
        return Verdict(action=action, limits=tuple(states), decisions=told)
    violated = [state for state in states if state.wait_ms and not state.dry_run]
    wait_ms = binding(violated).wait_ms
    return Verdict(
        action=action,
        reason=told[0].reason,
        limits=tuple(states),
        violated=tuple([state.name for state in violated]),
        retry_after_ms=None if wait_ms == NEVER else wait_ms,
        decisions=told,
    )


def verdict_listed(
    request: Request,
    source: str,
    action: Action,
    listed_subjects: Sequence[tuple[str, bytes]],
    now_ms: int,
    *,
    established: bool | None,
) -> Verdict:
    """The longest of these blocks or challenges answers; one whose value cannot be read counts as permanent.

    Args:
        request: what is asked about.
        source: ``limiter/instance``.
        action: deny or challenge.
        listed_subjects: (canonical subject, value of its key).
        now_ms: the clock by which they end.
        established: stamped into the decision.
    """
    ends = [(_end_of(value), subject) for subject, value in listed_subjects]
    end, subject = max(ends, key=_later)
    wait_ms = None if end is None else max(1, end - now_ms)
    decision = listed(request, source, action, wait_ms, established=established)
    return Verdict(
        action=action,
        reason=decision.reason,
        retry_after_ms=wait_ms,
        permanent=action == "deny" and end is None,
        listed=subject,
        decisions=(decision,),
    )


def verdict_missing(request: Request, source: str, dimension: str) -> Verdict:
    """Refused, because the scenario wants a dimension that the request lacks."""
    decision = bare(request, source, "deny", reason="unknown", status=400)
    return Verdict(action="deny", reason="unknown", missing=dimension, decisions=(decision,))


def _end_of(value: bytes) -> int | None:
    """`until` of a block's value; None is permanent, and what a value means that cannot be read."""
    try:
        until = msgspec.json.decode(value, type=_Block).until
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return until


def _later(end: tuple[int | None, str]) -> float:
    return float("inf") if end[0] is None else end[0]


class _Block(msgspec.Struct):
    until: int | None


def _wait(state: LimitState) -> float:
    return float("inf") if state.wait_ms == NEVER else state.wait_ms
