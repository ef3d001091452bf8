"""Whoever changes something by hand says who they are and why: every command, also one that is added tomorrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOT_BY_HAND: Final = {
    "allow check", "allow list", "audit", "blocks export", "blocks list", "clean", "console", "dead-letters show",
    "demo", "doctor", "enforce apache", "enforce file", "enforce haproxy", "enforce nginx", "envoy",
    "explain", "export cloudevents", "export ocsf", "ingest FORMAT", "ingest combined", "ingest formats", "keys",
    "policy check",
    "policy diff", "policy history", "policy show", "policy test", "quota show", "replay",
    "report false-positives", "report farms", "report limits",
    "report nat", "report penalties", "run", "serve", "setup", "tune", "version",
}  # fmt: skip
"""Commands that change nothing by hand: they look, serve, or take their data from a file."""
GIVEN: Final = {
    "FILE": "nofile", "file": "nofile", "subject": "user:u1", "entry": "user:u1", "version": "abc", "points": "3",
    "plan": "pro",
}  # fmt: skip


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        full = f"{before} {name}".strip()
        if hasattr(command, "commands"):
            yield from _commands(command, full)
        else:
            yield full, command


ALL: Final = dict(_commands(get_command(app)))
BY_HAND: Final = sorted(set(ALL) - NOT_BY_HAND)


def test_the_list_of_other_commands_is_current() -> None:
    """What is excepted exists, so that nothing hides behind a name of long ago."""
    assert not NOT_BY_HAND - set(ALL)
    assert {"pause", "resume", "restore", "ban", "policy apply", "forget", "dead-letters retry"} <= set(BY_HAND)


@pytest.mark.parametrize("name", BY_HAND)
def test_reason_and_actor_are_wanted(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a reason it is no command; without an actor it ends before it does, or asks, anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENALTYBOX_ACTOR", raising=False)
    for place in ("KAFKA", "REDIS_URL", "CLICKHOUSE_URL"):
        monkeypatch.setenv(f"PENALTYBOX_{place}", {"KAFKA": "127.0.0.1:1"}.get(place, "redis://127.0.0.1:1/0"))
    options = {one.name: one for one in ALL[name].params}
    assert options["reason"].required
    assert options["reason"].opts == ["--reason"]
    needed = [one for one in ALL[name].params if one.required and one.name != "reason"]
    arguments = [GIVEN[one.name] if one.param_type_name == "argument" else f"{one.opts[0]}={GIVEN[one.name]}"
                 for one in needed]  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"--actor: got nothing.*PENALTYBOX_ACTOR"):
        CliRunner().invoke(app, [*name.split(), *arguments, "--reason", "why"], catch_exceptions=False, input="")
