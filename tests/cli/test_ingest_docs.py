"""The page about access logs cannot lie: its commands run, its options exist."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penaltybox.cli.commands import app

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "ingest.md").read_text()
COMMANDS = [
    line.partition("#")[0].rpartition("| ")[2].strip()
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_page_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the page runs on the real log; those that publish are run with --dry-run instead."""
    shutil.copyfile(ROOT / "tests" / "data" / "apache_access.log", tmp_path / "access.log")
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(line)
    assert program == "penaltybox"
    if "--offline" not in arguments and "--dry-run" not in arguments:
        arguments.append("--dry-run")
    given = (tmp_path / "access.log").read_bytes() if "-" in arguments else None
    result = CliRunner().invoke(app, arguments, input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "10,000" in result.output or len(result.output.splitlines()) == 10_000 or '"lines":10000' in result.output


def test_every_option_is_on_the_page() -> None:
    """Each option of the command is explained on the page."""
    help_text = CliRunner().invoke(app, ["ingest", "combined", "--help"], env={"COLUMNS": "200"}).output
    options = set(re.findall(r"--[a-z][a-z-]+", help_text)) - {"--help", "--scenario"}
    assert options <= set(re.findall(r"--[a-z][a-z-]+", TEXT)), options
