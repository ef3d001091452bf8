"""What strangers send, through the whole stack: nothing breaks, nobody becomes somebody else, keys stay bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.producers.memory import MemoryLimiter
from penaltybox.producers.web.asgi import PenaltyboxMiddleware
from penaltybox.producers.web.protection import Protection
from penaltybox.producers.web.wsgi import PenaltyboxWSGI
from tests.producers.web.test_wsgi import call

POLICY = parse_policy("""
limits:
  skip:   {device: [{name: d, limit: 2, window: 1d}], ip: [{name: soft, limit: 1000, window: 1d}]}
  refuse: {device: [{name: d, limit: 2, window: 1d}]}
  ip:     {ip: [{name: one, limit: 1, window: 1d}]}
scenarios:
  skip:   {routes: [/skip]}
  refuse: {routes: [/refuse], missing: {device: refuse}}
  ip:     {routes: [/ip]}
""")
SETTINGS = Settings(
    trusted_proxies=("10.0.0.0/8",),
    client_ip_header="X-Forwarded-For",
    device_header="X-Device-Id",
    device_cookie="device",
)
DEVICES = {
    "none": [],
    "empty": [("X-Device-Id", b"")],
    "10 KB": [("X-Device-Id", b"x" * 10_240)],
    "control characters": [("X-Device-Id", b"abcdefgh\x01\x7f")],
    "unicode": [("X-Device-Id", "gerät-ünïcode".encode())],
    "not UTF-8": [("X-Device-Id", b"abcdefgh\xff\xfe")],
    "two that differ": [("X-Device-Id", b"abcdefgh1"), ("X-Device-Id", b"abcdefgh2")],
    "a key's braces": [("X-Device-Id", b"d}:block{abcdef")],
    "everybody's": [("X-Device-Id", b"undefined")],
    "a broken cookie": [("Cookie", b';;=;device;device="; device=;')],
}


class Watched(MemoryLimiter):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(POLICY)
        self.asked: list[Any] = []

    async def decide(self, request: Any) -> Any:
        self.asked.append(request)
        return await super().decide(request)


def protected(limiter: MemoryLimiter) -> Any:
    async def page(_: Any) -> PlainTextResponse:
        return PlainTextResponse("page")

    app = Starlette(routes=[Route("/{page:path}", page, methods=["GET", "POST"])])
    return PenaltyboxMiddleware(app, Protection(POLICY, limiter, settings=SETTINGS))


def client(app: Any, peer: str = "192.0.2.1") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, client=(peer, 1)), base_url="http://shop.test")


@pytest.mark.parametrize("headers", DEVICES.values(), ids=DEVICES)
async def test_a_device_that_cannot_be_used_is_missing(headers: Any) -> None:
    """Where the scenario skips the dimension the request passes, where it refuses it is a 400, never a 500."""
    limiter = Watched()
    async with client(protected(limiter)) as http:
        statuses = [
            (await http.get(path, headers=headers)).status_code for path in ("/skip", "/skip", "/skip", "/refuse")
        ]
    assert statuses == [200, 200, 200, 400]
    assert all(set(one.subjects) == {"ip"} for one in limiter.asked)


async def test_a_device_that_can_be_used_is_counted() -> None:
    """By header or by cookie it is the same device."""
    async with client(protected(Watched())) as http:
        given = [{"X-Device-Id": "abcdefgh1"}, {"Cookie": 'a=b; device="abcdefgh1"'}, {"X-Device-Id": "abcdefgh1"}]
        assert [(await http.get("/refuse", headers=one)).status_code for one in given] == [200, 200, 429]


CHAINS = [  # peer, X-Forwarded-For, who it is
    ("192.0.2.1", "198.51.100.1", "192.0.2.1"),  # a stranger's word
    ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
    ("10.0.0.1", "203.0.113.66, 198.51.100.1, 10.1.1.1", "198.51.100.1"),  # the left end is the client's invention
    ("10.0.0.1", "10.9.9.9", "10.0.0.1"),
    ("10.0.0.1", "127.0.0.1; DROP TABLE", "10.0.0.1"),
    ("10.0.0.1", "x" * 10_240, "10.0.0.1"),
    ("10.0.0.1", "fe80::1%eth0, ::ffff:198.51.100.1", "198.51.100.1"),
]


@pytest.mark.parametrize(("peer", "chain", "wanted"), CHAINS, ids=[str(number) for number in range(len(CHAINS))])
async def test_a_spoofed_chain_makes_nobody_else(peer: str, chain: str, wanted: str) -> None:
    """The walk over trusted proxies ends at the first that is not one; ASGI and WSGI agree."""
    limiter = Watched()
    async with client(protected(limiter), peer) as http:
        answers = [(await http.get("/ip", headers={"X-Forwarded-For": chain})).status_code for _ in range(2)]
    assert answers == [200, 429]

    def app(_: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b""]

    wsgi = PenaltyboxWSGI(app, Protection(POLICY, limiter, settings=SETTINGS))
    call(wsgi, "/none", user="", REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=chain)
    assert [one.subjects["ip"] for one in limiter.asked] == [wanted] * 3


async def test_a_proxy_without_its_header_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Behind a proxy whose header nobody named, all count as one, and the log says so once."""
    limiter = Watched()

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("page")(scope, receive, send)

    app = PenaltyboxMiddleware(page, Protection(POLICY, limiter))
    async with client(app, "127.0.0.1") as http:
        for address in ("198.51.100.1", "198.51.100.2"):
            await http.get("/", headers={"X-Forwarded-For": address})
    assert [one.subjects["ip"] for one in limiter.asked] == ["127.0.0.1"] * 2
    assert [record.message[-78:] for record in caplog.records] == [
        "set PENALTYBOX_CLIENT_IP_HEADER to the header that it writes, such as X-Forwarded-For"[-78:]
    ]


