"""The role `analytics` as a process that kills itself in the middle of its Nth insert: `SETTINGS_JSON N` (0: never)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from penaltybox.contracts.settings import Settings
from penaltybox.processors.analytics import run_analytics
from penaltybox.processors.analytics_pipeline import Limits
from penaltybox.processors.ending import run_process
from penaltybox.sinks.clickhouse.client import ClickHouse

if TYPE_CHECKING:
    import pyarrow as pa

LIMITS = Limits(rows=400, linger_s=0.05)


class Fatal(ClickHouse):
    """Inserts of which one is interrupted by SIGKILL, a few milliseconds after it was sent."""

    inserts = 0
    fatal = 0

    def insert(self, table: str, rows: pa.Table) -> None:
        self.inserts += 1
        if self.inserts == self.fatal:
            threading.Timer(0.002 * (self.fatal % 4), os.kill, (os.getpid(), signal.SIGKILL)).start()
        super().insert(table, rows)


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    clickhouse = Fatal.of(settings)
    assert isinstance(clickhouse, Fatal)
    clickhouse.fatal = int(sys.argv[2])
    run_process(
        lambda ending: run_analytics(settings, ending=ending, clickhouse=clickhouse, limits=LIMITS),
        settings.stop_timeout_s,
    )


if __name__ == "__main__":
    main()
