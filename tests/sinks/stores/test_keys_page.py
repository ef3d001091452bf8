"""docs/keys.md tells the truth: its rights are enough and no more, its example denies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Control
from penaltybox.contracts.policy_versions import StoredPolicy, Switch
from penaltybox.links.connections import open_client, open_link, parse_endpoint
from penaltybox.links.policies import read_in_force
from penaltybox.sinks.blocklist import Blocklist
from penaltybox.sinks.lists import Allowed, Banned, HandLists
from penaltybox.sinks.policy_versions import history, put_in_force
from penaltybox.sinks.redis_store import CHUNK, RedisSubjectStore
from penaltybox.sinks.subject_store import Mark, Written
from penaltybox.sinks.untold import Untold
from tests.redis_servers import BINARIES, Server, single
from tests.sinks.stores.blobs import HOUR, block, write

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[3] / "docs" / "keys.md").read_text(encoding="utf-8")
A = "ip:203.0.113.7"


@pytest.fixture(scope="module", params=BINARIES)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the page's users and no other."""
    server = single(BINARIES[request.param], tmp_path_factory.mktemp("acl"))
    lines = re.findall(r"^ACL SETUSER .*$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        assert server.call(*line.split()) == b"OK"
    server.call("ACL", "SETUSER", "default", "off")
    yield server
    server.kill()


def url(server: Server, user: str) -> str:
    return f"redis://penaltybox-{user}:PASSWORD@127.0.0.1:{server.port}"


async def test_a_worker_can_do_all_its_work(guarded: Server) -> None:
    """Every call of store, blocklist and subscription works with the worker's rights."""
    store = RedisSubjectStore(open_link(parse_endpoint(url(guarded, "worker"))))
    (first,) = await store.write([write(A, nonce=1, end=1 << 42, marks=(block(b"{}"),), pending=True)])
    assert isinstance(first, Written)
    marks = (block(None), Mark("challenge", b"{}", 1 << 42))
    (second,) = await store.write([write(A, (first.number, 1), nonce=2, marks=marks)])
    assert isinstance(second, Written)
    assert (await store.read([A]))[0] is not None
    assert await store.pending(0) == []
    await store.settle([A])
    await store.begin_generation("next")
    await store.pause("why", "who", 1)
    assert await store.pause_reason() == "why"
    await store.resume()
    untold = Untold(store.link)
    record = Control(id="1", ts=1, key="allow:user:1", kind="allow")
    await untold.commit([("SET", "pbx:pause", "{}"), ("DEL", "pbx:pause")], [record], say="#lists")
    stored = StoredPolicy(version="1" * 12, text="limits: {}")
    await put_in_force(untold, stored, Switch(version=stored.version))
    assert await read_in_force(store.link) is not None
    assert len(await history(store.link)) == 1
    assert [len(waiting) async for waiting in untold.chunks()] == [3]
    lists = HandLists(store.link)
    await untold.commit([lists.allow({"user:1": Allowed()}), lists.ban({"192.0.2.0/24": Banned()})], [])
    assert (list(await lists.allowed()), list(await lists.banned())) == (["user:1"], ["192.0.2.0/24"])
    await untold.commit([lists.disallow(["user:1"]), lists.unban(["192.0.2.0/24"])], [])
    blocklist = Blocklist(store.link)
    assert [found.subject async for found in blocklist.blocks()] == [A]
    assert (await blocklist.lookup([A]))[0] is not None
    client = open_client(parse_endpoint(url(guarded, "worker")))
    subscription = client.pubsub()
    await subscription.subscribe("pbx:events")
    assert (await subscription.get_message(timeout=5))["type"] == "subscribe"
    await subscription.aclose()
    await client.aclose()
    await store.close()


async def test_an_enforcer_can_only_look(guarded: Server) -> None:
    """The enforcer's user reads marks and hears events; states, writes and everything else are refused."""
    link = open_link(parse_endpoint(url(guarded, "enforcer")))
    for name in ("block", "challenge", "trust", "pass"):
        await link.exchange([("GET", f"pbx:{{user:x}}:{name}")])
    refused: list[tuple[Any, ...]] = [
        ("GET", f"pbx:{{{A}}}:state"),
        ("GET", "pbx:generation"),
        ("SET", f"pbx:{{{A}}}:block", "{}"),
        ("DEL", f"pbx:{{{A}}}:block"),
        ("KEYS", "*"),
        ("FLUSHALL",),
        ("PUBLISH", "pbx:events", A),
    ]
    for command in refused:
        with pytest.raises(ConfigurationError, match="NOPERM"):
            await link.exchange([command])
    client = open_client(parse_endpoint(url(guarded, "enforcer")))
    subscription = client.pubsub()
    await subscription.subscribe("pbx:events")
    assert (await subscription.get_message(timeout=5))["type"] == "subscribe"
    await subscription.aclose()
    await client.aclose()
    await link.close()


def test_the_example_denies(guarded: Server) -> None:
    """The page's own function, run as printed, answers 403, 429 with whole seconds, or nothing."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "keys.md", "exec"), names)  # noqa: S102 - our own page
    with redis.Redis(port=guarded.port, username="penaltybox-worker", password="PASSWORD") as client:  # noqa: S106
        assert names["blocked"](client, ["user:1", A], 0) is None
        client.set("pbx:{user:1}:block", '{"until":1500}')
        client.set(f"pbx:{{{A}}}:block", '{"until":2001}')
        assert names["blocked"](client, ["user:1", A, "user:2"], 1000) == (429, 2)
        assert names["blocked"](client, ["user:1"], HOUR) == (429, 1)
        client.set("pbx:{user:1}:block", '{"until":null}')
        assert names["blocked"](client, ["user:1", A], 1000) == (403, None)
        client.delete("pbx:{user:1}:block", f"pbx:{{{A}}}:block")


def test_figures_of_the_page() -> None:
    """The chunk that the page names is the one in use."""
    assert f"up to {CHUNK} subjects" in PAGE
