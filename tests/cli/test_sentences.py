"""At three in the morning: servers that are away, directories that cannot be, names that look like markup."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

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
    assert not any(noise in said for noise in ("Pool", "AddressFamily", "Unable to bootstrap", "query_id"))


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
