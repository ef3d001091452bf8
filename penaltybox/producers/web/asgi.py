"""ASGI middleware: Starlette, FastAPI, Litestar, Quart, or any other application. Imports none of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from penaltybox.producers.http.requests import Facts
from penaltybox.producers.web.admission import Admission
from penaltybox.producers.web.decorator import Refused
from penaltybox.producers.web.marks import mark_of
from penaltybox.producers.web.protection import awaited
from penaltybox.producers.web.starlette_routes import find_route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from penaltybox.producers.http.answers import Answer
    from penaltybox.producers.web.protection import Protection

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_POLICY_VIOLATION: Final = 1008
_ENDINGS: Final = frozenset({"lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed"})


class PenaltyboxMiddleware:
    """Asks the limiter before the application: HTTP requests and WebSocket handshakes.

    The application finds the decision in ``request.state.penaltybox`` (``scope["state"]["penaltybox"]``), an
    `Admission`. The limiter is opened when the server starts the application, or by the first request, and closed when
    the server stops it.

    Args:
        app: the application.
        protection: see there; its hooks get the ASGI scope, and may be coroutine functions.
    """

    def __init__(self, app: Application, protection: Protection) -> None:
        self.app = app
        self.protection = protection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(scope, receive, send)
        elif kind in ("http", "websocket"):
            await self._serve(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_and_open() -> Message:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.protection.access.open()
                except Exception as error:  # an error alone would mean that the application knows no lifespan
                    await send({"type": "lifespan.startup.failed", "message": f"penaltybox: {error}"})
                    raise
            return message

        async def send_and_close(message: Message) -> None:
            if message["type"] in _ENDINGS:
                await self.protection.access.close()
            await send(message)

        await self.app(scope, receive_and_open, send_and_close)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        protection, facts = self.protection, facts_of_scope(scope)
        if protection.excluded(facts.path):
            await self.app(scope, receive, send)
            return
        route = find_route(scope.get("app") or self.app, scope)
        mark = mark_of(route.endpoint if route is not None else None)
        if mark.exempt:
            await self.app(scope, receive, send)
            return
        facts = facts._replace(template=route.template if route is not None else "")
        said = await protection.hear(scope)
        request = protection.question(facts, mark, said)
        admission = Admission(
            request, await protection.access.decide(request), protection.access, asyncio.get_running_loop()
        )
        scope.setdefault("state", {})["penaltybox"] = admission
        answer = protection.answer(admission.verdict, request, facts)
        if answer.status is None:
            await _Exchange(self, scope, facts, admission, answer).run(receive, send)
        else:
            await self.refuse(scope, receive, send, admission, answer)

    async def refuse(self, scope: Scope, receive: Receive, send: Send, admission: Admission, answer: Answer) -> None:
        """Sends an answer in the application's place."""
        if scope["type"] == "http":
            response = await self._challenge(scope, admission)
            if response is not None:
                await response(scope, receive, send)
                return
        if scope["type"] == "http":
            await _respond("http.response", send, answer)
        elif "websocket.http.response" in scope.get("extensions", {}):
            await _respond("websocket.http.response", send, answer)
        else:  # before the handshake is accepted, the server turns this into a 403
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": answer.message[:100]})

    async def _challenge(self, scope: Scope, admission: Admission) -> Application | None:
        """The application's own challenge; None: the usual answer."""
        shown = self.protection.challenge_of(scope, admission)
        found: Application | None = await awaited(shown, self.protection)
        return found


class _Exchange:
    """One request that goes on to the application, and what is added to its response."""

    def __init__(
        self, middleware: PenaltyboxMiddleware, scope: Scope, facts: Facts, admission: Admission, answer: Answer
    ) -> None:
        self._middleware = middleware
        self._scope = scope
        self._facts = facts
        self._admission = admission
        self._headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        self._send: Send
        self._begun = False

    async def run(self, receive: Receive, send: Send) -> None:
        self._send = send
        protection = self._middleware.protection
        try:
            await self._middleware.app(self._scope, receive, self.send)
        except Refused as refused:
            if self._begun:
                raise
            await self._refuse(refused, receive)
        except Exception:
            if not self._begun:
                protection.settle(self._admission, 500)
            raise

    async def send(self, message: Message) -> None:
        """The server's `send`, with header fields added to the response."""
        if message["type"] == "http.response.start":
            self._begun = True
            self._middleware.protection.settle(self._admission, message["status"])
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        elif message["type"] == "websocket.accept":
            self._begun = True
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        elif message["type"] in ("websocket.close", "websocket.http.response.start"):
            self._begun = True
        await self._send(message)

    async def _refuse(self, refused: Refused, receive: Receive) -> None:
        """A limit within the view has refused: the request is answered as if the middleware had."""
        admission = self._admission.of(refused.request, refused.verdict)
        answer = self._middleware.protection.refusal(refused.verdict, refused.request, self._facts)
        await self._middleware.refuse(self._scope, receive, self._send, admission, answer)


def facts_of_scope(scope: Scope) -> Facts:
    """What the limiter may know of an ASGI request."""
    client = scope.get("client")
    return Facts(
        method=scope.get("method", "GET"),
        path=scope["path"],
        headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]],
        peer=client[0] if client else "",
    )


async def _respond(kind: str, send: Send, answer: Answer) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": f"{kind}.start", "status": answer.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": answer.body or b""})
