"""The ways in on real servers: Valkey or Redis behind them, uvicorn and a threaded WSGI server before them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import flask
import httpx
import pytest
import uvicorn
from fastapi import FastAPI, HTTPException

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.producers.loop_thread import PROCESS_LOOP
from penaltybox.producers.web.asgi import PenaltyboxMiddleware
from penaltybox.producers.web.flask import Penaltybox
from penaltybox.producers.web.opening import Inline
from penaltybox.producers.web.protection import Protection
from tests.ports import free_port
from tests.producers.web.asgi_server import alive
from tests.redis_servers import BINARIES, Server, single
from tests.waiting import block_until, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

POLICY = parse_policy("""
limits:
  claim:  {user: [{name: daily, limit: 50, window: 1d}], ip: [{name: soft, limit: 1000, window: 1d}]}
  open:   {user: [{name: daily, limit: 1000, window: 1d}]}
  closed: {user: [{name: daily, limit: 1000, window: 1d}]}
  local:  {user: [{name: daily, limit: 10, window: 1d}]}
scenarios:
  claim:  {routes: [/claim], failure: closed, deadline: 2s}
  open:   {routes: [/open], failure: open, deadline: 2s}
  closed: {routes: [/closed], failure: closed, deadline: 2s}
  local:  {routes: [/local], failure: local, deadline: 2s}
""")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Server]:
    server = single(next(iter(BINARIES.values())), tmp_path / "redis")
    yield server
    server.kill()


def protection(redis: Server, **given: Any) -> Protection:
    settings = Settings(redis_url=f"redis://127.0.0.1:{redis.port}/0", kafka="127.0.0.1:9")
    return Protection(POLICY, Inline(settings, POLICY, publish=False), **({"user": lambda _: "ann"} | given))


def fastapi_app(guard: Protection) -> FastAPI:
    app = FastAPI()
    app.add_middleware(PenaltyboxMiddleware, protection=guard)

    @app.get("/{scenario}")
    async def page(scenario: str, status: int = 200) -> str:
        if status != 200:
            raise HTTPException(status)
        return scenario

    return app


async def test_the_count_is_exact_under_concurrency(redis: Server) -> None:
    """Of two hundred concurrent requests exactly fifty pass, and Redis holds exactly fifty entries."""
    app = fastapi_app(protection(redis))
    async with alive(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as client:
        answers = await asyncio.gather(*(client.get("/claim") for _ in range(200)))
    assert Counter(one.status_code for one in answers) == {200: 50, 429: 150}
    assert redis.call("LLEN", "pbx:{user:ann}:l:claim:daily") == 50


async def test_quota_is_given_back_by_status(redis: Server) -> None:
    """Requests that end in a conflict or a crash leave the whole quota behind."""
    app = fastapi_app(protection(redis, refund_on_status=[409, "5xx"]))
    async with alive(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as client:
        for status in (409, 409, 503, 200):
            assert (await client.get("/claim", params={"status": status})).status_code == status
        await wait_until(lambda: redis.call("LLEN", "pbx:{user:ann}:l:claim:daily") == 1)


async def test_redis_cut_off_while_serving(redis: Server) -> None:
    """Killed in mid-service each scenario does what it says, at once; when Redis is back, it is asked again."""
    app = fastapi_app(protection(redis))
    async with alive(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as client:

        async def statuses(path: str, count: int) -> Counter[int]:
            return Counter([(await client.get(path)).status_code for _ in range(count)])

        for path in ("/open", "/closed", "/local"):
            assert await statuses(path, 2) == {200: 2}
        redis.kill()
        began = time.monotonic()
        assert await statuses("/open", 100) == {200: 100}
        assert await statuses("/closed", 100) == {503: 100}
        assert await statuses("/local", 20) == {200: 5, 429: 15}
        assert time.monotonic() - began < 10
        redis.start()

        async def back() -> bool:
            return (await client.get("/closed")).status_code == 200

        await wait_until(back, 20)


async def test_redis_away_at_the_start(redis: Server) -> None:
    """An application starts without Redis, and answers by each scenario's policy."""
    redis.kill()
    app = fastapi_app(protection(redis))
    async with alive(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as client:
        assert [(await client.get(path)).status_code for path in ("/open", "/closed")] == [200, 503]


@contextlib.contextmanager
def uvicorn_of(app: Any) -> Iterator[int]:
    """A uvicorn in a thread; its port."""
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="on", ws="none")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        block_until(lambda: server.started or not thread.is_alive(), what="uvicorn")
        yield port
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


