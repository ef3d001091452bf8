"""A log read as decisions: what the limiter of a policy would have decided, in the log's own time.

    lines -> requests (id, time, scenario) -> sorted within `lateness` -> limiter -> decisions

An id depends on the log's beginning, the line's position and the line itself: a file read twice, after it has grown,
was renamed by rotation or compressed, gives the same ids and so counts once. A shifted time makes other events.
"""

from __future__ import annotations

import codecs
import hashlib
import heapq
import shutil
from collections import Counter
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Final, NamedTuple

import msgspec

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.combined import MAX_LINE_BYTES, CombinedLog
from penaltybox.producers.limiter import Request
from penaltybox.producers.logs.files import is_damage, unpacked, unreadable
from penaltybox.producers.scenario_map import ScenarioMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penaltybox.contracts.events import Decision
    from penaltybox.producers.combined import LogLine
    from penaltybox.producers.limiter import Limiter, Listed

MAX_HELD: Final = 500_000
"""Requests held for sorting at most; a log that brings more within `lateness` is passed on unsorted."""
_IDENTITY_BYTES: Final = 1024
_PROGRESS_LINES: Final = 2_000


class Line(NamedTuple):
    """A line without its newline, and where it began in the (decompressed) log, in bytes."""

    offset: int
    raw: bytes


class Progress(msgspec.Struct, kw_only=True):
    """How far an ingest has come. Times are the log's own, in milliseconds; 0 before the first request."""

    lines: int = 0
    read_bytes: int = 0
    requests: int = 0
    unmatched: int = 0
    shapes: dict[str, int] = {}
    late: int = 0
    actions: Counter[str] = msgspec.field(default_factory=Counter)
    would_have: Counter[str] = msgspec.field(default_factory=Counter)
    first_ms: int = 0
    last_ms: int = 0


