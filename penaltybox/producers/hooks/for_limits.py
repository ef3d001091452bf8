"""Tells what a strategy of the library `limits` decides, sync or async."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from penaltybox.producers.hooks.telling import Limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.producers.hooks.telling import Teller


def watch(strategy: Any, teller: Teller) -> Callable[[], None]:
    """From now on each `hit` of this strategy is told; the first identifier is the key, the second the scenario.

    Args:
        strategy: of `limits.strategies` or `limits.aio.strategies`.
        teller: publishes.

    Returns:
        What ends it.
    """
    hit = strategy.hit

    def tell(allowed: bool, item: Any, identifiers: tuple[str, ...], cost: int) -> bool:  # noqa: FBT001 - hit's answer
        def told() -> None:
            key, scenario = (*identifiers, "", "")[:2]
            limit = Limit(str(key), item.amount, item.get_expiry(), not allowed)
            teller.tell([limit], limiter="limits", scenario=str(scenario), cost=cost)

        teller.attempt("limits", told)
        return allowed

    async def tell_later(answer: Any, item: Any, identifiers: tuple[str, ...], cost: int) -> bool:
        return tell(await answer, item, identifiers, cost)

    def watched(item: Any, *identifiers: str, cost: int = 1) -> Any:
        answer = hit(item, *identifiers, cost=cost)
        known = tell_later if inspect.isawaitable(answer) else tell
        return known(answer, item, identifiers, cost)

    strategy.hit = watched

    def end() -> None:
        if strategy.__dict__.get("hit") is watched:
            del strategy.hit

    return end
