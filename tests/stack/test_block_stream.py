"""`GET /v1/blocks/stream` of a real decision service: who may read it, how it ends, what comes after a restart."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from redis import Redis

from penaltybox.contracts.settings import Settings
from tests.stack.decision_service import DecisionService, fetch
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penaltybox.embedded.redis_server import RedisServer

pytestmark = pytest.mark.stack
STREAM = "/v1/blocks/stream"
SECRET = {"X-Penaltybox-Secret": "a-long-secret-of-ours"}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("limits: {coupon_claim: {user: [{name: daily, limit: 40, window: 1d}]}}\n")
    return path


@pytest.fixture
def settings(redis_server: RedisServer, fresh_prefix: str) -> Settings:
    return Settings(redis_url=redis_server.url, redis_prefix=fresh_prefix, kafka="127.0.0.1:1")


@contextmanager
def listening(service: DecisionService, since: str = "") -> Iterator[Iterator[dict[str, Any]]]:
    """The lines of a stream that goes on."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    try:
        connection.request("GET", f"{STREAM}?since={since}")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("content-type")) == (200, "application/x-ndjson")
        yield (json.loads(line) for line in iter(answer.readline, b""))
    finally:
        connection.close()


def test_changes_come_as_they_happen_and_a_restart_forces_a_resync(
    settings: Settings, policy: Path, redis_server: RedisServer
) -> None:
    """A ban and its end as they happen; SIGTERM ends the stream at once; the old cursor brings the whole list."""
    prefix = settings.redis_prefix
    service = DecisionService(settings, policy)
    with Redis.from_url(redis_server.url) as redis, service, listening(service) as lines:
        assert [next(lines)["op"] for _ in range(3)] == ["resync", "synced", "beat"]
        for change in ("add", "remove"):
            key = f"{prefix}:{{ip:192.0.2.1}}:block"
            if change == "add":
                redis.set(key, '{"until":null,"rung":"permanent","rule":"r","penalty":"p"}')
            else:
                redis.delete(key)
            at = time.monotonic()
            redis.publish(f"{prefix}:events", "ip:192.0.2.1")
            line = next(line for line in lines if line["op"] != "beat")
            assert time.monotonic() - at < 3  # milliseconds, on a machine that is not busy
            assert (line["op"], line["name"]) == (change, "ip:192.0.2.1")
        cursor = line["cursor"]
        assert [one["op"] for one in poll(service, cursor)] == ["beat"]
        started = time.monotonic()
        code, log = service.stop()
        assert time.monotonic() - started < 15  # calls under way get twenty seconds
        assert (code, "ERROR" in log) == (0, False), log
        assert [one["op"] for one in lines][-1] == "again"
    with DecisionService(settings, policy) as again:
        assert [one["op"] for one in poll(again, cursor)] == ["resync", "synced"]


def poll(service: DecisionService, cursor: str) -> list[dict[str, Any]]:
    body = fetch(service.port, f"{STREAM}?since={cursor}&wait=0").body
    return [json.loads(line) for line in body.splitlines()]


def test_who_may_read_it(settings: Settings, policy: Path) -> None:
    """The service's secret is wanted as elsewhere; a mistaken call is told; a reader that leaves is let go."""
    with DecisionService(
        msgspec.structs.replace(settings, serve_secret=SECRET["X-Penaltybox-Secret"]), policy
    ) as service:
        assert fetch(service.port, STREAM).status == 401
        for wait in ("soon", "61", "-1", "0.5", "1e9", "nan", "00000000061", "9" * 400):
            assert fetch(service.port, f"{STREAM}?wait={wait}", headers=SECRET).status == 400
        assert fetch(service.port, STREAM, method="POST", headers=SECRET).status == 405
        got = fetch(service.port, f"{STREAM}?wait=1", headers=SECRET)
        assert (got.status, got.headers["cache-control"]) == (200, "no-store")
        for _ in range(20):
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
            connection.request("GET", STREAM, headers=SECRET)
            assert connection.getresponse().readline()
            connection.close()
        code, log = service.stop()
        assert (code, "ERROR" in log) == (0, False), log


def test_without_redis_it_says_so(settings: Settings, policy: Path) -> None:
    """503 with a sentence, as long as changes cannot be heard."""
    with DecisionService(msgspec.structs.replace(settings, redis_url="redis://127.0.0.1:1"), policy) as service:
        got = block_until(lambda: fetch(service.port, f"{STREAM}?wait=0"), 20)
        assert (got.status, json.loads(got.body)["detail"]) == (
            503, "Redis does not answer: changes of blocks are not heard.",
        )  # fmt: skip
