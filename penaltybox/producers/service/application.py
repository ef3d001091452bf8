"""The decision service as an ASGI application: who may call, which call it is, and its answer.

/auth/nginx  /auth/forward  /auth/envoy/…     a gateway asks about a client's request
POST /v1/decide  /v1/refund  /v1/outcomes     a program asks, gives back, tells what became of it
GET /v1/subjects/{subject}                    how a subject stands
GET /v1/blocks/stream                         who is blocked, and every change, for enforcers
GET /healthz  /readyz                         alive; able to decide
"""

from __future__ import annotations

import logging
import time
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from penaltybox.contracts.errors import BadEvent, StoreUnavailable
from penaltybox.producers.service import gateways
from penaltybox.producers.service.calls import Call, read_body
from penaltybox.producers.service.lifespan import live
from penaltybox.producers.service.replies import Refusal, Reply, document, problem
from penaltybox.producers.service.streaming import ON_STOP, stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from penaltybox.producers.service.calls import Receive, Scope, Send
    from penaltybox.producers.service.desk import Desk

SECRET: Final = b"x-penaltybox-secret"
_SUBJECTS: Final = "/v1/subjects/"
_UNAVAILABLE: Final = 503
_QUIET_S: Final = 60.0
_log = logging.getLogger("penaltybox.service")


class Application:
    """An ASGI application; the server's start and stop open and close what it works with.

    Args:
        desk: opens what answers, at the server's start.
        secret: what callers must send; empty if they need not.
    """

    def __init__(self, desk: Callable[[], AbstractAsyncContextManager[Desk]], *, secret: str = "") -> None:
        self._open = desk
        self._secret = secret.encode()
        self._desk: Desk | None = None
        self._told_s: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call, or the server's start and stop."""
        if scope["type"] == "lifespan":
            await live(self._open(), self._hold, receive, send)
        elif scope["type"] == "http":
            reply = await self._reply(Call.of(scope), receive)
            await send({"type": "http.response.start", "status": reply.status, "headers": _encoded(reply)})
            if reply.pieces is None:
                await send({"type": "http.response.body", "body": reply.body})
            else:
                scope[ON_STOP] = self._end
                await stream(reply.pieces, receive, send)

    def _end(self) -> None:
        """The server stops, and answers that go on end."""
        if self._desk is not None:
            self._desk.end()

    def _hold(self, desk: Desk | None) -> None:
        self._desk = desk

    async def _reply(self, call: Call, receive: Receive) -> Reply:
        try:
            return await self._routed(call, receive)
        except Refusal as refusal:
            way = gateways.way_of(call.path)
            if way is None or refusal.reply.status == _UNAVAILABLE:
                return refusal.reply
            self._complain(call, str(refusal))
            return gateways.MISCONFIGURED
        except BadEvent as error:
            return problem(422, error.detail)
        except StoreUnavailable as error:
            return problem(503, str(error))
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and told as the others are
            _log.exception("%s %s: no answer", call.method, call.path[:80])
            return problem(500, "an error of the service; its log says more")

    async def _routed(self, call: Call, receive: Receive) -> Reply:
        if call.path == "/healthz":
            return document({"alive": True})
        desk = self._desk
        if desk is None:
            raise Refusal(503, "starting or stopping")
        if call.path == "/readyz":
            return await desk.readiness()
        way = gateways.way_of(call.path)
        if self._secret and not compare_digest(call.header(SECRET) or b"", self._secret):
            raise Refusal(401, f"{SECRET.decode()}: wanted the service's secret (serve_secret), once")
        if way is not None:
            return await desk.check(way, call)
        if call.path.startswith(_SUBJECTS):
            _only("GET", call)
            return await desk.standing(call.path[len(_SUBJECTS) :])
        if call.path == "/v1/blocks/stream":
            _only("GET", call)
            return await desk.changes(call)
        answer = {"/v1/decide": desk.decide, "/v1/refund": desk.refund, "/v1/outcomes": desk.outcome}.get(call.path)
        if answer is None:
            raise Refusal(404, "no such path; see docs/gateways")
        _only("POST", call)
        return await answer(call, await read_body(call, receive))

    def _complain(self, call: Call, detail: str) -> None:
        """What is wrong with a gateway's calls, once a minute each; what stands before the colon is of our making."""
        now_s, what = time.monotonic(), detail.partition(":")[0]
        if now_s - self._told_s.get(what, -_QUIET_S) >= _QUIET_S:
            self._told_s[what] = now_s
            _log.error(
                "A gateway's calls are refused, and so are its clients' requests (403). %s asked %s: %s. "
                "docs/gateways has a complete configuration",
                call.peer or "A local socket", call.path[:80], detail,
            )  # fmt: skip


def _only(method: str, call: Call) -> None:
    if call.method != method:
        raise Refusal(405, f"got {call.method}, wanted {method}", {"allow": method})


def _encoded(reply: Reply) -> list[tuple[bytes, bytes]]:
    headers = dict(reply.headers)
    if reply.pieces is None:
        headers["content-length"] = str(len(reply.body))
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
