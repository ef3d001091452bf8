"""An answer that goes on: sent piece by piece, until its end, or until the caller goes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from penaltybox.producers.service.calls import Receive, Send

ON_STOP: Final = "penaltybox.on_stop"
"""In the scope of such an answer: what the server calls when it stops, or it would wait for the answer's end."""


async def stream(pieces: AsyncGenerator[bytes, None], receive: Receive, send: Send) -> None:
    """Sends the pieces as they come. The head of the answer is sent already.

    Args:
        pieces: closed when nobody wants them any more.
        receive: says when the caller has gone.
        send: waits while the caller does not take what was sent.
    """
    gone = asyncio.Event()
    watch = asyncio.create_task(_left(receive, gone))
    ended = asyncio.create_task(gone.wait())
    try:
        async with aclosing(pieces):
            while True:
                piece = asyncio.ensure_future(anext(pieces, None))
                await asyncio.wait({piece, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not piece.done():
                    piece.cancel()
                    await asyncio.wait({piece})
                    break
                if (got := piece.result()) is None:
                    break
                await send({"type": "http.response.body", "body": got, "more_body": True})
    finally:
        for task in (watch, ended):
            task.cancel()
        await asyncio.gather(watch, ended, return_exceptions=True)
    await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive, gone: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()
