"""`grant` against a real server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.sinks.redis_store import RedisSubjectStore
from tests.redis_servers import BINARIES
from tests.servers import fresh_name

if TYPE_CHECKING:
    from pathlib import Path

WHY = ("--reason", "contract 4711", "--actor", "alice")


class Desk:
    """A Redis that workers have used, and the command in front of it."""

    def __init__(self, port: int, call: Any) -> None:
        self.prefix, self.call, self.url = fresh_name("grant"), call, f"redis://127.0.0.1:{port}"

    def begin(self) -> None:
        asyncio.run(self._begin())

    async def _begin(self) -> None:
        store = RedisSubjectStore(open_link(parse_endpoint(self.url)), self.prefix)
        await store.begin_generation("g1")
        await store.close()

    def run(self, *arguments: str) -> str:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False).stdout

    def trust(self, subject: str) -> Any:
        value = self.call("GET", f"{self.prefix}:{{{subject}}}:trust")
        return None if value is None else json.loads(value)


@pytest.fixture
def desk(redis_by_kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    server = redis_by_kind[next(iter(BINARIES))]
    made = Desk(server.port, server.call)
    monkeypatch.setenv("PENALTYBOX_REDIS_URL", made.url)
    monkeypatch.setenv("PENALTYBOX_REDIS_PREFIX", made.prefix)
    monkeypatch.chdir(tmp_path)
    return made


def test_a_grant_is_in_the_trust_key_at_once(desk: Desk) -> None:
    """Points raise the quota that limiters read, more points raise it further, and points taken away lower it."""
    desk.begin()
    assert desk.trust("user:u1") is None
    told = json.loads(desk.run("grant", "user:u1", "--points", "4", *WHY, "--json"))
    assert told["penalties"][0]["action"] == "note"
    assert desk.trust("user:u1") == {"multiplier": 1.5, "established": True}
    assert "user:u1 has +6 points" in desk.run("grant", "user:u1", "--points", "6", *WHY)
    assert desk.trust("user:u1") == {"multiplier": 2, "established": True}
    desk.run("grant", "user:u1", "--points", "-10", *WHY)
    assert desk.trust("user:u1") is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("ip:203.0.113.7", "--points", "4", *WHY), "wanted a user, device or api_key"),
        (("login_name:x", "--points", "4", *WHY), "wanted a user, device or api_key"),
        (("user:u1", "--points", "0", *WHY), "--points"),
        (("user:u1", "--points", "4", "--reason", " "), "--reason"),
    ],
)
def test_what_cannot_be_granted(desk: Desk, arguments: tuple[str, ...], sentence: str) -> None:
    """Each is a sentence, and nothing is written."""
    desk.begin()
    with pytest.raises(ConfigurationError, match=sentence):
        desk.run("grant", *arguments)
    assert desk.trust("user:u1") is None


def test_a_redis_without_workers_is_told(desk: Desk) -> None:
    """On a Redis that no worker has used nothing is written, because the wrong server is the likelier reason."""
    with pytest.raises(StoreUnavailable, match="never seen a worker"):
        desk.run("grant", "user:u1", "--points", "4", *WHY)
