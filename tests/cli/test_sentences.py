"""At three in the morning: servers that are away, directories that cannot be, names that look like markup."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.cli.console import table
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.embedded.redis_server import RedisServer

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = {
    "PENALTYBOX_KAFKA": "127.0.0.1:1",
    "PENALTYBOX_REDIS_URL": "redis://127.0.0.1:1/0",
    "PENALTYBOX_CLICKHOUSE_URL": "http://127.0.0.1:1",
}
WHY = ("--reason", "a test", "--actor", "ann")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "penalties"],
        ["run", "analytics"],
        ["restore", "--yes", *WHY],
        ["setup"],
        ["setup", "--no-topics"],
        ["blocks"],
        ["explain", "user:1"],
        ["pause", *WHY],
        ["resume", *WHY],
        ["audit"],
        ["audit", "--json"],
        ["replay", "--source", "clickhouse"],
        ["replay"],
    ],
    ids=" ".join,
)
def test_a_server_that_is_away_is_a_sentence(arguments: list[str], tmp_path: Path) -> None:
    """With nothing running every command ends with one sentence that names the address, and no traceback of ours."""
    done = subprocess.run(
        [sys.executable, "-m", "penaltybox", *arguments],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **NOWHERE},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert "127.0.0.1:1" in said
    assert "Traceback" not in done.stderr
    # Not in the words of the libraries.
    assert not any(
        noise in said
        for noise in ("Pool", "AddressFamily", "Unable to bootstrap", "query_id", "Errno", "Error 111", "('127.0.0.1'")
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["policy", "check", "none.yaml"], "policy none.yaml: cannot be read: No such file or directory"),
        (["policy", "check", "bytes"], "policy bytes: cannot be read: it is no UTF-8 text: byte 4 is 0xff"),
        (["policy", "apply", "none.yaml", "--no-replay", *WHY], "policy none.yaml: cannot be read: No such file"),
        (["replay", "--policy", "none.yaml"], "policy none.yaml: cannot be read: No such file or directory"),
        (["allow", "import", "bytes", *WHY], "bytes: cannot be read: it is no UTF-8 text: byte 4 is 0xff"),
        (["replay", "--source", "none.jsonl"], "--source none.jsonl: there is no such file"),
        (["replay", "--source", "combined:none.log"], "log none.log: cannot be read: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_file_that_cannot_be_read_is_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which file and why, in words, not with the number of an error or the name of a codec."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes").write_bytes(b"abc\n\xff\xfe")
    with pytest.raises(ConfigurationError) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("place", ["file", "proc"])
def test_a_data_directory_that_cannot_be_is_a_sentence(place: str, tmp_path: Path) -> None:
    """Below a file, or where nobody may write: the message names the directory and the setting."""
    (tmp_path / "file").touch()
    wrong = tmp_path / "file" / "redis" if place == "file" else tmp_path.__class__("/proc/penaltybox")
    with pytest.raises(ConfigurationError, match="PENALTYBOX_DATA_DIR") as caught:
        RedisServer(wrong).start()
    assert str(wrong) in str(caught.value)


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    """A rule may be called anything that can be printed; a table neither colours it nor fails."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table("[red]title[/blue]", ["rule"], [["[/bold]"], ["[red]x"]]))
    shown = capture.get()
    assert all(text in shown for text in ("[red]title[/blue]", "[/bold]", "[red]x"))