async def test_paths_do_not_hide_a_scenario() -> None:
    """Doubled slashes, dots and encoded letters lead to the scenario of the page that they lead to."""
    limiter = Watched()
    async with client(protected(limiter)) as http:
        for path in ("//ip", "/x/../ip", "/%69p", "/./ip/", "/IP"):
            await http.get(httpx.URL("http://shop.test", raw_path=path.encode()))
    assert [one.scenario for one in limiter.asked] == ["ip", "ip", "ip", "ip", ""]


async def test_odd_requests_are_answered() -> None:
    """Unknown methods, long paths, broken preferences: an answer each, and routes that are bounded and printable."""
    limiter = Watched()
    odd = {"Accept-Language": "x" * 5000 + ",;q=", "Accept": "\x7f;;;q=9", "Content-Type": "x/" + "y" * 5000}
    async with client(protected(limiter)) as http:
        await http.get("/ip")
        for method, path in (("BREW", "/ip"), ("GET", "/ip/" + "a" * 8000), ("GET", "/ip/%00%0a%ff"), ("GET", "/ip/é")):
            answer = await http.request(method, path, headers=odd)
            assert answer.status_code in (200, 405, 429), (method, path)
    assert all(len(one.route) <= 256 and one.route.isprintable() and one.route.isascii() for one in limiter.asked)


names = st.sampled_from(["x-device-id", "cookie", "x-forwarded-for", "accept", "accept-language", "host", "\x00"])
fields = st.lists(st.tuples(names, st.binary(max_size=200)), max_size=6)


@given(path=st.text(max_size=60), method=st.text(max_size=8), headers=fields, peer=st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_nothing_that_can_be_sent_breaks_a_request(
    path: str, method: str, headers: list[tuple[str, bytes]], peer: str
) -> None:
    """Whatever method, path, peer and header fields are, there is an answer, and a route that is bounded."""
    limiter = Watched()
    guard = Protection(POLICY, limiter, settings=SETTINGS)
    sent: list[dict[str, Any]] = []

    async def page(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "client": (peer, 1),
        "headers": [(name.encode("latin-1"), value) for name, value in headers],
    }
    asyncio.run(PenaltyboxMiddleware(page, guard)(scope, receive, send))
    assert sent[0]["status"] in (200, 400)
    assert all(value.isascii() and b"\n" not in value for _, value in sent[0]["headers"])
    (asked,) = limiter.asked
    assert asked.route.isprintable()
    assert len(asked.route) <= 256


async def test_the_applications_own_word_is_never_missing() -> None:
    """A user name that is too long or unprintable has limits like any other, under a digest of it."""
    policy = parse_policy("limits: {u: {user: [{name: a, limit: 1, window: 1d}]}}\nscenarios: {u: {routes: [/]}}")
    app = PenaltyboxMiddleware(
        PlainTextResponse("page"),
        Protection(policy, MemoryLimiter(policy), user=lambda scope: scope["path"].encode("latin-1").decode()),
    )
    async with client(app) as http:
        for path in ("/" + "x" * 500, "/a%00b", "/a%0Db"):
            assert [(await http.get(path)).status_code for _ in range(2)] == [200, 429], path
