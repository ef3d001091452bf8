"""`penaltybox serve` as a process: what it listens to, bounds, tells and leaves behind."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest
from aiokafka import AIOKafkaConsumer
from redis import Redis

from penaltybox.cli.setup import create_topics
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.producers.service.server import MAX_HEAD_BYTES, exposure
from tests.redis_servers import free_port
from tests.servers import fresh_name
from tests.stack.decision_service import ROOT, DecisionService, fetch
from tests.waiting import block_until

if TYPE_CHECKING:
    from penaltybox.embedded.redis_server import RedisServer
    from tests.servers import AnyBroker

pytestmark = pytest.mark.stack
POLICY = """
limits: {coupon_claim: {user: [{name: daily, limit: 40, window: 1d}]}}
scenarios: {coupon_claim: {routes: [POST /coupons], deadline: 1s}}
"""
CLAIM = json.dumps({"scenario": "coupon_claim", "subjects": {"user": "10086"}}).encode()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def settings(redis_server: RedisServer, fresh_prefix: str) -> Settings:
    return Settings(redis_url=redis_server.url, redis_prefix=fresh_prefix, kafka="127.0.0.1:1")


def claims(service: DecisionService, count: int) -> list[int]:
    return [fetch(service.port, "/v1/decide?http=1", method="POST", body=CLAIM).status for _ in range(count)]


def test_several_processes_count_together(settings: Settings, policy: Path) -> None:
    """Three processes answer on one port, the quota is one; one that is killed is replaced; SIGTERM ends all with 0."""
    with DecisionService(settings, policy, "--processes", "3") as service:
        parent = psutil.Process(service.process.pid)
        children = block_until(lambda: len(found := workers(parent)) == 3 and found, 20, "three processes")
        assert claims(service, 20) == [200] * 20
        children[0].kill()
        block_until(lambda: len(workers(parent)) == 3 and children[0] not in workers(parent), 30, "a new process")
        assert claims(service, 21) == [200] * 20 + [429]
        code, log = service.stop()
    assert (code, [child for child in children if child.is_running()]) == (0, []), log


def test_no_process_outlives_the_first(settings: Settings, policy: Path) -> None:
    """When the process that was started is killed, the others stop by themselves and the port is free."""
    with DecisionService(settings, policy, "--processes", "2") as service:
        parent = psutil.Process(service.process.pid)
        children = block_until(lambda: len(found := workers(parent)) == 2 and found, 20, "two processes")
        claims(service, 1)
        service.process.kill()
        assert psutil.wait_procs(children, timeout=20)[1] == []
        assert not listens(service.port)


def workers(parent: psutil.Process) -> list[psutil.Process]:
    """Its children that answer calls (multiprocessing has one more, which does not)."""
    found = []
    for child in parent.children():
        with suppress(psutil.Error):  # it has just ended
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_a_call_under_way_is_answered_at_the_end(settings: Settings, policy: Path, private_redis: RedisServer) -> None:
    """A call that waits for Redis when SIGTERM comes still gets its verdict; then the process ends with 0."""
    policy.write_text(POLICY.replace("1s", "9s"))
    settings = msgspec.structs.replace(settings, redis_url=private_redis.url)
    with DecisionService(settings, policy) as service:
        assert claims(service, 1) == [200]
        private_redis.pause()
        try:
            with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
                head = f"POST /v1/decide HTTP/1.1\r\nhost: x\r\ncontent-length: {len(CLAIM)}\r\n\r\n"
                connection.sendall(head.encode() + CLAIM)
                process = psutil.Process(service.process.pid)
                block_until(lambda: "ESTABLISHED" in {one.status for one in process.net_connections()}, 10)
                block_until(lambda: unread(service.port) == 0, 10, "a call that has been read")
                service.process.send_signal(signal.SIGTERM)
                block_until(lambda: not listens(service.port), 10, "a closed port")
                private_redis.resume()
                answer = connection.makefile("rb").read()
        finally:
            private_redis.resume()
        assert b'"action":"allow"' in answer
        assert service.process.wait(20) == 0


def unread(port: int) -> int:
    """Bytes that wait in the receive queues of the server's connections."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return sum(int(row[4].split(":")[1], 16) for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01")


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_headers_without_end_are_cut_off(settings: Settings, policy: Path) -> None:
    """A caller that goes on sending headers gets 431 at the bound, not the server's memory; others are answered."""
    with DecisionService(settings, policy) as service, socket.create_connection(("127.0.0.1", service.port)) as caller:
        caller.settimeout(10)
        caller.sendall(b"GET /healthz HTTP/1.1\r\n")
        block_until(lambda: unread(service.port) == 0, what="a first piece that has been read")
        sent, answer = 0, b""
        try:
            while not answer and sent < 50 * MAX_HEAD_BYTES:
                caller.sendall(b"x-a: " + b"y" * 1000 + b"\r\n")
                sent += 1007
                caller.setblocking(False)
                with suppress(BlockingIOError):
                    answer = caller.recv(1000)
                caller.settimeout(10)
        except (ConnectionResetError, BrokenPipeError):
            answer = answer or b"closed"
        assert answer.startswith((b"HTTP/1.1 431", b"closed"))
        assert sent < 20 * MAX_HEAD_BYTES
        assert fetch(service.port, "/healthz").status == 200


