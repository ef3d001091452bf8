"""Every gateway asks the decision service, with its example configuration, for real."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from penaltybox.contracts.settings import Settings
from tests.servers import fresh_name
from tests.stack.decision_service import DecisionService, fetch
from tests.stack.gateway_servers import GATEWAYS, Caddy, Envoy, Gateway, Nginx, Traefik

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penaltybox.embedded.redis_server import RedisServer

pytestmark = pytest.mark.stack
EACH = [pytest.param(kind, marks=pytest.mark.programs(kind.program), id=kind.program) for kind in GATEWAYS]
POLICY = """
limits:
  login: {ip: [{name: soft, limit: 1, window: 1h, answer: challenge}]}
  spin: {ip: [{name: few, limit: 1, window: 1h, answer: shadow}]}
  web: {ip: [{name: pages, limit: 2, window: 1h}]}
scenarios:
  login: {routes: [POST /login], deadline: 1s}
  spin: {routes: [/spin], deadline: 1s}
  web: {routes: [/], deadline: 1s}
"""
OTHER_CHOICES = [
    pytest.param(Nginx, "error_page 500 502 503 504 = @penaltybox_away;", "", 500, marks=EACH[0].marks, id="nginx"),
    pytest.param(Envoy, "failure_mode_allow: true", "failure_mode_allow: false", 503, marks=EACH[3].marks, id="envoy"),
]
_hosts = count(1)


def settings_for(redis_server: RedisServer, prefix: str) -> Settings:
    """Gateways reach the service from 127.0.0.1, clients come from other addresses."""
    return Settings(
        redis_url=redis_server.url, redis_prefix=prefix, trusted_proxies=("127.0.0.1/32",), kafka="127.0.0.1:1"
    )


@pytest.fixture(scope="module")
def prefix() -> str:
    return fresh_name("gateways")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture(scope="module")
def service(redis_server: RedisServer, prefix: str, policy: Path) -> Iterator[DecisionService]:
    with DecisionService(settings_for(redis_server, prefix), policy) as running:
        yield running


@pytest.fixture(scope="module", params=EACH)
def gateway(
    request: pytest.FixtureRequest, service: DecisionService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    with request.param(tmp_path_factory.mktemp("gateway"), service.port) as running:
        yield running


@pytest.fixture
def client() -> str:
    """An address of this test's own."""
    number = next(_hosts)
    return f"127.7.{number // 250}.{number % 250 + 1}"


def test_allowed_then_denied(gateway: Gateway, client: str) -> None:
    """The application answers; beyond the quota the client gets 429 with Retry-After, quota fields and problem."""
    for left in (1, 0):
        got = fetch(gateway.port, "/page?q=1", source=client)
        assert (got.status, got.body) == (200, b"GET /page?q=1 allow "), gateway.log
        if gateway.quota_passes:
            assert got.headers["ratelimit"].startswith(f'"ip:pages";r={left};t=')
            assert got.headers["ratelimit-policy"] == '"ip:pages";q=2;w=3600'
    got = fetch(gateway.port, "/page", source=client)
    assert (got.status, got.headers["content-type"]) == (429, "application/problem+json")
    assert 0 < int(got.headers["retry-after"]) <= 4500
    assert got.headers["ratelimit"].startswith('"ip:pages";r=0;t=')
    assert got.headers["cache-control"] == "no-store"
    problem = json.loads(got.body)
    assert (problem["status"], problem["retry-after"]) == (429, int(got.headers["retry-after"]))


def test_bodies_pass(gateway: Gateway, client: str) -> None:
    """The service gets no body, the application gets all of it."""
    got = fetch(gateway.port, "/upload", method="POST", source=client, body=b"x" * 100_000)
    assert (got.status, len(got.body)) == (200, 100_000 + len("POST /upload allow "))


def test_a_challenge(gateway: Gateway, client: str) -> None:
    """A challenge is 403 with its problem type."""
    for status in (200, 403):
        got = fetch(gateway.port, "/login", method="POST", source=client)
        assert got.status == status
    assert json.loads(got.body)["type"] == "urn:problem-type:penaltybox:challenge"


