"""The rights of a limiter's user, as docs/keys.md has them: enough for all its work, and no more."""

from __future__ import annotations

import re
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.keyspace import slot_of
from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.producers.feed.feed import Feed
from penaltybox.sinks.blocklist import Blocklist
from tests.producers.limiters import policy, request, rig_on
from tests.redis_servers import BINARIES, CLUSTERING, Cluster, Server, single

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[2] / "docs" / "keys.md").read_text(encoding="utf-8")
LIMITS = """
    user: [{name: a, limit: 5, window: 1h, algorithm: sliding_window}]
    device: [{name: a, limit: 5, window: 1h, algorithm: sliding_window_counter}]
    ip: [{name: a, limit: 5, window: 1h, algorithm: fixed_window}]
    tenant: [{name: a, limit: 5, window: 1h, algorithm: token_bucket}]
    shop: [{name: a, limit: 5, window: 1h, algorithm: leaky_bucket}]
    user+device: [{name: a, limit: 5, window: 1h, algorithm: gcra}]
"""


def guard(server: Server) -> None:
    for line in re.findall(r"^ACL SETUSER penaltybox-(?:limiter|enforcer) .*$", PAGE, re.MULTILINE):
        assert server.call(*line.split()) == b"OK"
    server.call("ACL", "SETUSER", "default", "off")


@pytest.fixture(params=[*BINARIES, *(["cluster"] if CLUSTERING else [])])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A server, or a cluster, with the page's limiter and enforcer and no other user."""
    kind = request.param
    started: Any = Cluster(str(CLUSTERING), tmp_path) if kind == "cluster" else single(BINARIES[kind], tmp_path)
    for server in started.servers if kind == "cluster" else [started]:
        guard(server)
    yield started
    started.kill()


def url(server: Any, user: str) -> str:
    login = f"penaltybox-{user}:PASSWORD@"
    if isinstance(server, Server):
        return f"redis://{login}127.0.0.1:{server.port}"
    return str(server.url).replace("://", f"://{login}")


async def test_a_limiter_can_do_all_its_work_and_no_more(guarded: Any) -> None:
    """Every algorithm counts, is violated and gives back; blocks cannot be lifted nor states read."""
    subjects = {"user": "u", "device": "d", "ip": "192.0.2.1", "tenant": "t", "shop": "s"}
    async with rig_on(guarded) as rig:
        settings = msgspec.structs.replace(rig.settings, redis_url=url(guarded, "limiter"), redis_prefix="pbx")
        rig.settings = settings
        async with rig.open(policy(LIMITS)) as limiter:
            for cost, key, action in ((3, "k", "allow"), (3, "", "deny"), (2, "l", "allow"), (1, "", "deny")):
                verdict = await limiter.decide(request(subjects=subjects, cost=cost, idempotency_key=key))
                assert limiter.counts.last_error == ""
                assert verdict.action == action
            assert await limiter.refund("k") is True
            assert (await limiter.decide(request(subjects=subjects, cost=3))).action == "allow"
    if isinstance(guarded, Server):
        link = open_link(parse_endpoint(url(guarded, "limiter")))
        refused: list[tuple[Any, ...]] = [
            ("SET", "pbx:{user:u}:block", "{}"),
            ("DEL", "pbx:{user:u}:block"),
            ("SET", "pbx:{user:u}:trust", "{}"),
            ("GET", "pbx:{user:u}:state"),
            ("KEYS", "*"),
            ("SCAN", 0),
            ("FLUSHALL",),
            ("PUBLISH", "pbx:events", "user:u"),
            ("EVALSHA", "0" * 40, 1, "pbx:{user:u}:block"),
        ]
        for command in refused:
            with pytest.raises(ConfigurationError, match="NOPERM"):
                await link.exchange([command])
        await link.close()


async def test_an_enforcer_can_follow_and_no_more(guarded: Any) -> None:
    """The whole list, blocks and ranges, over a subscription of its own; nothing can be written."""
    link = open_link(parse_endpoint(url(guarded, "enforcer")))
    feed = Feed(link, Blocklist(link))
    try:
        await feed.ready()
        async with aclosing(feed.follow(wait_s=0)) as pieces:
            lines = b"".join([piece async for piece in pieces]).splitlines()
        assert [b'"op":"resync"' in lines[0], b'"op":"synced"' in lines[-1]] == [True, True], lines
        await feed._marks.all_of(["user:u", "ip:192.0.2.1"])
        with pytest.raises(ConfigurationError):
            await link.exchange([("SET", "pbx:{user:u}:block", "{}")], [slot_of("user:u")])
    finally:
        await feed.close()
        await link.close()
