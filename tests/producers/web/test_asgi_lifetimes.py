"""ASGI: responses that go on, clients that leave, programs that start and stop, websockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import BackgroundTasks, FastAPI
from starlette.responses import StreamingResponse

from penaltybox.producers.web.asgi import PenaltyboxMiddleware
from tests.producers.web.asgi_server import alive, handshake
from tests.producers.web.asgi_shop import client, fastapi_app, protection
from tests.producers.web.shop import USER, RefundingLimiter
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def test_streams_and_background_tasks_are_untouched(limiter: RefundingLimiter) -> None:
    """Parts arrive one by one while the application still runs, and what it does after its response is done."""
    done, parts = asyncio.Event(), asyncio.Queue[str]()
    app = FastAPI()
    app.add_middleware(PenaltyboxMiddleware, protection=protection(limiter))

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def text() -> AsyncIterator[str]:
            while part := await parts.get():
                yield part

        return StreamingResponse(text())

    @app.get("/later")
    async def later(tasks: BackgroundTasks) -> None:
        tasks.add_task(done.set)

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "method": "GET", "path": "/stream",
        "query_string": b"", "headers": [], "client": None, "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    running = asyncio.create_task(app(scope, receive, send))
    for number in range(3):
        parts.put_nowait(f"part {number}")
        await wait_until(lambda number=number: sent and sent[-1].get("body") == f"part {number}".encode())
        assert not running.done()
    assert any(name == b"ratelimit" for name, _ in sent[0]["headers"]) is False  # nobody's address, so no limit
    parts.put_nowait("")
    await running
    async with client(app) as http:
        await http.get("/later")
    assert done.is_set()


async def test_a_client_that_leaves_is_the_applications_to_see(limiter: RefundingLimiter) -> None:
    """The application gets the disconnect, and its own error goes through as it is."""

    class Left(Exception):  # noqa: N818 - what the client did
        pass

    async def app(_: Any, receive: Any, __: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        raise Left

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pytest.fail(f"nobody is there: {message}")

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}
    with pytest.raises(Left):
        await PenaltyboxMiddleware(app, protection(limiter))(scope, receive, send)


async def test_lifespan_opens_and_closes_the_limiter(limiter: RefundingLimiter) -> None:
    """The limiter is opened once before the first request, used by all, and closed when the server stops the app."""
    app = fastapi_app(protection(limiter.opening))
    for lives in (1, 2):
        async with alive(app), client(app) as http:
            assert (limiter.opened, limiter.closed) == (lives, lives - 1)
            assert [(await http.get("/report")).status_code for _ in range(2)] == [200, 200]
        assert (limiter.opened, limiter.closed) == (lives, lives)


def test_another_loop_opens_its_own(limiter: RefundingLimiter) -> None:
    """Connections belong to a loop: an application that is used in two of them has two limiters."""
    app = fastapi_app(protection(limiter.opening))

    async def ask() -> int:
        async with client(app) as http:
            return (await http.get("/report")).status_code

    assert [asyncio.run(ask()) for _ in range(2)] == [200, 200]
    assert (limiter.opened, limiter.closed) == (2, 2)  # each with its loop


async def test_a_limiter_that_cannot_be_opened_stops_the_start() -> None:
    """What is wrong with the configuration is told when the server starts, not by the thousandth request."""

    def opening() -> Any:
        raise ValueError("no such policy")

    with pytest.raises(RuntimeError, match="no such policy"):
        async with alive(fastapi_app(protection(opening))):
            pass


async def test_a_limiter_is_opened_again_after_a_failure() -> None:
    """Without lifespan the first request opens it; meanwhile the failure policy answers."""
    limiter, ready = RefundingLimiter(), False

    def opening() -> Any:
        if not ready:
            raise OSError("away")
        return limiter.opening()

    guard = protection(opening)
    async with client(fastapi_app(guard)) as http:
        assert (await http.get("/report")).status_code == 200
        assert (await http.get("/closed")).status_code == 503
        ready = True

        async def asked() -> bool:
            return (await http.get("/closed")).status_code == 404

        await wait_until(asked)
    assert guard.access.failures >= 2


async def test_websocket_handshakes_are_decided(limiter: RefundingLimiter) -> None:
    """An allowed handshake goes on and tells its quota; a refused one is answered before it is accepted."""
    app = fastapi_app(protection(limiter))
    accepted, hello, _ = await handshake(app, "/strict/live", {USER: "ann"})
    assert (accepted["type"], hello["text"]) == ("websocket.accept", "hello")
    assert dict(accepted["headers"])[b"ratelimit"] == b'"user:daily";r=4;t=86400'
    start, body = await handshake(app, "/strict/live", {})
    assert (start["status"], b"missing" in body["body"]) == (400, True)
    (closed,) = await handshake(app, "/strict/live", {}, denial=False)
    assert closed["type"] == "websocket.close"
    assert limiter.asked[0].route == "GET /strict/live"
