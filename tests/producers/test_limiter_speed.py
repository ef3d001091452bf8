"""The benchmark of the limiter's throughput: that it runs, and asks every limiter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SHORT = "from benchmarks import limiter_speed as it; it.ROUNDS, it.ROUND_S = 2, 0.05; it.main()"


def test_every_limiter_is_asked() -> None:
    """Short rounds, in a process of their own like long ones, end with a line for each peer, the faster one first."""
    ran = subprocess.run(
        [sys.executable, "-c", SHORT], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [line["bench"].startswith("limiter_three_dims") for line in lines] == [True, True]
    assert {line["peer"] for line in lines} == {"limits", "throttled-py"}
    assert lines[0]["peer_value"] >= lines[1]["peer_value"] > 0
    assert all(line["value"] > 0 for line in lines)