def test_large_but_finite_headers_pass(settings: Settings, policy: Path) -> None:
    """Many cookies are no attack: what gateways let through is answered."""
    headers = {f"x-{number}": "y" * 1000 for number in range(30)}
    with DecisionService(settings, policy) as service:
        assert fetch(service.port, "/healthz", headers=headers).status == 200


def test_a_connection_is_used_again(settings: Settings, policy: Path) -> None:
    """Calls follow each other on one connection, upgrades, refusals and unread bodies among them; noise gets 400."""
    with DecisionService(settings, policy) as service:
        caller = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
        caller.connect()
        used = caller.sock
        upgrade = {"connection": "Upgrade", "upgrade": "websocket"}  # gateways ask about those too
        for method, path, headers, status in (
            ("GET", "/healthz", upgrade, 200),
            ("POST", "/v1/none", {}, 404),
            ("HEAD", "/healthz", {}, 200),
        ):
            caller.request(method, path, None if headers else b"x" * 100_000, headers)
            answer = caller.getresponse()
            assert (answer.status, answer.read() != b"") == (status, method != "HEAD")
        assert caller.sock is used
        used.sendall(b"\x16\x03\x01 what\r\n\r\n")
        assert used.recv(1000).startswith(b"HTTP/1.1 400")
        caller.close()


async def test_what_happens_is_published(
    broker: AnyBroker, redis_server: RedisServer, policy: Path, fresh_prefix: str
) -> None:
    """Decisions and outcomes of the service are on Kafka when it has stopped."""
    settings = Settings(
        redis_url=redis_server.url, redis_prefix=fresh_prefix, kafka=broker.bootstrap, topic_prefix=fresh_name("serve")
    )
    await create_topics(settings)
    with DecisionService(settings, policy) as service:
        assert claims(service, 2) == [200, 200]
        body = json.dumps({"label": "payment_ok", "subjects": {"user": "10086"}, "ref": "order-1"}).encode()
        assert fetch(service.port, "/v1/outcomes", method="POST", body=body).status == 202
        assert service.stop()[0] == 0
    topics = Topics.named(settings.topic_prefix)
    decisions, (outcome,) = await records(settings, topics.decisions, 2), await records(settings, topics.outcomes, 1)
    assert [(one["action"], one["scenario"]) for one in decisions] == [("allow", "coupon_claim")] * 2
    assert all(one["source"].startswith("serve/") for one in decisions)
    assert (outcome["label"], outcome["ref"]) == ("payment_ok", "order-1")


