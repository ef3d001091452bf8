"""`penaltybox enforce` with HAProxy, nginx and Apache themselves: what is blocked is denied, what is lifted is not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.settings import Settings
from tests.ports import free_port
from tests.stack.decision_service import DecisionService, fetch
from tests.stack.enforcers import LUA_MODULES, PROGRAMS, Apache, Enforcer, Haproxy, NginxList, NginxLua, answers
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penaltybox.embedded.redis_server import RedisServer

pytestmark = pytest.mark.stack
EACH = [pytest.param(kind, marks=pytest.mark.programs(kind.program), id=kind.program) for kind in PROGRAMS]
Program = Haproxy | NginxList | Apache


class World:
    """The keys of one test."""

    def __init__(self, url: str, prefix: str) -> None:
        self.redis: Redis = Redis.from_url(url)
        self.prefix = prefix
        self.settings = Settings(redis_url=url, redis_prefix=prefix, kafka="127.0.0.1:1")

    def block(self, address: str, until_ms: int | None = None, kind: str = "block") -> None:
        value = f'{{"until":{"null" if until_ms is None else until_ms},"rung":"1h","rule":"r","penalty":"p"}}'
        self.redis.set(f"{self.prefix}:{{ip:{address}}}:{kind}", value, pxat=until_ms)
        self._say(f"ip:{address}")

    def lift(self, address: str) -> None:
        self.redis.delete(f"{self.prefix}:{{ip:{address}}}:block")
        self._say(f"ip:{address}")

    def list_range(self, name: str, where: str) -> None:
        self.redis.hset(f"{self.prefix}:{name}", where, '{"until":null}')
        self._say("#lists")

    def _say(self, message: str) -> None:
        self.redis.publish(f"{self.prefix}:events", message)


@pytest.fixture
def world(redis_server: RedisServer, fresh_prefix: str) -> Iterator[World]:
    made = World(redis_server.url, fresh_prefix)
    yield made
    made.redis.close()


@pytest.fixture(params=EACH)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    with request.param(tmp_path / "program", 1) as running:
        yield running


def test_what_is_blocked_is_denied_and_what_is_lifted_is_not(program: Program, world: World, tmp_path: Path) -> None:
    """With HAProxy within two seconds; ranges too, without what is allowlisted in them; the others are let through."""
    world.block("127.0.0.50")
    with Enforcer(world.settings, tmp_path, *program.enforce()) as enforcer:
        answers(program, "127.0.0.50", program.denies)
        started = time.monotonic()
        world.block("127.0.0.51")
        answers(program, "127.0.0.51", program.denies)
        assert time.monotonic() - started < program.within_s
        started = time.monotonic()
        world.lift("127.0.0.51")
        answers(program, "127.0.0.51", 200)
        assert time.monotonic() - started < program.within_s
        world.list_range("allow", "127.8.0.64/26")
        world.list_range("cidr", "127.8.0.0/24")
        for last, status in ((1, program.denies), (128, program.denies), (64, 200), (127, 200)):
            answers(program, f"127.8.0.{last}", status)  # a server that reloads answers with either list for a moment
        assert fetch(program.port, source="127.0.0.52").status == 200
        assert enforcer.stop() == 0, enforcer.log


@pytest.mark.programs("haproxy")
def test_an_outage_changes_nothing_until_blocks_run_out(world: World, tmp_path: Path) -> None:
    """Over the feed of a service: it goes, and an enforcer that is started anew while it is away knows what it knew."""
    (policy := tmp_path / "policy.yaml").write_text("rules: {}\n")
    port = free_port()
    with Haproxy(tmp_path / "program", 1) as program:
        feed = [*program.enforce(), "--from", f"http://127.0.0.1:{port}"]
        with DecisionService(world.settings, policy, port=port), Enforcer(world.settings, tmp_path, *feed) as enforcer:
            world.block("127.0.0.61")
            answers(program, "127.0.0.61", program.denies, 60)
            ends = now_ms() + 25_000
            world.block("127.0.0.60", ends)
            answers(program, "127.0.0.60", program.denies)
            assert enforcer.stop() == 0, enforcer.log
        with Enforcer(world.settings, tmp_path, *feed) as enforcer:
            block_until(lambda: "the feed is asked again" in enforcer.log, 60, "an outage")
            assert fetch(program.port, source="127.0.0.61").status == program.denies
            answers(program, "127.0.0.60", 200, 60)
            assert now_ms() >= ends
            world.lift("127.0.0.61")
            with DecisionService(world.settings, policy, port=port):
                answers(program, "127.0.0.61", 200, 60)


@pytest.mark.programs("haproxy")
def test_a_new_haproxy_gets_everything(world: World, tmp_path: Path) -> None:
    """What was changed while HAProxy was away, it has when it is back; many go in batches; challenges are told."""
    with (
        Haproxy(tmp_path / "program", 1) as program,
        Enforcer(world.settings, tmp_path, *program.enforce()) as enforcer,
    ):
        for number in range(1, 1500):
            world.redis.set(f"{world.prefix}:{{ip:10.9.{number >> 8}.{number & 255}}}:block", '{"until":null}')
        world.block("127.0.0.70")
        answers(program, "127.0.0.70", program.denies)
        program.stop()
        world.lift("127.0.0.70")
        world.block("127.0.0.71")
        world.block("127.0.0.72", kind="challenge")
        block_until(lambda: "not enforced" in enforcer.log, 60, "a failure")
        program.__enter__()
        answers(program, "127.0.0.71", program.denies)
        answers(program, "127.0.0.70", 200)
        block_until(lambda: b"challenge" in fetch(program.port, source="127.0.0.72").body, 60, "a challenge")
        forged = fetch(program.port, source="127.0.0.73", headers={"X-Penaltybox-Action": "challenge"})
        assert b"challenge" not in forged.body


@pytest.mark.programs("nginx", *LUA_MODULES)
def test_the_openresty_snippet_denies(world: World, tmp_path: Path, redis_server: RedisServer) -> None:
    """In nginx with its Lua module: for a time and for good, IPv6 by its /64, a user; lifted within a second or so."""
    user = ("USER_HEADER = nil", 'USER_HEADER = "X-User"')
    with NginxLua(tmp_path / "program", redis_server.url, world.prefix, user) as program:
        assert fetch(program.port, source="127.0.0.80").status == 200
        world.block("127.0.0.81", now_ms() + 60_000)
        denied = fetch(program.port, source="127.0.0.81")
        assert (denied.status, 50 <= int(denied.headers["retry-after"]) <= 60) == (429, True)
        world.block("127.0.0.82")
        assert fetch(program.port, source="127.0.0.82").status == 403
        world.block("127.0.0.82", kind="challenge")
        world.lift("127.0.0.82")
        answers(program, "127.0.0.82", 200)
        assert fetch(program.port, source="::1", host="::1").status == 200
        world.block("::/64")
        block_until(
            lambda: fetch(program.port, source="::1", host="::1").status == 403, what="an IPv6 client to be denied"
        )
        world.redis.set(f"{world.prefix}:{{user:a%2Fb}}:block", '{"until":null}')
        for name, status in (("a/b", 403), ("a", 200), ("127.0.0.81", 200)):
            assert fetch(program.port, source="127.0.0.83", headers={"X-User": name}).status == status


@pytest.mark.programs("nginx", *LUA_MODULES)
def test_the_openresty_snippet_without_redis(world: World, tmp_path: Path) -> None:
    """Requests pass, or are refused if it is told so."""
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    refuses = ('WHEN_AWAY = ""', "WHEN_AWAY = '{\"until\":null}'")
    for changes, status in (((), 200), ((refuses,), 403)):
        with NginxLua(tmp_path / str(status), nowhere, world.prefix, *changes) as program:
            assert fetch(program.port, source="127.0.0.84").status == status
