"""The JSON API: decide, refund, outcomes, subjects; and every call that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.producers.service.calls import MAX_BODY_BYTES
from tests.producers.service.asgi import Client

if TYPE_CHECKING:
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.service.desk import Desk
    from penaltybox.producers.verdict import Verdict
    from tests.producers.service.conftest import Published

CLAIM: dict[str, Any] = {"scenario": "coupon_claim", "subjects": {"user": "10086"}}


async def test_a_verdict_as_json(client: Client) -> None:
    """The status is 200 whatever was decided; the action, every limit and the client's answer are in the body."""
    first = await client.post("/v1/decide", CLAIM)
    assert (first.status, first.json["action"], first.json["http"]["status"]) == (200, "allow", None)
    (limit,) = first.json["limits"]
    assert (limit["name"], limit["limit"], limit["remaining"], limit["wait_ms"]) == ("user:daily", 2, 1, 0)
    await client.post("/v1/decide", CLAIM)
    third = (await client.post("/v1/decide", CLAIM)).json
    assert (third["action"], third["reason"], third["violated"]) == ("deny", "over_limit", ["user:daily"])
    assert third["http"]["status"] == 429
    assert int(third["http"]["headers"]["Retry-After"]) * 1000 >= third["retry_after_ms"] > 0
    assert third["http"]["body"]["violated-policies"] == ["user:daily"]


async def test_a_verdict_as_status(client: Client) -> None:
    """With ?http=1 the reply is what the client would get: its status, Retry-After, quota fields and problem."""
    for status in (200, 200, 429):
        got = await client.post("/v1/decide?http=1", CLAIM)
        assert got.status == status
    assert (got.headers["x-penaltybox-action"], got.headers["content-type"]) == ("deny", "application/problem+json")
    assert got.headers["ratelimit"].startswith('"user:daily";r=0;t=')
    assert int(got.headers["retry-after"]) > 0
    assert int(got.headers["content-length"]) == len(got.body)


async def test_what_a_program_says_is_what_is_published(client: Client, published: Published) -> None:
    """Cost, route, attrs, id and whether the user is established reach the decision."""
    body = CLAIM | {"cost": 2, "route": "POST /claim", "attrs": {"a": "b"}, "id": "mine", "established": True}
    assert (await client.post("/v1/decide", body)).json["id"] == "mine"
    (decision,) = published
    assert (decision.id, decision.cost, decision.route, decision.attrs) == ("mine", 2, "POST /claim", {"a": "b"})  # type: ignore[union-attr]
    assert decision.established is True  # type: ignore[union-attr]


async def test_a_request_of_no_scenario_passes(client: Client) -> None:
    """Without a scenario nothing is counted; the lists and blocks still hold."""
    assert (await client.post("/v1/decide", {"subjects": {"ip": "192.0.2.1"}})).json["limits"] == []


async def test_outcomes_are_published(client: Client, published: Published) -> None:
    """An outcome is accepted with an id, and offered to the publisher as it was told."""
    body = {"label": "challenge_passed", "subjects": {"user": "10086"}, "ref": "order-7"}
    got = await client.post("/v1/outcomes", body)
    (outcome,) = published
    assert (got.status, got.json) == (202, {"id": outcome.id})
    assert (outcome.label, outcome.subjects, outcome.ref) == ("challenge_passed", {"user": "10086"}, "order-7")  # type: ignore[union-attr]


async def test_a_refund_says_whether_there_was_one(client: Client) -> None:
    """A key that took nothing gives nothing back."""
    assert (await client.post("/v1/refund", {"idempotency_key": "k"})).json == {"refunded": False}


@pytest.mark.parametrize(
    ("target", "body", "status", "says"),
    [
        ("/v1/decide", b"{", 400, "not JSON"),
        ("/v1/decide", b"\xff\xfe", 400, "not JSON"),
        ("/v1/decide", b'{"subjects":{"user":"\\ud800"}}', 400, r"\ud800 is half of a surrogate pair"),
        ("/v1/decide", b'{"subjects":{"user":"\\udc00x"}}', 400, r"\udc00 is half of a surrogate pair"),
        ("/v1/decide", b'{"subjects":{"user":"\xed\xa0\x80"}}', 400, "surrogate pair"),
        ("/v1/decide", b'{"subjects":{"user":"\xff\xfe"}}', 400, "Invalid UTF-8"),
        ("/v1/decide", b'{"subjects":{"user":"a"},"subjects":{"user":"b"}}', 422, "'subjects': this name stands twice"),
        ("/v1/decide", b'{"subjects":{"user":"a","us\\u0065r":"b"}}', 422, "'user': this name stands twice"),
        ("/v1/refund", b'{"idempotency_key":"a","idempotency_key":"b"}', 422, "'idempotency_key': this name"),
        ("/v1/decide", {"scenario": "login", "subjects": {"ip": "2001:db8::1%eth0"}}, 422, "IPv4 or IPv6"),
        ("/v1/decide", b"[" * 16_000, 422, "Expected `object`"),
        ("/v1/decide", [], 422, "Expected `object`"),
        ("/v1/decide", {}, 422, "subjects"),
        ("/v1/decide", {"subjects": {}}, 422, "length >= 1"),
        ("/v1/decide", CLAIM | {"scenari": "x"}, 422, "scenari"),
        ("/v1/decide", CLAIM | {"scenario": "coupons"}, 422, "coupon_claim, spin, web"),
        ("/v1/decide", CLAIM | {"cost": -1}, 422, "cost"),
        ("/v1/decide", CLAIM | {"cost": 1.5}, 422, "cost"),
        ("/v1/decide", CLAIM | {"subjects": {"user": "a\nb"}}, 422, "cannot be printed"),
        ("/v1/decide", CLAIM | {"subjects": {"user": "x" * 129}}, 422, "128 bytes"),
        ("/v1/decide", b"x" * (MAX_BODY_BYTES + 1), 413, "16,384"),
        ("/v1/decide?" + "&".join("abcdefghi"), CLAIM, 400, "8 parameters"),
        ("/v1/refund", {"idempotency_key": ""}, 422, "length >= 1"),
        ("/v1/outcomes", {"label": "nice", "subjects": {"user": "1"}}, 422, "nice"),
        ("/v1/outcomes", {"label": "payment_ok", "subjects": {"ip": "home"}}, 422, "IPv4 or IPv6"),
        ("/v1/nothing", {}, 404, "docs/gateways"),
        ("/v1/subjects/user:1", {}, 405, "wanted GET"),
    ],
)
async def test_wrong_calls_are_problems(client: Client, target: str, body: object, status: int, says: str) -> None:
    """A call that cannot be answered is a problem document that says what was wanted."""
    got = await client.post(target, body)
    assert (got.status, got.json["status"], got.headers["content-type"]) == (status, status, "application/problem+json")
    assert says in got.json["detail"]


