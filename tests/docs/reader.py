"""Somebody who follows the README to the letter: an empty directory, a shell, and the addresses he was told."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.docs.fenced_blocks import Block

ROOT = Path(__file__).parent.parent.parent
READY = "Ctrl-C ends all of it."
DEADLINE_S = 60.0


class Reader:
    """Runs blocks in a directory of their own, with this checkout's `penaltybox` first on the PATH.

    Args:
        home: an empty directory.
        addresses: PENALTYBOX_* variables of servers that run already.
    """

    def __init__(self, home: Path, addresses: Mapping[str, str] | None = None) -> None:
        self.home = home
        programs = home / "programs"
        programs.mkdir(parents=True)
        for name, arguments in (("penaltybox", ["-m", "penaltybox"]), ("python", [])):
            script = f'#!/bin/sh\nexec {shlex.join([sys.executable, *arguments])} "$@"\n'
            (programs / name).write_text(script, encoding="utf-8")
            (programs / name).chmod(0o755)
        for name in ("policies", "tests"):
            (home / name).symlink_to(ROOT / name)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENALTYBOX_")}
        kept.pop("COLUMNS", None)
        self.environment = {
            **kept,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **(addresses or {}),
        }
        self._running: list[subprocess.Popen[bytes]] = []

    def follow(self, block: Block) -> None:
        """Run a block; again until it shows what the page says, for what was published takes a moment to act."""
        if not block.expected:
            self.run(block)
            return

        def shows() -> bool:
            nonlocal seen
            seen = self.run(block)
            return block.meets(seen)

        seen = ""
        try:
            block_until(shows, DEADLINE_S)
        except AssertionError as error:
            message = f"line {block.line} of the page shows something else than\n{block.expected}\nnamely\n{seen}"
            raise AssertionError(message) from error

    def run(self, block: Block) -> str:
        """Standard output of a block; a failure shows everything."""
        if block.language == "python":
            command = ["python", "-"]
        elif block.language == "js":
            (self.home / "publish.mjs").write_text(block.text, encoding="utf-8")
            command = ["node", "publish.mjs"]
        else:
            command = ["bash", "-euo", "pipefail", "-s"]
        done = subprocess.run(
            command,
            input="" if block.language == "js" else block.text,
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"line {block.line} of the page ended with {done.returncode}:\n{done.stderr}"
        return done.stdout

    def start(self, block: Block) -> None:
        """Start what runs until it is ended, and take over the `export` lines that it prints."""
        printed = self.home / "printed"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {block.text}"],
                cwd=self.home,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._running.append(process)

        def ready() -> bool:
            text = printed.read_text(encoding="utf-8")
            assert process.poll() is None, text
            return READY in text

        block_until(ready, DEADLINE_S)
        for line in printed.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[:1] == ["export"]:
                name, _, value = words[1].partition("=")
                self.environment[name] = value

    def end(self) -> None:
        """Ctrl-C for everything that was started."""
        for process in self._running:
            process.send_signal(signal.SIGINT)
        for process in self._running:
            process.wait(DEADLINE_S)
