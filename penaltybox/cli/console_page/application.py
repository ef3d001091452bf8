"""The console as an ASGI application: its files, its API, its stream of events. Who may ask is `access`."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.cli.console_page import openapi
from penaltybox.cli.console_page.access import HEADERS
from penaltybox.cli.console_page.routes import ROUTES, STREAM
from penaltybox.contracts.errors import BadEvent, ConfigurationError, PenaltyboxError
from penaltybox.producers.service.bodies import parsed
from penaltybox.producers.service.calls import Call, read_body
from penaltybox.producers.service.lifespan import live
from penaltybox.producers.service.replies import Refusal, Reply, document, problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from penaltybox.cli.console_page.access import Access
    from penaltybox.cli.console_page.desk import Desk
    from penaltybox.cli.console_page.routes import Route
    from penaltybox.producers.service.calls import Receive, Scope, Send

PAGE: Final = Path(__file__).with_name("page")
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_MOST_STREAMS: Final = 64
_log = logging.getLogger("penaltybox.console")


def page_files(folder: Path = PAGE) -> dict[str, Reply]:
    """Path -> reply, of every file of the page. Nothing else on this disk can be asked for."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = _KINDS.get(path.suffix)
        if kind is not None:
            name = "/" if path.name == "index.html" else f"/{path.relative_to(folder).as_posix()}"
            found[name] = Reply(200, {"content-type": kind, "cache-control": "no-cache"}, path.read_bytes())
    return found


class Application:
    """An ASGI application; the server's start and stop open and close the desk.

    Args:
        desk: opens what answers.
        access: who may ask.
        ending: set when the server is to stop, so that streams end.
    """

    def __init__(
        self, desk: Callable[[], AbstractAsyncContextManager[Desk]], access: Access, ending: asyncio.Event
    ) -> None:
        self._open = desk
        self._access = access
        self._ending = ending
        self._desk: Desk | None = None
        self._files: Mapping[str, Reply] = page_files()
        self._routes: dict[tuple[str, str], Route] = {(route.method, route.path): route for route in ROUTES}
        self._methods = {route.path: route.method for route in ROUTES}
        self._streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call, or the server's start and stop."""
        if scope["type"] == "lifespan":
            await live(self._open(), self._hold, receive, send)
        elif scope["type"] == "http":
            call = Call.of(scope)
            reply = await self._reply(call, receive)
            if isinstance(reply, Reply):
                await _send(send, reply, head=call.method == "HEAD")
            else:
                await self._stream(reply, receive, send)

    def _hold(self, desk: Desk | None) -> None:
        self._desk = desk

    async def _reply(self, call: Call, receive: Receive) -> Reply | Desk:
        try:
            self._access.check_host(call)
            return await self._routed(call, receive)
        except Refusal as refusal:
            return refusal.reply
        except BadEvent as error:
            return problem(422, error.detail)
        except ConfigurationError as error:
            return problem(422, str(error).removeprefix("--"))
        except PenaltyboxError as error:
            return problem(503, str(error))
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and told as the others are
            _log.exception("%s %s: no answer", call.method, call.path[:80])
            return problem(500, "an error of the console; its log says more")

    async def _routed(self, call: Call, receive: Receive) -> Reply | Desk:
        file = self._files.get(call.path)
        if file is not None and call.method in ("GET", "HEAD"):
            return file
        route = self._routes.get((call.method, call.path))
        if route is None:
            allowed = "GET" if file is not None else self._methods.get(call.path)
            if allowed is None:
                raise Refusal(404, "no such path")
            raise Refusal(405, f"got {call.method}, wanted {allowed}", {"allow": allowed})
        if route.name == "healthz":
            return document({"alive": True})
        if route.name == "openapi":
            return document(openapi.document())
        self._access.check_caller(call)
        desk = self._desk
        if desk is None:
            raise Refusal(503, "starting or stopping")
        if route.changes and desk.read_only:
            raise Refusal(403, "this console only shows: it was started with --read-only")
        if route.media == STREAM:
            if self._streams >= _MOST_STREAMS:
                raise Refusal(503, f"{_MOST_STREAMS} pages listen already; close one")
            return desk
        return await self._answered(desk, route, call, receive)

    async def _answered(self, desk: Desk, route: Route, call: Call, receive: Receive) -> Reply:
        given: Any
        if route.body is not None:
            kind = (call.header(b"content-type") or b"").partition(b";")[0].strip().lower()
            if kind != b"application/json":
                raise Refusal(415, "Content-Type: wanted application/json")
            given = parsed(await read_body(call, receive), route.body)
        else:
            given = {one.name: one.read(call.parameter(one.name)) for one in route.parameters}
        return document(await getattr(desk, route.name)(given))

    async def _stream(self, desk: Desk, receive: Receive, send: Send) -> None:
        headers = {"content-type": STREAM, "cache-control": "no-store", **HEADERS}
        await send({"type": "http.response.start", "status": 200, "headers": _encoded(headers)})
        self._streams += 1
        gone = asyncio.ensure_future(_gone(receive))
        try:
            async for chunk in _chunks(desk.events(self._ending)):
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._streams -= 1
            gone.cancel()


async def _chunks(events: AsyncIterator[tuple[str, Any]]) -> AsyncIterator[bytes]:
    async for name, value in events:
        yield b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, reply: Reply, *, head: bool) -> None:
    headers = {"cache-control": "no-store", **HEADERS, **reply.headers, "content-length": str(len(reply.body))}
    if reply.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["connection"] = "close"
    await send({"type": "http.response.start", "status": reply.status, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": b"" if head else reply.body})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