async def test_a_body_that_says_it_is_large_is_not_read(client: Client) -> None:
    """The length that is told is enough to refuse, and the connection is closed behind it."""
    got = await client.post("/v1/decide", CLAIM, {"content-length": "9" * 30})
    assert (got.status, got.headers["connection"]) == (413, "close")


async def test_the_zone_of_an_address(client: Client, published: Published) -> None:
    """A link-local address counts without its zone, as behind a gateway; other addresses have none."""
    zoned, bare = {"subjects": {"ip": "fe80::1%eth0"}}, {"subjects": {"ip": "fe80::1"}}
    assert (await client.post("/v1/decide", zoned | {"scenario": "login"})).json["action"] == "allow"
    assert (await client.post("/v1/decide", bare | {"scenario": "login"})).json["action"] == "challenge"
    behind = {"x-original-method": "GET", "x-original-uri": "/login", "x-forwarded-for": "fe80::1%eth0"}
    await client.get("/auth/nginx?scenario=login", behind)
    assert {decision.subjects["ip"] for decision in published} == {"fe80::1"}
    assert (await client.post("/v1/outcomes", zoned | {"label": "payment_ok"})).status == 202
    assert published[-1].subjects == {"ip": "fe80::1"}


async def test_the_secret(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """With a secret every call but the probes must bring it, once; to a gateway its lack is a refusal, and told."""
    client = Client(desk, secret="hunter2")  # noqa: S106 - made up
    assert (await client.post("/v1/decide", CLAIM)).status == 401
    assert (await client.post("/v1/decide", CLAIM, {"x-penaltybox-secret": "hunter"})).status == 401
    assert (await client.post("/v1/decide", CLAIM, {"x-penaltybox-secret": "hunter2"})).status == 200
    both = [("x-penaltybox-secret", "hunter2"), ("x-penaltybox-secret", "x")]
    assert (await client.call("GET", "/v1/subjects/user:1", both)).status == 401
    for path in ("/auth/nginx", "/auth/forward", "/auth/envoy/a") * 2:
        got = await client.get(path, {"x-original-method": "GET", "x-original-uri": "/"})
        assert (got.status, got.headers["x-penaltybox-status"], got.headers["x-penaltybox-action"]) == (
            403,
            "403",
            "deny",
        )
        assert b"secret" not in got.body, "it is the client who reads this"
    (line,) = caplog.records
    assert "x-penaltybox-secret: wanted the service's secret" in line.message
    assert [(await client.get(path)).status for path in ("/healthz", "/readyz")] == [200, 200]


async def test_an_error_is_told_without_its_text(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever goes wrong inside is 500 without details, and logged; a store that is away is 503."""

    class Broken:
        error: Exception = KeyError("a secret")

        async def decide(self, _: Request) -> Verdict:
            raise self.error

        async def refund(self, _: str) -> bool:
            raise self.error

    desk._decider = broken = Broken()
    got = await Client(desk).post("/v1/decide", CLAIM)
    assert (got.status, b"a secret" in got.body) == (500, False)
    assert "a secret" in caplog.text
    broken.error = StoreUnavailable("Redis is away")
    assert (await Client(desk).post("/v1/refund", {"idempotency_key": "k"})).status == 503


async def test_before_and_after(desk: Desk) -> None:
    """While it starts or stops the service is alive and decides nothing."""
    client = Client(desk)
    client.application._desk = None
    assert (await client.get("/healthz")).status == 200
    assert [(await client.post(path, CLAIM)).status for path in ("/v1/decide", "/readyz")] == [503, 503]


@pytest.mark.parametrize(
    "more",
    [
        {"route": "\u202e"},
        {"route": "GET /\n"},
        {"attrs": {"a": "\x1b[31m"}},
        {"attrs": {"\x00": "a"}},
        {"id": "\u200b"},
        {"attrs": {"a": "\u00e9" * 65}},
    ],
)
async def test_what_would_be_a_dead_letter_is_not_decided(
    client: Client, published: Published, more: dict[str, Any]
) -> None:
    """A text that workers refuse is told to the program that sent it: no client's request passes without its record."""
    assert (await client.post("/v1/decide", CLAIM | more)).status == 422
    outcome = {"label": "payment_ok", "subjects": {"user": "10086"}, "ref": "a\x1b"}
    assert (await client.post("/v1/outcomes", outcome)).status == 422
    assert published == []
