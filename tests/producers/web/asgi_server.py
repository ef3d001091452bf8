"""What an ASGI server does beside HTTP, message by message: the application's life, and WebSocket handshakes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def alive(app: Any) -> AsyncIterator[None]:
    """The application between its start and its end; raises RuntimeError with what it says when it cannot start."""
    to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(app(scope, to_app.get, from_app.put))
    to_app.put_nowait({"type": "lifespan.startup"})
    started = await from_app.get()
    if started["type"] != "lifespan.startup.complete":
        await asyncio.gather(running, return_exceptions=True)
        raise RuntimeError(started.get("message"))
    yield
    to_app.put_nowait({"type": "lifespan.shutdown"})
    assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
    await running


async def handshake(app: Any, path: str, headers: dict[str, str], *, denial: bool = True) -> list[dict[str, Any]]:
    """What the application sends after a handshake is asked for; with the denial extension or without."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("203.0.113.7", 4711),
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}} if denial else {},
    }
    await app(scope, receive, send)
    return sent
