"""What gateways ask and are told: each way's own fields, no other's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.producers.service.asgi import Client, Got
    from tests.producers.service.conftest import Published

CLIENT = {"x-forwarded-for": "192.0.2.7"}


def nginx(method: str, target: str) -> dict[str, str]:
    return CLIENT | {"x-original-method": method, "x-original-uri": target}


def forward(method: str, target: str) -> dict[str, str]:
    return CLIENT | {"x-forwarded-method": method, "x-forwarded-uri": target, "x-forwarded-host": "example.org"}


async def asked(client: Client, way: str, method: str, target: str, times: int = 1) -> Got:
    """What the gateway is told at the last of so many requests."""
    for _ in range(times):
        if way == "envoy":
            got = await client.call(method, f"/auth/envoy{target}", CLIENT)
        else:
            headers = nginx(method, target) if way == "nginx" else forward(method, target)
            got = await client.get(f"/auth/{way}", headers)
    return got


WAYS = ["nginx", "forward", "envoy"]


@pytest.mark.parametrize("way", WAYS)
async def test_allowed(client: Client, published: Published, way: str) -> None:
    """200 and no other 2xx (Envoy), the quota, the action; the decision has address, scenario and route template."""
    got = await asked(client, way, "GET", "/shop/12345?q=1")
    assert (got.status, got.body, got.headers["x-penaltybox-action"]) == (200, b"", "allow")
    assert got.headers["ratelimit"] == '"ip:pages";r=2;t=60'
    (decision,) = published
    assert (decision.subjects, decision.scenario, decision.route) == (  # type: ignore[union-attr]
        {"ip": "192.0.2.7"},
        "web",
        "GET /shop/{n}",
    )


@pytest.mark.parametrize("way", ["forward", "envoy"])
async def test_denied(client: Client, way: str) -> None:
    """The gateway gets the client's answer as it is."""
    got = await asked(client, way, "GET", "/", 4)
    assert (got.status, got.headers["content-type"]) == (429, "application/problem+json")
    assert 0 < int(got.headers["retry-after"]) <= 90
    assert got.json["violated-policies"] == ["ip:pages"]


async def test_denied_for_nginx(client: Client) -> None:
    """nginx passes 403 only: status and body stand in fields of one line each."""
    got = await asked(client, "nginx", "GET", "/", 4)
    assert (got.status, got.body, got.headers["x-penaltybox-status"]) == (403, b"", "429")
    body = json.loads(got.headers["x-penaltybox-body"])
    assert (body["status"], body["retry-after"]) == (429, int(got.headers["retry-after"]))


@pytest.mark.parametrize("way", WAYS)
async def test_challenged(client: Client, way: str) -> None:
    """A challenge is a 403 with a type of its own, in the client's language."""
    headers = {"nginx": nginx, "forward": forward}.get(way, lambda *_: CLIENT)("POST", "/login")
    path = "/auth/envoy/login" if way == "envoy" else f"/auth/{way}"
    for _ in range(2):
        got = await client.call("POST", path, headers | {"accept-language": "de"})
    text = got.headers["x-penaltybox-body"] if way == "nginx" else got.body
    assert (got.status, got.headers["x-penaltybox-action"]) == (403, "challenge")
    assert json.loads(text)["detail"] == "Prüfung, bitte"
    assert json.loads(text)["type"] == "urn:problem-type:penaltybox:challenge"
    assert got.headers.get("x-penaltybox-body", "").isascii()


@pytest.mark.parametrize("way", WAYS)
async def test_shadow(client: Client, way: str) -> None:
    """A false success passes the gateway, and only the application behind it is told; no quota gives it away."""
    got = await asked(client, way, "GET", "/spin", 2)
    assert (got.status, got.headers["x-penaltybox-action"]) == (200, "shadow")
    assert not [name for name in got.headers if name.startswith("ratelimit")]


async def test_a_scenario_by_the_gateway(client: Client, published: Published) -> None:
    """The gateway's own address may name the scenario; a client cannot, because its query is not there."""
    await client.get("/auth/nginx?scenario=login", nginx("GET", "/x?scenario=spin"))
    await client.get("/auth/envoy/x?scenario=spin", CLIENT)
    assert [decision.scenario for decision in published] == ["login", "web"]  # type: ignore[union-attr]
    assert (await client.get("/auth/nginx?scenario=logins", nginx("GET", "/"))).status == 403


async def test_another_gateways_fields_are_not_believed(client: Client, published: Published) -> None:
    """What a client could add itself changes nothing: the other way's fields, and Forwarded."""
    more = {"x-original-uri": "/spin", "forwarded": "for=198.51.100.9", "x-original-method": "POST"}
    await client.get("/auth/forward", forward("GET", "/a") | more)
    await client.call("GET", "/auth/envoy/a", CLIENT | more | {"x-forwarded-uri": "/spin"})
    assert [(d.scenario, d.route, d.subjects["ip"]) for d in published] == [("web", "GET /a", "192.0.2.7")] * 2  # type: ignore[union-attr]


SAYS_NOT: list[dict[str, str]] = [{}, {"x-original-method": "GET"}, nginx("GET", "")]


@pytest.mark.parametrize("headers", SAYS_NOT)
async def test_a_gateway_that_does_not_say_what_it_asks(
    client: Client, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """That is a mistake in its configuration: refused, never passed, and the log names the field that is missing."""
    got = await client.get("/auth/nginx", headers)
    assert (got.status, "x-original" in caplog.text, b"x-original" in got.body) == (403, True, False)


async def test_a_gateway_that_does_not_say_who_asks(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Without the client's address all clients would be one, the gateway: refused instead, and told in the log."""
    got = await client.get("/auth/forward", {"x-forwarded-method": "GET", "x-forwarded-uri": "/"})
    assert (got.status, "x-forwarded-for" in caplog.text) == (403, True)


async def test_a_field_that_stands_twice_is_none(client: Client) -> None:
    """A gateway sets its fields; one that only adds its own behind the client's is not configured as it should be."""
    twice = [*nginx("GET", "/a").items(), ("x-original-uri", "/b")]
    assert (await client.call("GET", "/auth/nginx", twice)).status == 403


async def test_only_trusted_proxies_ask(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever is none is refused, and told in the log, not at every call."""
    for _ in range(3):
        assert (await client.get("/auth/nginx", nginx("GET", "/"), peer="203.0.113.1")).status == 403
    assert caplog.text.count("203.0.113.1") == 1
    assert (await client.get("/auth/nginx", nginx("GET", "/"), peer="::ffff:10.1.2.3")).status == 200
