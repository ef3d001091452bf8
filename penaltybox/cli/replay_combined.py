"""A web server's access log as a source: each line is a request that nobody has decided yet."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.processors.replay.records import SLICE, Refusals
from penaltybox.producers.combined import CombinedLog
from penaltybox.producers.ingest import LogIngest, open_log, read_lines
from penaltybox.producers.limiter import Limiter
from penaltybox.producers.scenario_map import ScenarioMap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.processors.replay.records import Entry, Window

SOURCE = "access-log/1"


class LogSource:
    """Requests of a log, in order as far as `lateness` reaches; the limits of each side decide about them.

    Args:
        path: the log (also gzip).
        policy: whose lateness and scenarios count.
        canonicaliser: how subjects count.
        window: lines outside are left out.
        scenarios: path prefix -> scenario; the empty prefix is the default.
    """

    unit = "bytes"

    def __init__(
        self, path: str, policy: Policy, canonicaliser: Canonicaliser, window: Window, scenarios: Mapping[str, str]
    ) -> None:
        unknown = sorted(set(scenarios.values()) - set(policy.limits))
        if unknown:
            raise ConfigurationError(
                f"scenario {unknown[0]!r}: the policy has no limits for it; it has "
                f"{', '.join(policy.limits) or 'none'}. Use --scenario, --map or another --policy."
            )
        self.title = f"combined:{path}"
        self.done = 0
        self.total: int | None = None
        self.refused = Refusals("a web server's log; JSON lines and Parquet are named without combined:")
        self.remarks: list[str] = []
        self._path = path
        self._canonicaliser = canonicaliser
        self._start = window.start_ms if window.start_ms is not None else 0
        self._to = window.to_ms if window.to_ms is not None else 1 << 60
        prefixes = dict(scenarios)
        default = prefixes.pop("", "")
        self._task = LogIngest(
            Limiter({}, source=SOURCE, canonicaliser=canonicaliser),
            CombinedLog(canonicaliser=canonicaliser),
            scenarios=ScenarioMap(prefixes, default),
            lateness_ms=policy.lateness_ms,
        )

    async def slices(self) -> AsyncIterator[Sequence[Entry]]:
        """See `Reading.slices`."""
        with open_log(self._path) as stream:
            self.total = os.fstat(stream.fileno()).st_size
            decisions = self._task.decisions(read_lines(stream))
            clock = number = 0
            while chunk := list(islice(decisions, SLICE)):
                self.done = min(self._task.progress.read_bytes, self.total)
                entries: list[Any] = []
                for number, decision in enumerate(chunk, number + 1):  # noqa: B020 - the next request's number
                    if self._start <= decision.ts < self._to:
                        clock = max(clock, decision.ts)
                        names = self._canonicaliser.names(decision.subjects)
                        entries.append((clock, 0, number, decision, names, clock))
                if entries:
                    yield entries
        progress = self._task.progress
        if progress.unmatched:
            self.refused.reasons["not_a_request"] = progress.unmatched
            self.refused.first = "a line is not in combined or common format"
