"""Start and stop of an ASGI application that holds something open while it lives (ASGI's lifespan protocol)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from penaltybox.contracts.errors import PenaltyboxError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from penaltybox.producers.service.calls import Receive, Send

T = TypeVar("T")


async def live(
    opened: AbstractAsyncContextManager[T], hold: Callable[[T | None], None], receive: Receive, send: Send
) -> None:
    """From the server's start to its stop; an error is told as the failure of one of them.

    Args:
        opened: entered at the start, left at the stop.
        hold: gets what was opened, and None before it is closed.
        receive: of the lifespan scope.
        send: of the lifespan scope.
    """
    await receive()
    kind = "startup"
    try:
        async with opened as thing:
            hold(thing)
            kind = "shutdown"
            await send({"type": "lifespan.startup.complete"})
            await receive()
            hold(None)
    except PenaltyboxError as error:
        await send({"type": f"lifespan.{kind}.failed", "message": str(error)})
        return
    await send({"type": "lifespan.shutdown.complete"})
