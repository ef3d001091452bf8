"""Run benchmarks, each in a fresh process: `python -m benchmarks`, `ONLY=engine,stock_faust python -m benchmarks`.

Every line is JSON: bench, value, unit, peer, peer_value, ratio. Run them on a machine that does nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys

BENCHES = {
    "engine": ["engine"],
    "penalties_pipeline": ["penalties_pipeline"],
    "stock_faust": ["stock_faust"],
    "block_latency_p99_ms": ["block_latency"],
    "worker_rss_1m_mb": ["worker_rss"],
    "store_writes": ["store_writes"],
    "analytics_rows": ["analytics_rows"],
    "dashboard_query_max_ms": ["dashboard_queries"],
    "publish_overhead_us": ["publish_overhead"],
    "counter_memory": ["counter_memory"],
    "replay_file": ["replay_file"],
    "replay_kafka": ["replay_kafka"],
    "replay_rss_mb": ["replay_memory"],
    "limiter_three_dims": ["limiter_speed"],
    "limiter_p50_ms": ["limiter_latency"],
    "ingest_nginx": ["ingest_lines"],
    "ingest_json": ["ingest_lines"],
    "console_first_paint_ms": ["console_paint"],
}
"""Name as given in ONLY -> modules of this folder."""


def main() -> int:
    """Run what ONLY names, or everything; the first failure's exit code."""
    wanted = [name.strip() for name in os.environ.get("ONLY", "").split(",") if name.strip()] or list(BENCHES)
    unknown = [name for name in wanted if name not in BENCHES]
    if unknown:
        print(f"ONLY={','.join(unknown)}: no such benchmark; there are {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    failures = 0
    for name in wanted:
        for module in BENCHES[name]:
            failures += subprocess.run([sys.executable, "-m", f"benchmarks.{module}"], check=False).returncode != 0
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
