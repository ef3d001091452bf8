"""Calls an ASGI application without a server: one call in, its status, headers and body out."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from penaltybox.producers.service.application import Application

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from penaltybox.producers.service.desk import Desk


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Speaks to a desk through the application around it."""

    def __init__(self, desk: Desk, secret: str = "") -> None:
        @asynccontextmanager
        async def opened() -> AsyncIterator[Desk]:
            yield desk

        self.application = Application(opened, secret=secret)
        self.application._desk = desk

    async def get(self, target: str, headers: Mapping[str, str] | None = None, **more: Any) -> Got:
        return await self.call("GET", target, headers, **more)

    async def post(self, target: str, body: object, headers: Mapping[str, str] | None = None, **more: Any) -> Got:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.call("POST", target, headers, body=data, **more)

    async def call(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | list[tuple[str, str]] | None = None,
        *,
        body: bytes = b"",
        peer: str = "127.0.0.1",
    ) -> Got:
        path, _, query = target.partition("?")
        pairs = headers if isinstance(headers, list) else list((headers or {}).items())
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs],
            "client": (peer, 50_000),
        }
        pieces = [body[at : at + 4096] for at in range(0, len(body), 4096)] or [b""]
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.application(scope, receive, send)
        start, end = sent
        return Got(
            start["status"], {name.decode(): value.decode("latin-1") for name, value in start["headers"]}, end["body"]
        )