async def records(settings: Settings, topic: str, count: int) -> list[dict[str, Any]]:
    """The first records of a topic."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=settings.kafka, auto_offset_reset="earliest")
    async with consumer, asyncio.timeout(20):
        return [json.loads((await consumer.getone()).value) for _ in range(count)]


def test_refunds(settings: Settings, policy: Path) -> None:
    """What a request with a key took is given back once."""
    policy.write_text(POLICY.replace("limit: 40", "limit: 1"))
    keyed = json.dumps(json.loads(CLAIM) | {"idempotency_key": "order-1"}).encode()
    with DecisionService(settings, policy) as service:
        assert fetch(service.port, "/v1/decide?http=1", method="POST", body=keyed).status == 200
        assert claims(service, 1) == [429]
        back = [
            json.loads(fetch(service.port, "/v1/refund", method="POST", body=b'{"idempotency_key":"order-1"}').body)
            for _ in range(2)
        ]
        assert back == [{"refunded": True}, {"refunded": False}]
        assert claims(service, 1) == [200]


def test_another_policy_without_a_restart(settings: Settings, policy: Path) -> None:
    """SIGHUP puts the changed file in force; one with a mistake is told and changes nothing."""

    def version() -> str:
        return str(json.loads(fetch(service.port, "/readyz").body)["policy"])

    with DecisionService(settings, policy) as service:
        before = version()
        policy.write_text(POLICY.replace("limit: 40", "limit: 1"))
        service.process.send_signal(signal.SIGHUP)
        block_until(lambda: version() != before, what="another policy")
        assert claims(service, 2) == [200, 429]
        policy.write_text("limits: []")
        service.process.send_signal(signal.SIGHUP)
        block_until(lambda: "the policy stays as it was" in service.log, what="a complaint")
        assert claims(service, 1) == [429]


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penaltybox", "serve", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_a_mistake_is_one_json_line(tmp_path: Path, private_redis: RedisServer) -> None:
    """A wrong setting, policy, port or login is one JSON line on standard error and exit code 2."""
    with Redis.from_url(private_redis.url) as redis:
        redis.config_set("requirepass", "a secret")
    bad = tmp_path / "bad.yaml"
    bad.write_text("limits: {web: {ip: [{name: a, limit: 0, window: 1m}]}}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for done, says in (
            (serve(PENALTYBOX_SERVE_PORT="x"), "PENALTYBOX_SERVE_PORT"),
            (serve(PENALTYBOX_REDIS_URL="redis://:secret@[::1/0"), "PENALTYBOX_REDIS_URL"),
            (serve("--policy", str(bad)), "limits.web.ip[0].limit"),
            (serve("--policy", str(tmp_path / "none.yaml")), "cannot be read"),
            (serve("--port", str(taken.getsockname()[1])), "in use"),
            (serve("--host", "192.0.2.1"), "192.0.2.1"),
            (serve("--processes", "2", PENALTYBOX_REDIS_URL=private_redis.url), "redis_password"),
            (serve(PENALTYBOX_KAFKA_SECURITY_PROTOCOL="SSL", PENALTYBOX_KAFKA_CA="none.pem"), "TLS files"),
        ):
            line = json.loads(done.stderr)
            assert (done.returncode, line["level"], says in line["message"]) == (2, "ERROR", True), line
            assert "secret" not in done.stderr


def test_it_says_where_it_listens(settings: Settings, policy: Path) -> None:
    """One line at the start, and none about calls."""
    with DecisionService(settings, policy) as service:
        assert claims(service, 2) == [200, 200]
        log = service.stop()[1]
    (line,) = [line for line in log.splitlines() if "penaltybox.service" in line]
    assert f"http://127.0.0.1:{service.port}" in line


@pytest.mark.parametrize(
    ("host", "secret", "says"),
    [
        ("127.0.0.1", "", ""),
        ("::1", "", ""),
        ("localhost", "", ""),
        ("::", "s", "whoever has the secret"),
        ("gateway.internal", "s", "other machines"),
    ],
)
def test_listening_elsewhere_is_told(host: str, secret: str, says: str) -> None:
    """An address that other machines reach is a warning."""
    warning = exposure(host, secret)
    assert says in warning
    assert bool(warning) == bool(says)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "gateway.internal", ""])  # noqa: S104 - nothing is bound here
def test_listening_elsewhere_wants_a_secret(host: str) -> None:
    """Without a secret it starts only if somebody said so, and says what that means."""
    with pytest.raises(ConfigurationError, match="PENALTYBOX_SERVE_WITHOUT_SECRET=true"):
        exposure(host, "")
    assert "whoever reaches it can use up anybody's quota" in exposure(host, "", without_secret=True)


def test_the_command_does_not_open_a_port_to_everybody() -> None:
    """`serve --host 0.0.0.0` without more ends with a sentence, before it listens."""
    environment = {**os.environ, "PENALTYBOX_REDIS_URL": "redis://127.0.0.1:1/0", "PENALTYBOX_SERVE_SECRET": ""}
    command = [sys.executable, "-m", "penaltybox", "serve", "--host", "0.0.0.0", "--port", "0", "--policy", "default"]  # noqa: S104 - it must not
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "can be reached from other machines" in done.stderr


def test_processes_divide_what_they_grant_without_redis(tmp_path: Path) -> None:
    """With `failure: local` and `local_percent` 50 two processes together grant half a quota, not half of it each."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.replace("deadline: 1s", "deadline: 1s, failure: local"))
    away = Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0", kafka="127.0.0.1:1", local_percent=50)
    with DecisionService(away, path, "--processes", "2") as service, ThreadPoolExecutor(8) as clients:
        parent = psutil.Process(service.process.pid)
        block_until(lambda: len(workers(parent)) == 2, 20, "two processes")

        def granted() -> int:
            return sum(one.count(200) for one in clients.map(lambda _: claims(service, 10), range(8)))

        total = granted()

        def both_have_granted() -> bool:
            nonlocal total
            total += granted()
            return total >= 20

        block_until(both_have_granted, 60, "both processes to have granted their share")
        assert total + granted() + granted() == 20