@pytest.mark.parametrize(("until", "status"), [("4102444800000", 429), ("null", 403)])
def test_blocked(
    gateway: Gateway, client: str, prefix: str, redis_server: RedisServer, until: str, status: int
) -> None:
    """A blocked address is refused on every path: for a time with Retry-After, for good with 403."""
    with Redis.from_url(redis_server.url) as redis:
        redis.set(f"{prefix}:{{ip:{client}}}:block", f'{{"until":{until},"rung":"1h"}}')
    got = fetch(gateway.port, "/spin", source=client)
    assert (got.status, "retry-after" in got.headers) == (status, until != "null")
    assert json.loads(got.body)["type"].endswith("#abnormal-usage-detected")


def test_a_false_success(gateway: Gateway, client: str) -> None:
    """The client sees a success like the first one; the application is told, whatever the client says."""
    first, second = (
        fetch(gateway.port, "/spin", source=client, headers={"X-Penaltybox-Action": "allow"}) for _ in range(2)
    )
    assert (first.body, second.body) == (b"GET /spin allow ", b"GET /spin shadow ")
    assert set(first.headers) == set(second.headers)


def test_a_forged_chain_changes_nothing(gateway: Gateway, client: str) -> None:
    """Whatever address or path a client claims, what its gateway sees counts."""
    claims = [
        {"X-Forwarded-For": "198.51.100.1"},
        {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=198.51.100.2", "X-Real-IP": "198.51.100.3"},
        {
            "X-Original-URI": "/spin",
            "X-Original-Method": "POST",
            "X-Forwarded-Uri": "/spin",
            "X-Forwarded-Method": "PUT",
        },
    ]
    statuses = [fetch(gateway.port, "/a", source=client, headers=claim).status for claim in claims]
    assert statuses == [200, 200, 429]


def test_a_disguised_path_is_the_same(gateway: Gateway, client: str) -> None:
    """Percent signs, dots and doubled slashes don't lead around a scenario."""
    paths = ["/login", "/%6cogin", "//login", "/x/../login", "/./login?a=/"]
    assert [fetch(gateway.port, path, method="POST", source=client).status for path in paths][1:] == [403] * 4


def test_ipv6(gateway: Gateway, prefix: str, redis_server: RedisServer) -> None:
    """A client over IPv6 is counted by its own address."""
    with Redis.from_url(redis_server.url) as redis:  # the gateway before had the same client
        redis.delete(*redis.keys(f"{prefix}:{{ip:::/64}}:l:*"), "none")
    statuses = [fetch(gateway.port, host="::1", source="::1").status for _ in range(3)]
    assert statuses == [200, 200, 429]


@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
def test_the_applications_own_refusals_stay(gateway: Gateway, client: str, status: int) -> None:
    """What the application refuses itself is not taken for the service's answer."""
    got = fetch(gateway.port, f"/status/{status}", source=client)
    assert (got.status, got.body) == (status, f"GET /status/{status} allow ".encode())


@pytest.mark.parametrize("kind", EACH)
def test_the_service_is_down(kind: type[Gateway], tmp_path: Path, client: str) -> None:
    """What the page of the gateway says about it is so."""
    with kind(tmp_path, 1) as alone:
        assert fetch(alone.port, "/", source=client).status == kind.when_down, alone.log


def test_the_service_hangs(gateway: Gateway, service: DecisionService, client: str) -> None:
    """A service that does not answer is as one that is down, after a quarter of a second."""
    service.freeze()
    try:
        with suppress(TimeoutError):  # Traefik waits 30 seconds, and nothing can change it
            got = fetch(gateway.port, "/", source=client, patience_s=3)
            assert got.status == (504 if isinstance(gateway, Caddy) else gateway.when_down)
            assert not isinstance(gateway, Traefik)
    finally:
        service.thaw()


@pytest.mark.parametrize(("kind", "old", "new", "status"), OTHER_CHOICES)
def test_the_other_choice(kind: type[Gateway], old: str, new: str, status: int, tmp_path: Path, client: str) -> None:
    """The line that the example names turns letting pass into refusing."""
    with kind(tmp_path, 1, (old, new)) as alone:
        assert fetch(alone.port, "/", source=client).status == status


@pytest.mark.programs("nginx")
def test_nobody_asks_from_outside(service: DecisionService, tmp_path: Path, client: str) -> None:
    """nginx' location that asks is its own: a client gets 404 for it."""
    with Nginx(tmp_path, service.port) as nginx:
        assert fetch(nginx.port, "/-/penaltybox", source=client).status == 404
