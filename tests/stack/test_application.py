"""The whole round: an application's requests, its limiter, Kafka, a worker, Redis, and the application again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Command
from penaltybox.contracts.policy_file import load_policy
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.links.kafka import Connection
from penaltybox.processors.broker import TopicPlan, ensure_topics
from penaltybox.processors.ending import Ending
from penaltybox.processors.engine import Engine
from penaltybox.processors.hand import execute
from penaltybox.processors.penalties import run_penalties
from penaltybox.producers.web.asgi import PenaltyboxMiddleware
from penaltybox.producers.web.opening import Inline
from penaltybox.producers.web.protection import Protection
from penaltybox.sinks.redis_store import RedisSubjectStore
from tests.producers.web.asgi_server import alive
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.stack

POLICY = """
limits:
  claim: {user: [{name: daily, limit: 2, window: 1d}]}
scenarios:
  claim: {routes: [/claim], deadline: 2s}
rules:
  abuse: {on: user, count: 3, window: 10m, then: {level: 5m}}
"""


async def test_an_application_enforces_what_its_own_requests_led_to(
    broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path
) -> None:
    """Who goes on against the limit is blocked on every route, told so, and let in as soon as it is lifted."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    settings = Settings(
        kafka=broker.bootstrap, kafka_partitions=2, kafka_session_timeout_ms=2000, redis_url=redis_server.url,
        redis_prefix=fresh_prefix, topic_prefix=fresh_prefix, policy=str(tmp_path / "policy.yaml"), stop_timeout_s=4,
        spill_dir=str(tmp_path / "spill"),
    )  # fmt: skip
    await ensure_topics(Connection.of(settings), Topics.named(fresh_prefix), TopicPlan.of(settings))
    policy = load_policy(tmp_path / "policy.yaml")
    opening = Inline(settings, policy, source="shop/1")
    app = FastAPI()
    app.add_middleware(PenaltyboxMiddleware, protection=Protection(policy, opening, user=lambda _: "ann"))
    app.add_api_route("/claim", lambda: "claimed")
    app.add_api_route("/other", lambda: "other")
    ending = Ending()
    worker = asyncio.create_task(run_penalties(settings, ending=ending))
    transport = httpx.ASGITransport(app, client=("203.0.113.7", 1))
    async with alive(app), httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
        answers = [await client.get("/claim") for _ in range(5)]
        assert [one.status_code for one in answers] == [200, 200, 429, 429, 429]
        assert answers[-1].json()["type"].endswith("#quota-exceeded")

        async def blocked() -> bool:
            return (await client.get("/other")).status_code == 429

        await wait_until(blocked, 30, "the block")
        refused = await client.get("/other")
        assert refused.json()["type"].endswith("#abnormal-usage-detected")
        assert 0 < int(refused.headers["retry-after"]) <= 300 * 1.25 + 2

        store = RedisSubjectStore(open_link(endpoint_of(settings)), fresh_prefix)
        lift = Command(id="lift", ts=now_ms(), verb="unban", subject="user:ann", actor="alice", reason="a mistake")
        await execute(Engine(policy), store, lift, now_ms())

        async def let_in() -> bool:
            return (await client.get("/other")).status_code == 200

        await wait_until(let_in, 3, "the lift to be seen")
        await store.close()
    ending.request()
    await worker
    assert opening.publisher is not None
    assert await opening.publisher.aclose()
