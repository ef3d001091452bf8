"""`console_first_paint_ms`, `console_blocklist_ms`: when Chromium has painted the console's page with 10,000 blocks.

By the browser's own paint timing, from the navigation, without a cache; the median of nine loads. Redis and console are
processes of this machine; Kafka and ClickHouse are away. Needs Debian's Chromium.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.stack import report
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.settings import Settings
from penaltybox.embedded.redis_server import RedisServer
from tests.stack.browsers import Window, chromium
from tests.stack.console_world import Console
from tests.stack.paint import fill, paint
from tests.waiting import block_until

BLOCKS = 10_000
LOADS = 9
LIMIT_MS = 1000.0


def main() -> None:
    """Fill Redis, load the page, report."""
    with tempfile.TemporaryDirectory(prefix="pbx-bench-") as directory, RedisServer(Path(directory) / "redis") as redis:
        settings = Settings(kafka="127.0.0.1:1", redis_url=redis.url, clickhouse_url="http://127.0.0.1:1")
        fill(settings, BLOCKS, now_ms())
        with Console(settings) as console, chromium() as browser:
            block_until(lambda: console.get("/api/v1/status")["denied"] == BLOCKS, 60)
            paints = []
            for _ in range(LOADS):
                window = Window(browser)
                paints.append(paint(window.page, console.address))
                window.close()
    report("console_first_paint_ms", statistics.median(one.first_ms for one in paints), "ms", "limit", LIMIT_MS)
    report("console_blocklist_ms", statistics.median(one.blocklist_ms for one in paints), "ms", "limit", LIMIT_MS)


if __name__ == "__main__":
    main()
