"""`replay_rss_mb`: a replay's memory after ten million decisions of 200,000 subjects, in a process of its own."""

from __future__ import annotations

from benchmarks.replay_file import main

if __name__ == "__main__":
    main(["memory"])
