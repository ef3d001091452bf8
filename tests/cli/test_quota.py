"""`quota` against a real server; Kafka is away, which it says and bears."""

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
    from pathlib import Path

POLICY = """
limits: {claim: {user: [{name: daily, limit: 3, window: 1d}, {name: burst, limit: 2, window: 1m}]}}
plans: {pro: {'claim/user:daily': 30}}
"""
WHY = ("--reason", "ticket 4711", "--actor", "alice")


@pytest.fixture
def call(redis_by_kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs ``quota`` and gives its result."""
    monkeypatch.setenv("PENALTYBOX_REDIS_URL", f"redis://127.0.0.1:{redis_by_kind[next(iter(BINARIES))].port}")
    monkeypatch.setenv("PENALTYBOX_REDIS_PREFIX", fresh_name("quota"))
    monkeypatch.setenv("PENALTYBOX_KAFKA", "127.0.0.1:1")
    monkeypatch.setenv("PENALTYBOX_POLICY", str(tmp_path / "policy.yaml"))
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["quota", *arguments], catch_exceptions=False)


def in_force(call: Callable[..., Any]) -> dict[str, tuple[int, str]]:
    shown = json.loads(call("show", "user:u1", "--json").stdout)
    return {name: (limit["limit"], limit["from"]) for name, limit in shown["limits"].items()}


def test_own_limits_before_the_plan_before_the_policy(call: Callable[..., Any]) -> None:
    """Each change is in force at once and says where a limit comes from; clearing gives the policy's back."""
    assert in_force(call) == {"claim/user:daily": (3, "policy"), "claim/user:burst": (2, "policy")}
    result = call("set", "user:u1", "--plan", "pro", "--limit", "claim/user:burst=9", *WHY)
    assert "user:u1 has plan pro, claim/user:burst=9, by alice: ticket 4711" in result.stdout.replace("\n", " ")
    assert "the control topic does not know of it yet" in result.stderr.replace("\n", " ")
    assert in_force(call) == {"claim/user:daily": (30, "plan"), "claim/user:burst": (9, "own")}
    call("set", "user:u1", "--limit", "claim/user:daily=50", *WHY)
    assert in_force(call) == {"claim/user:daily": (50, "own"), "claim/user:burst": (9, "own")}
    assert "plan pro" in call("show", "user:u1").stdout
    call("clear", "user:u1", *WHY)
    assert in_force(call) == {"claim/user:daily": (3, "policy"), "claim/user:burst": (2, "policy")}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("set", "user:u1", "--plan", "gold", *WHY), "'gold', wanted a plan of the policy: pro"),
        (("set", "user:u1", *WHY), "neither --plan nor --limit"),
        (("set", "user:u1", "--limit", "claim/user:weekly=5", *WHY), "claim/user:burst, claim/user:daily"),
        (("set", "user:u1", "--limit", "claim/user:daily=0", *WHY), "from 1 to"),
        (("set", "user:u1", "--limit", "claim/user:daily=-5", *WHY), "from 1 to"),
        (("set", "ip:203.0.113.7", "--plan", "pro", *WHY), "a user or api_key"),
        (("clear", "user:u1", "--reason", " ", "--actor", "bob"), "--reason"),
    ],
)
def test_what_cannot_be_set(call: Callable[..., Any], arguments: tuple[str, ...], sentence: str) -> None:
    """Each mistake is a sentence that names what is wanted."""
    with pytest.raises(ConfigurationError, match=sentence):
        call(*arguments)
