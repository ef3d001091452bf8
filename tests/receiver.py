"""A webhook receiver on loopback that fails as it is told: a status, or `hang`; what it was sent is kept."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Receiver:
    """What came, and how the next requests are answered: statuses in turn, then 200."""

    def __init__(self) -> None:
        self.script: list[int | str] = []
        self.requests: list[tuple[dict[str, str], bytes, int | str]] = []
        self.url = ""
        self.ending = asyncio.Event()

    @property
    def accepted(self) -> list[dict[str, Any]]:
        """Bodies that were answered with 200."""
        return [msgspec.json.decode(body) for _, body, answer in self.requests if answer == 200]

    async def handle(self, request: web.Request) -> web.Response:
        answer = self.script.pop(0) if self.script else 200
        self.requests.append((dict(request.headers), await request.read(), answer))
        if answer == "hang":
            await self.ending.wait()
            return web.Response(status=500)
        headers = {"Location": "/elsewhere"} if answer == 302 else {}
        return web.Response(status=int(answer), headers=headers)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver on a free port of the loopback address."""
    receiver = Receiver()
    application = web.Application()
    application.router.add_post("/hook/{key}", receiver.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    receiver.url = f"http://127.0.0.1:{port}/hook/s3cret"
    try:
        yield receiver
    finally:
        receiver.ending.set()
        await runner.cleanup()
