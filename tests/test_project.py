"""The project's own files agree with each other: the lock with pyproject, the Makefile with its help."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
WANTED = [
    Requirement(line)
    for lines in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for line in lines
    if not line.startswith("penaltybox[")
]


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_the_lock_holds_what_the_project_wants(wanted: Requirement) -> None:
    """Each dependency is locked to versions that its lower bound allows (else: make lock)."""
    locked = re.findall(rf"^{re.escape(canonicalize_name(wanted.name))}==([^ ]+)", LOCK, re.MULTILINE)
    assert locked
    assert all(wanted.specifier.contains(version) for version in locked)
    assert any(bound.operator == ">=" for bound in wanted.specifier), "every dependency has a lower bound"


def test_every_locked_file_has_a_hash_and_no_index() -> None:
    """Nothing is installed unseen, and the lock names no index: the user's own is used."""
    entries = re.split(r"\n(?=[a-z0-9])", LOCK)
    assert all("--hash=sha256:" in entry for entry in entries if "==" in entry.partition("\n")[0])
    assert "index-url" not in LOCK
    assert "://" not in LOCK


def test_the_help_lists_every_target() -> None:
    """`make help` shows each target that a user may call, with a sentence."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    command = ["make", "--no-print-directory", "help"]  # CI runs this below another make
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = {line.split()[0] for line in shown.splitlines()}
    assert listed == set(phony[1].split()) - {"kafka-if-possible"}


def test_modules_are_short() -> None:
    """No module has more than 400 lines, tests included."""
    long = []
    for stage in ("penaltybox", "dashboards", "benchmarks", "tests"):
        for path in sorted((ROOT / stage).rglob("*.py")):
            lines = path.read_text(encoding="utf-8").count("\n")
            if lines > 400:
                long.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert not long