class LogIngest:
    """Turns lines into decisions; `progress` tells how far it is, also while it runs.

    Args:
        limiter: decides, and names itself as the source.
        log: the parser.
        scenarios: request -> scenario.
        lateness_ms: how far lines may run backwards in time and are still put in order.
        shift_ms: added to every time.
        listed: a look into the blocklist; a request that is in it is refused and counts nowhere.
        report: called with `progress` every few thousand lines and at the end.
    """

    def __init__(
        self,
        limiter: Limiter,
        log: CombinedLog | None = None,
        *,
        scenarios: ScenarioMap | None = None,
        lateness_ms: int = 60_000,
        shift_ms: int = 0,
        listed: Callable[[Request], Listed | None] | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> None:
        self.progress = Progress()
        self._limiter = limiter
        self._log = log or CombinedLog()
        self._scenarios = scenarios or ScenarioMap()
        self._lateness_ms = lateness_ms
        self._shift_ms = shift_ms
        self.listed = listed
        self._report = report or (lambda _: None)

    def decisions(self, lines: Iterable[Line]) -> Iterator[Decision]:
        """The decisions about a log's requests, in the order of their times."""
        progress = self.progress
        for request in self._in_order(self._requests(lines)):
            progress.first_ms = progress.first_ms or request.ts_ms
            progress.last_ms = max(progress.last_ms, request.ts_ms)
            for decision in self._decide(request):
                (progress.actions if decision.enforced else progress.would_have)[decision.action] += 1
                yield decision
        self._report(progress)

    def _decide(self, request: Request) -> tuple[Decision, ...]:
        listed = self.listed(request) if self.listed is not None else None
        return self._limiter.decide(request) if listed is None else (self._limiter.refuse_listed(request, listed),)

    def _requests(self, lines: Iterable[Line]) -> Iterator[Request]:
        progress, log, seed = self.progress, self._log, b""
        for line in lines:
            seed = seed or _seed(self._limiter.source, line, self._shift_ms)
            progress.lines += 1
            progress.read_bytes = line.offset + len(line.raw) + 1
            parsed = log.parse(line.raw)
            if parsed is not None:
                progress.requests += 1
                yield self._request(parsed, _line_id(seed, line))
            else:
                progress.unmatched, progress.shapes = log.unmatched, log.shapes
            if progress.lines % _PROGRESS_LINES == 0:
                self._report(progress)

    def _request(self, line: LogLine, event_id: str) -> Request:
        return Request(
            id=event_id,
            ts_ms=line.ts_ms + self._shift_ms,
            scenario=self._scenarios.scenario(line.method, line.path),
            subjects={"ip": line.ip},
            route=line.route,
            status=line.status,
        )

    def _in_order(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Sorted by time as far as `lateness` reaches; a line later than that is counted and passed on as it comes."""
        held: list[tuple[int, int, Request]] = []
        newest_ms = released_ms = 0
        for number, request in enumerate(requests):
            newest_ms = max(newest_ms, request.ts_ms)
            self.progress.late += request.ts_ms < released_ms
            heapq.heappush(held, (request.ts_ms, number, request))
            while held and (held[0][0] < newest_ms - self._lateness_ms or len(held) > MAX_HELD):
                ts_ms, _, first = heapq.heappop(held)
                released_ms = max(released_ms, ts_ms)
                yield first
        while held:
            yield heapq.heappop(held)[2]


def _seed(source: str, first: Line, shift_ms: int) -> bytes:
    """Identity of a log: who reads it, its first line, and by how much its times are moved."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (source.encode(), first.raw[:_IDENTITY_BYTES], str(shift_ms).encode()):
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()


def _line_id(seed: bytes, line: Line) -> str:
    digest = hashlib.blake2b(seed, digest_size=16)
    digest.update(line.offset.to_bytes(8, "big"))
    digest.update(line.raw)
    return digest.hexdigest()


def read_lines(stream: IO[bytes]) -> Iterator[Line]:
    """The lines of a stream. A line over the bound is cut, so that no line can fill the memory.

    Raises:
        ConfigurationError: it cannot be read on, or its compressed data is damaged.
    """
    offset = 0
    while raw := _read(stream, MAX_LINE_BYTES + 2):
        start, offset = offset, offset + len(raw)
        kept = raw.rstrip(b"\r\n")
        while not raw.endswith(b"\n") and (raw := _read(stream, MAX_LINE_BYTES)):
            offset += len(raw)
        yield Line(start, kept if start else kept.removeprefix(codecs.BOM_UTF8))


def _read(stream: IO[bytes], size: int) -> bytes:
    try:
        return stream.readline(size)
    except Exception as error:
        if not is_damage(error):
            raise
        raise unreadable(getattr(stream, "name", ""), error) from error


@contextmanager
def open_log(path: str | Path) -> Iterator[IO[bytes]]:
    """A log file opened for reading; gzip and zstd are known by their first bytes, whatever the name.

    Raises:
        ConfigurationError: it cannot be opened. What fails while it is in use is told by whom it fails.
    """
    try:
        plain = Path(path).open("rb")  # noqa: SIM115 - closed below; only its opening is our failure
        if not plain.seekable():
            with plain as pipe:
                plain = copied(pipe)
        stream = unpacked(plain, str(path))
    except OSError as error:
        raise unreadable(path, error) from error
    with plain, stream:
        yield stream


def copied(pipe: IO[bytes]) -> BufferedReader:
    """What comes through a pipe, such as a shell's <(…), as a file without a name: logs are looked into beforehand."""
    copy = TemporaryFile()  # noqa: SIM115 - closed by who asked for it
    shutil.copyfileobj(pipe, copy)
    copy.seek(0)
    return BufferedReader(copy.detach())


def end_of_log(lines: Iterable[Line]) -> int:
    """The newest time in a log, milliseconds; what `shift` is measured from.

    Raises:
        ConfigurationError: there is no request in it.
    """
    log = CombinedLog()
    newest_ms = max((parsed.ts_ms for line in lines if (parsed := log.parse(line.raw)) is not None), default=0)
    if not newest_ms:
        raise ConfigurationError(
            f"the log has no line in combined or common format; {log.unmatched} lines look like: "
            f"{', '.join(shape for shape, _ in log.shapes.most_common(3)) or 'nothing'}"
        )
    return newest_ms
