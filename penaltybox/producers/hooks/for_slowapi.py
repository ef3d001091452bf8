"""Tells what slowapi decides."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from slowapi.errors import RateLimitExceeded

from penaltybox.producers.hooks.telling import Limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.producers.hooks.telling import Teller

_TOLD: Final = "_penaltybox_told"


def watch(limiter: Any, teller: Teller) -> Callable[[], None]:
    """From now on the decisions of this limiter are told, one a request; the route's path is the scenario.

    Args:
        limiter: a `slowapi.Limiter`.
        teller: publishes.

    Returns:
        What ends it.
    """
    check = limiter._check_request_limit  # noqa: SLF001 - decorators and middlewares have this one way in common

    @functools.wraps(check)
    def watched(request: Any, *arguments: Any, **named: Any) -> Any:
        try:
            answer = check(request, *arguments, **named)
        except RateLimitExceeded:
            teller.attempt("slowapi", lambda: _tell(teller, request, over=True))
            raise
        teller.attempt("slowapi", lambda: _tell(teller, request, over=False))
        return answer

    limiter._check_request_limit = watched  # noqa: SLF001 - as above

    def end() -> None:
        if limiter.__dict__.get("_check_request_limit") is watched:
            del limiter._check_request_limit  # noqa: SLF001 - as above

    return end


def _tell(teller: Teller, request: Any, *, over: bool) -> None:
    found = getattr(request.state, "view_rate_limit", None)
    if not found or (not over and getattr(request.state, _TOLD, False)):
        return
    setattr(request.state, _TOLD, True)
    item, arguments = found
    template = getattr(request.scope.get("route"), "path", "")
    route = f"{request.method} {template}" if template else ""
    limit = Limit(str(arguments[-2]), item.amount, item.get_expiry(), over)
    teller.tell([limit], limiter="slowapi", scenario=template, route=route)
