"""How a subject stands, and whether requests are decided, on a real Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis import Redis

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import parse_subject
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.producers.http.requests import RequestReader
from penaltybox.producers.memory import MemoryLimiter
from penaltybox.producers.service.desk import Desk
from penaltybox.producers.service.standing import Standings
from tests.ports import free_port
from tests.producers.service.asgi import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.embedded.redis_server import RedisServer

OPEN = "limits: {web: {ip: [{name: a, limit: 1, window: 1m}]}}"
CLOSED = f"{OPEN}\nscenarios: {{web: {{failure: closed}}}}"


def client_of(standings: Standings, policy_text: str = OPEN) -> Client:
    policy = parse_policy(policy_text)
    desk = Desk(
        MemoryLimiter(policy),
        policy,
        RequestReader(policy),
        canonical=parse_subject,
        standings=standings,
    )
    return Client(desk)


@pytest.fixture
async def standings(redis_server: RedisServer, fresh_prefix: str) -> AsyncIterator[Standings]:
    link = open_link(endpoint_of(Settings(redis_url=redis_server.url)))
    yield Standings(link, fresh_prefix)
    await link.close()


@pytest.fixture
async def away() -> AsyncIterator[Standings]:
    """Nobody listens there."""
    link = open_link(endpoint_of(Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0", redis_timeout_ms=200)))
    yield Standings(link)
    await link.close()


async def test_the_marks_of_a_subject(standings: Standings, redis_server: RedisServer, fresh_prefix: str) -> None:
    """Each mark is told as it is in Redis, under the subject's canonical text; a mark that is no JSON is a text."""
    with Redis.from_url(redis_server.url) as redis:
        redis.set(f"{fresh_prefix}:{{user:a%40b}}:block", '{"until":null,"rung":"permanent"}')
        redis.set(f"{fresh_prefix}:{{user:a%40b}}:trust", b"\xffnot JSON")
    got = await client_of(standings).get("/v1/subjects/user:a@b")
    assert got.json == {
        "subject": "user:a%40b",
        "block": {"until": None, "rung": "permanent"},
        "challenge": None,
        "pass": None,
        "trust": "\ufffdnot JSON",
    }
    assert (await client_of(standings).get("/v1/subjects/ip:2001:db8::1")).json["subject"] == "ip:2001:db8::/64"
    assert (await client_of(standings).get("/v1/subjects/nobody")).status == 422


async def test_ready_with_redis(standings: Standings) -> None:
    """Redis answers: requests are decided, whatever the failure policy says."""
    got = await client_of(standings, CLOSED).get("/readyz")
    assert (got.status, got.json["ready"], got.json["redis"]) == (200, True, "reachable")
    assert got.json["policy"] == parse_policy(CLOSED).version


@pytest.mark.parametrize(("policy", "status", "closed"), [(OPEN, 200, []), (CLOSED, 503, ["web"])])
async def test_ready_without_redis(away: Standings, policy: str, status: int, closed: list[str]) -> None:
    """Without Redis it is ready unless a scenario would only refuse; those are named, and Redis' failure is told."""
    got = await client_of(away, policy).get("/readyz")
    assert (got.status, got.json["closed"]) == (status, closed)
    assert "cannot be reached" in got.json["redis"]
    assert (await client_of(away).get("/v1/subjects/user:1")).status == 503
