"""Logs read once through, as they are now: several at a time, in the order of their times.

    files of a log, oldest first -> decisions -> sorted within `lateness` -> all logs merged by time

A log's files are opened when their turn comes, so a folder may have any number of them.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from penaltybox.producers.logs.checkpoint import Place
from penaltybox.producers.logs.files import Damaged, beginning, first_bytes, opened
from penaltybox.producers.logs.ordering import Ordering, descends
from penaltybox.producers.logs.passage import SAMPLE_BYTES, stretches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penaltybox.contracts.events import Decision
    from penaltybox.producers.logs.checkpoint import Checkpoint
    from penaltybox.producers.logs.files import Beginning
    from penaltybox.producers.logs.passage import Common, Stretch


class _Placed(NamedTuple):
    """A decision on its way, and the file and offset of its line."""

    ts_ms: int
    start: int
    file: int
    decision: Decision


class _File:
    """A file of a log, and how far it has been read."""

    def __init__(self, path: Path, found: Beginning, offset: int) -> None:
        self.path = path
        self.found = found
        self.offset = offset


class _Log:
    """One log. `peek` and `take` give its decisions in order."""

    def __init__(self, paths: Sequence[Path], common: Common, checkpoint: Checkpoint) -> None:
        self._paths = paths
        self._common = common
        self._checkpoint = checkpoint
        self._files: list[_File] = []
        self._order: Ordering[_Placed] = Ordering(common.lateness_ms)
        self._ready: deque[_Placed] = deque()
        self._source = self._runs()

    def first_ms(self) -> int:
        """About when it begins; 0 when that is not seen at once."""
        with opened(self._paths[0]) as stream:
            times = self._common.times(first_bytes(stream, self._paths[0], SAMPLE_BYTES))
        return 0 if descends(times) else min(times, default=0)

    def peek(self) -> _Placed | None:
        """The next decision; None at the end."""
        while not self._ready:
            run = next(self._source, None)
            if run is None:
                return None
            self._ready.extend(run)
        return self._ready[0]

    def take(self) -> Decision:
        """The next decision, which `peek` has seen."""
        return self._ready.popleft().decision

    def places(self) -> list[Place]:
        """How far everything that has been taken reaches: nothing that is still held lies before it."""
        safe = [file.offset for file in self._files]
        for one in (*self._order.held, *self._ready):
            safe[one.file] = min(safe[one.file], one.start)
        return [
            Place(str(file.path), file.found.identity, offset) for file, offset in zip(self._files, safe, strict=True)
        ]

    def _runs(self) -> Iterator[list[_Placed]]:
        progress = self._common.progress
        for number, path in enumerate(self._paths):
            found = beginning(path)
            file = _File(path, found, self._checkpoint.offset(found) or 0)
            self._files.append(file)
            progress.files += 1
            take_last = self._checkpoint.path is None  # a log that is still written may complete it
            try:
                with opened(path) as stream:
                    for stretch in stretches(stream, path, self._common, start=file.offset, take_last=take_last):
                        yield self._sorted(number, stretch)
                        self._common.report(progress)
            except Damaged as error:
                progress.damaged.append(str(error))
        yield self._order.rest()

    def _sorted(self, number: int, stretch: Stretch) -> list[_Placed]:
        """What is certain now to come before what is still to be read of the log."""
        progress = self._common.progress
        run = self._order.add([_Placed(one.ts_ms, one.start, number, one.decision) for one in stretch.found])
        self._files[number].offset = stretch.offset
        progress.late, self._order.late = progress.late + self._order.late, 0
        return run


class WholeLogs:
    """Logs that are read once through.

    Args:
        logs: each as its files, the oldest first.
        common: format, options, counts.
        checkpoint: where to go on.
    """

    def __init__(self, logs: Sequence[Sequence[Path]], common: Common, checkpoint: Checkpoint) -> None:
        self._logs = [_Log(paths, common, checkpoint) for paths in logs]

    def decisions(self) -> Iterator[Decision]:
        """All decisions, by time. Of a file that is damaged all that can be read; `Progress.damaged` tells of it.

        Raises:
            ConfigurationError: a file cannot be opened.
        """
        logs = self._logs
        heap = [(log.first_ms() if len(logs) > 1 else 0, number, False) for number, log in enumerate(logs)]
        heapq.heapify(heap)
        while heap:
            _, number, seen = heapq.heappop(heap)
            log = logs[number]
            if seen:
                yield log.take()
            following = log.peek()
            if following is not None:
                heapq.heappush(heap, (following.ts_ms, number, True))

    def places(self) -> list[Place]:
        """How far everything that `decisions` has given reaches, file by file."""
        return [place for log in self._logs for place in log.places()]
