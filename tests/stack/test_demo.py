"""The demo from beginning to end, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import block_until

pytestmark = [pytest.mark.stack, pytest.mark.slow]
ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 120


def start(*arguments: str) -> subprocess.Popen[str]:
    """The demo in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "penaltybox", "demo", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def processes_of(directory: Path) -> list[str]:
    """Command lines of processes that name a directory, or whose environment does."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                line = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue  # it has ended meanwhile
            if str(directory).encode() in line:
                found.append(line.decode("utf-8", "replace")[:200])
    return found


def test_the_demo(tmp_path: Path) -> None:
    """It ends by itself in time, blocks who should be, challenges the office, and its estimates bound the truth."""
    began = time.monotonic()
    demo = start("--json", "--data-dir", str(tmp_path))
    output, errors = demo.communicate(timeout=2 * LIMIT_S)
    assert demo.returncode == 0, errors
    assert time.monotonic() - began < LIMIT_S
    told = json.loads(output)
    facts = told["facts"]
    assert {row["rule"] for row in facts["penalties"]} >= {"device_farm", "ip_accounts", "ip_stuffing", "user_abuse"}
    assert {row["rung"] for row in facts["penalties"] if row["rule"] == "user_abuse"} >= {"warn", "5m", "1h"}
    blocks = {(block[0], block[1]) for block in facts["blocks"]}
    assert ("device:farm-phone", "deny") in blocks
    assert facts["office_block"][1] == "challenge"
    assert facts["treatments"]["NAT office"]["blocked"] == 0
    assert facts["treatments"]["NAT office"]["challenged"] > 0
    assert {row["dimension"] for row in facts["rates"]} >= {"user", "device", "ip"}
    assert all(row["fdr_low"] <= row["fdr_true"] for row in facts["rates"] if row["fdr"] is not None)
    assert facts["dead_letters"] == 0
    assert told["score"]["unfinished"] == 0
    assert told["score"]["burst"] > 0
    assert processes_of(tmp_path) == []


def test_an_ended_demo_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM in the middle ends all servers and workers."""
    demo = start("--data-dir", str(tmp_path))
    assert demo.stdout is not None
    for line in demo.stdout:
        if "playing the campaign" in line:
            break
    assert len(processes_of(tmp_path)) > 4
    demo.send_signal(signal.SIGTERM)
    block_until(lambda: demo.poll() is not None, deadline_s=40)
    _, errors = demo.communicate()
    assert (demo.returncode, errors) == (130, "")
    block_until(lambda: not processes_of(tmp_path), deadline_s=10)
