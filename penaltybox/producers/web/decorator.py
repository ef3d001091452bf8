"""The limiter around plain functions, sync and async: refused calls raise, with the verdict."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError
from penaltybox.contracts.ids import ulid
from penaltybox.producers.http.testimony import said_subjects, whole_cost
from penaltybox.producers.limiter import Request
from penaltybox.producers.web.access import Access
from penaltybox.producers.web.admission import charged
from penaltybox.producers.web.blocking import Blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penaltybox.contracts.policy import Policy
    from penaltybox.producers.verdict import Verdict
    from penaltybox.producers.web.access import Opening

P = ParamSpec("P")
R = TypeVar("R")


class Refused(PenaltyboxError):  # noqa: N818 - what happened, not a mistake
    """A call that its limits refused. The middlewares here answer it as if they had refused the request themselves.

    Attributes:
        verdict: why, and when to come back.
        request: what was asked.
    """

    def __init__(self, request: Request, verdict: Verdict) -> None:
        wait_ms = verdict.retry_after_ms
        what = ", ".join(verdict.violated) or verdict.missing or verdict.reason or "no reason given"
        again = "" if wait_ms is None else f"; again in {-(-wait_ms // 1000)} s"
        super().__init__(f"{request.scenario}: {verdict.action} ({what}){again}")
        self.request = request
        self.verdict = verdict


def limited(
    limiter: Access | Opening,
    *,
    scenario: str,
    subjects: Callable[..., Mapping[str, object]],
    cost: float | Callable[..., float] = 1,
    idempotency_key: Callable[..., object] | None = None,
    refund_on: tuple[type[BaseException], ...] = (),
    on_shadow: Callable[..., Any] | None = None,
    policy: Policy | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function: every call is decided, and raises `Refused` unless it is allowed.

    Args:
        limiter: a limiter, a function that opens one, or an `Access` that several functions share.
        scenario: whose limits count.
        subjects: called like the function; dimension -> value of this call (a text or a number; None for nobody). Of
            an API key only a digest leaves the program.
        cost: what a call costs, or a function that is called like the function and says so; fractions are rounded up,
            what is below 0 is 0.
        idempotency_key: called like the function; under which `refund` finds this call later (a text or a number).
        refund_on: errors of the function after which what the call took is given back.
        on_shadow: called like the function in its place when the answer is `shadow`; without it `Refused` is raised.
        policy: what a failing limiter means (with an `Access`, its own holds).

    Raises:
        ConfigurationError: an async generator; and when it is called, a cost that is no number.
    """
    access = limiter if isinstance(limiter, Access) else Access(limiter, policy)

    def ask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        at_ms = now_ms()
        identity = ulid(at_ms)
        said = idempotency_key(*args, **kwargs) if idempotency_key is not None else identity if refund_on else ""
        return Request(
            id=identity,
            ts_ms=at_ms,
            scenario=scenario,
            subjects=said_subjects(subjects(*args, **kwargs), {}, []),
            cost=_counted(cost(*args, **kwargs) if callable(cost) else cost),
            idempotency_key="" if said is None or said is False else str(said),
        )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"limited: got the async generator {function.__qualname__}, wanted a function")
        wrap = _asynchronous if inspect.iscoroutinefunction(function) else _synchronous
        return cast("Callable[P, R]", wrap(function, access, ask, refund_on, on_shadow))

    return decorate


def _counted(cost: object) -> int:
    try:
        return whole_cost(cost)
    except ValueError as error:
        raise ConfigurationError(f"limited: {error}") from error


def _asynchronous(
    function: Callable[..., Any],
    access: Access,
    ask: Callable[[tuple[Any, ...], dict[str, Any]], Request],
    refund_on: tuple[type[BaseException], ...],
    on_shadow: Callable[..., Any] | None,
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        request = ask(args, kwargs)
        verdict = await access.decide(request)
        if verdict.action == "shadow" and on_shadow is not None:
            pretended = on_shadow(*args, **kwargs)
            return await pretended if inspect.isawaitable(pretended) else pretended
        if not verdict.allowed:
            raise Refused(request, verdict)
        try:
            return await function(*args, **kwargs)
        except refund_on:
            if charged(verdict):
                await access.refund(request.idempotency_key)
            raise

    return call


def _synchronous(
    function: Callable[..., Any],
    access: Access,
    ask: Callable[[tuple[Any, ...], dict[str, Any]], Request],
    refund_on: tuple[type[BaseException], ...],
    on_shadow: Callable[..., Any] | None,
) -> Callable[..., Any]:
    blocking = Blocking(access)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        request = ask(args, kwargs)
        verdict = blocking.decide(request)
        if verdict.action == "shadow" and on_shadow is not None:
            return on_shadow(*args, **kwargs)
        if not verdict.allowed:
            raise Refused(request, verdict)
        try:
            return function(*args, **kwargs)
        except refund_on:
            if charged(verdict):
                blocking.refund(request.idempotency_key)
            raise

    return call