class ThreadedServer(ThreadingMixIn, WSGIServer):
    """A thread per request."""

    daemon_threads = True
    request_queue_size = 64


class QuietHandler(WSGIRequestHandler):
    """Logs nothing."""

    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def wsgi_server_of(app: Any) -> Iterator[int]:
    """Python's own WSGI server with a thread per request; its port."""
    with make_server("127.0.0.1", 0, app, ThreadedServer, QuietHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(20)


def get(port: int, path: str) -> tuple[int, str | None]:
    """(status, Retry-After) over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["Retry-After"]
    finally:
        connection.close()


def flask_app(guard: Protection) -> flask.Flask:
    app = flask.Flask(__name__)
    Penaltybox(app, guard)
    app.add_url_rule("/<scenario>", view_func=lambda scenario: scenario, endpoint="page")
    return app


@pytest.mark.parametrize("server", ["uvicorn", "wsgiref"])
def test_real_web_servers_count_exactly(server: str, redis: Server) -> None:
    """A hundred requests from sixteen threads over real connections: exactly fifty pass, the others may come back."""
    guard = protection(redis)
    serving = uvicorn_of(fastapi_app(guard)) if server == "uvicorn" else wsgi_server_of(flask_app(guard))
    with serving as port, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: get(port, "/claim"), range(100)))
    assert Counter(status for status, _ in answers) == {200: 50, 429: 50}
    assert all((retry is not None) == (status == 429) for status, retry in answers)
    if server == "wsgiref":
        PROCESS_LOOP.run(guard.access.close(), 10)


def run_script(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


FORKED = """
import os, sys, warnings
warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork")  # 3.12 warns of what is tested here
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.producers.web.opening import Inline
from penaltybox.producers.web.protection import Protection
from penaltybox.producers.web.wsgi import PenaltyboxWSGI

limits = "limits: {c: {user: [{name: d, limit: 30, window: 1d}]}}"
policy = parse_policy(limits + "\\nscenarios: {c: {routes: [/], deadline: 2s}}")
settings = Settings(redis_url=sys.argv[1])
def app(environ, start_response):
    start_response("200 OK", [])
    return []
protected = PenaltyboxWSGI(app, Protection(policy, Inline(settings, policy, publish=False), user=lambda _: "ann"))
def serve(count):
    seen = []
    for _ in range(count):
        protected({"PATH_INFO": "/", "REQUEST_METHOD": "GET"}, lambda status, *_: seen.append(status[:3]))
    os.write(1, b"%d\\n" % seen.count("200"))  # whole lines: several processes write
serve(5)
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        serve(20)
        os._exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
serve(5)
"""


LEAVING = """
from contextlib import asynccontextmanager
from tests.producers.web.shop import POLICY, RefundingLimiter
from penaltybox.producers.web.decorator import limited

@asynccontextmanager
async def opening():
    yield RefundingLimiter()
    print("closed", flush=True)

@limited(opening, scenario="claim", subjects=lambda: {"user": "ann"}, policy=POLICY)
def claim():
    return "claimed"

print(claim(), flush=True)
"""


def test_a_process_closes_its_limiter_at_exit() -> None:
    """A program without an event loop ends, and its limiter is closed while it still can tell what it has to tell."""
    ran = run_script(LEAVING)
    assert ran.stdout.split() == ["claimed", "closed"], ran.stderr


def test_forked_workers_count_together(redis: Server) -> None:
    """A process that has served already forks three workers: together they pass what is left, and not one more."""
    ran = run_script(FORKED, f"redis://127.0.0.1:{redis.port}/0")
    assert ran.returncode == 0, ran.stderr
    passed = [int(line) for line in ran.stdout.split()]
    assert (passed[0], sum(passed), passed[-1]) == (5, 30, 0)
