"""The limiter's benchmarks run: short rounds of them, in processes of their own like the long ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def lines_of(benchmark: str, **constants: float) -> list[dict[str, Any]]:
    """What a benchmark prints with some of its constants changed."""
    text = f"from benchmarks import {benchmark} as it; vars(it).update({constants!r}); it.main()"
    ran = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_throughput_asks_every_limiter() -> None:
    """A line for each peer, the faster one first."""
    lines = lines_of("limiter_speed", ROUNDS=2, ROUND_S=0.05)
    assert [line["bench"].startswith("limiter_three_dims") for line in lines] == [True, True]
    assert {line["peer"] for line in lines} == {"limits", "throttled-py"}
    assert lines[0]["peer_value"] >= lines[1]["peer_value"] > 0
    assert all(line["value"] > 0 for line in lines)


def test_memory_is_that_of_every_algorithm() -> None:
    """At 500 requests of a user the counter takes at most a sixth of the log; a key of each other algorithm is told."""
    counter, *keys = lines_of("counter_memory", USERS=100)
    assert (counter["bench"], counter["peer"]) == ("counter_memory", "sliding_window")
    assert 0 < counter["ratio"] <= 1 / 6
    assert {key["bench"].removeprefix("key_memory_") for key in keys} == {
        "sliding_window_counter", "fixed_window", "token_bucket", "leaky_bucket", "gcra",
    }  # fmt: skip
