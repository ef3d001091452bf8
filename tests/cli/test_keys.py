"""`keys` and `clean` against a real server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.contracts.errors import ConfigurationError
from tests.redis_servers import BINARIES
from tests.servers import fresh_name

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def call(redis_by_kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the command on three counters of ``spring`` and one of ``login``; gives what it prints."""
    server = redis_by_kind[next(iter(BINARIES))]
    prefix = fresh_name("keys")
    monkeypatch.setenv("PENALTYBOX_REDIS_URL", f"redis://127.0.0.1:{server.port}")
    monkeypatch.setenv("PENALTYBOX_REDIS_PREFIX", prefix)
    for key in ("{user:u1}:l:spring:daily", "{user:u2}:l:spring:daily", "{device:d}:l:spring:burst"):
        server.call("SET", f"{prefix}:{key}", "1", "PX", 60_000)
    server.call("SET", f"{prefix}:{{user:u1}}:l:login:burst", "1", "PX", 60_000)

    def run(*arguments: str, given: str | None = None, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments), input=given, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.stdout

    return run


def test_counters_are_shown(call: Callable[..., str]) -> None:
    """Whose they are and what is left, as a table and as JSON lines."""
    text = call("keys", "--scenario", "spring")
    assert "3 counters of spring" in text
    assert "device:d" in text
    told = call("keys", "--scenario", "spring", "--limit", "daily", "--json")
    lines = [json.loads(line) for line in told.splitlines()]
    assert {line["subject"] for line in lines} == {"user:u1", "user:u2"}
    assert all(0 < line["ttl_ms"] <= 60_000 for line in lines)
    assert "Is it a scenario" in call("keys", "--scenario", "autumn")


def test_counters_are_removed_after_a_yes(call: Callable[..., str]) -> None:
    """A no and a dry run remove nothing; a yes removes the scenario and nothing else."""
    call("clean", "--scenario", "spring", given="n\n", code=1)
    assert "3 counters of spring would go" in call("clean", "--scenario", "spring", "--dry-run")
    assert json.loads(call("clean", "--scenario", "spring", "--dimension", "user", "--yes", "--json"))["removed"] == 2
    assert "1 counter of spring removed" in call("clean", "--scenario", "spring", given="y\n")
    assert "nothing to do" in call("clean", "--scenario", "spring")
    assert "1 counter of login" in call("keys", "--scenario", "login")


def test_names_that_cannot_be(call: Callable[..., str]) -> None:
    """A dimension that is none, and no scenario, are sentences."""
    for arguments, sentence in [
        (("--scenario", "s", "--dimension", "IP*"), "--dimension"),
        (("--scenario", ""), "--scenario"),
    ]:
        with pytest.raises(ConfigurationError, match=sentence):
            call("clean", *arguments)
