"""Tells what throttled-py decides, as one of its own hooks, sync or async."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from throttled import hooks
from throttled.asyncio import hooks as async_hooks

from penaltybox.producers.hooks.telling import Limit

if TYPE_CHECKING:
    from penaltybox.producers.hooks.telling import Teller


def hook(teller: Teller, *, window_s: int = 0, scenario: str = "") -> Any:
    """A hook for `throttled.Throttled(hooks=[…])`.

    Args:
        teller: publishes.
        window_s: of the quota, which the library does not tell its hooks.
        scenario: which use of the API this limiter stands for.
    """

    class Telling(hooks.Hook):
        """Tells what comes back from the limiter."""

        def on_limit(self, call_next: Any, context: Any) -> Any:
            """See `throttled.hooks.Hook`."""
            result = call_next()
            teller.attempt("throttled-py", lambda: _tell(teller, context, result, window_s, scenario))
            return result

    return Telling()


def async_hook(teller: Teller, *, window_s: int = 0, scenario: str = "") -> Any:
    """The same for `throttled.asyncio.Throttled`."""

    class Telling(async_hooks.Hook):
        """Tells what comes back from the limiter."""

        async def on_limit(self, call_next: Any, context: Any) -> Any:
            """See `throttled.asyncio.hooks.Hook`."""
            result = await call_next()
            teller.attempt("throttled-py", lambda: _tell(teller, context, result, window_s, scenario))
            return result

    return Telling()


def _tell(teller: Teller, context: Any, result: Any, window_s: int, scenario: str) -> None:
    state = result.state
    teller.tell(
        [Limit(str(context.key), state.limit, window_s, bool(result.limited))],
        limiter="throttled-py",
        scenario=scenario,
        cost=context.cost,
        remaining=max(0, state.remaining),
        retry_after_s=-int(-state.retry_after // 1),
    )
