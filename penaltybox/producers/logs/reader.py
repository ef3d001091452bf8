"""The lines of one log as decisions, each with an id that depends on where it was read.

An id is a hash of the log's identity, the line's offset and the line. The identity is the format, the name that the
reader gives the log (`source`) and its first line: so a log that has grown, was renamed by rotation, copied, or
compressed has the same ids when it is read again, and counts once.
"""

from __future__ import annotations

import hashlib
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.events import Decision
from penaltybox.contracts.ids import stable_id
from penaltybox.producers.adapters.envelopes import inside
from penaltybox.producers.adapters.reading import Passed, Reading, Unmatched

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Format, Options, Read
    from penaltybox.producers.logs.blocks import Block
    from penaltybox.producers.logs.progress import Progress

_IDENTITY_BYTES: Final = 1024
ALLOWED: Final = "requests that the limiter let pass; --allowed publishes them"
HEAD_BYTES: Final = 65_536
"""Of a log's beginning, and of what stands before the place to go on at, when reading does not begin there."""
_BOM: Final = b"\xef\xbb\xbf"
"""What some programs of Windows put before UTF-8. It is no part of the first line."""


_TOO_LONG: Final = Unmatched("a line too long")


class Found(msgspec.Struct, frozen=True, gc=False):
    """A decision, its time, and the offset of its line."""

    ts_ms: int
    start: int
    decision: Decision


class LogReader:
    """Reads one log.

    Args:
        form: its format.
        options: what the format may know.
        source: ``limiter/instance``, in every decision and part of every id.
        progress: where lines are counted; several logs may share it.
        allowed: also requests that the limiter let pass.
    """

    def __init__(
        self, form: Format, options: Options, source: str, progress: Progress, *, allowed: bool = False
    ) -> None:
        self._adapter = form.make(options)
        self._programs = options.programs or form.programs
        self._name = form.name
        self._source = source
        self._progress = progress
        self._allowed = allowed
        self._identity: hashlib.blake2b | None = None

    def begin(self, head: bytes, before: bytes = b"") -> None:
        """The log's first bytes, when reading will not begin there, and those before the place where it will."""
        self._adapter.begin(head[: head.rfind(b"\n") + 1])
        first = next(filter(_identifies, head.split(b"\n")), None)
        if first is not None:
            self._identify(first)
        for line in before.split(b"\n")[1:-1]:  # the first one may be cut
            self._said(line.rstrip(b"\r"))

    def read(self, block: Block, *, backwards: bool = False) -> list[Found]:
        """The decisions of a block, in the order of its lines, or from its last line to its first."""
        lines = block.data.split(b"\n")
        starts = _starts(block.start, lines)
        if backwards:
            lines.reverse()
            starts.reverse()
        progress = self._progress
        progress.lines += len(lines)
        progress.read_bytes += block.end - block.start
        if block.start == 0 and block.data.startswith(_BOM):
            self._identify(block.data.partition(b"\n")[0].rstrip(b"\r"))
            lines[-1 if backwards else 0] = lines[-1 if backwards else 0][len(_BOM) :]
        found: list[Found] = []
        self._read(starts, lines, found)
        progress.made([one.decision for one in found])
        return found

    def _said(self, line: bytes) -> Read:
        said = self._adapter.read(line) if len(line) <= self._adapter.longest else _TOO_LONG
        return self._inside(line, said) if isinstance(said, Unmatched) else said

    def _read(self, starts: list[int], lines: list[bytes], found: list[Found]) -> None:
        read, longest, allowed, decision = self._adapter.read, self._adapter.longest, self._allowed, self._decision
        for start, raw in zip(starts, lines, strict=True):
            line = raw.rstrip(b"\r")
            if self._identity is None and _identifies(line):
                self._identify(line)
            said = read(line) if len(line) <= longest else _TOO_LONG
            if isinstance(said, Unmatched):
                said = self._inside(line, said)
            if isinstance(said, Reading) and (allowed or said.action != "allow"):
                found.append(Found(said.ts_ms, start, decision(said, start, line, 0)))
            else:
                self._count(said, start, line, found)

    def _count(self, said: Read, start: int, line: bytes, found: list[Found]) -> None:
        """A line that is not exactly one decision."""
        if isinstance(said, Passed):
            self._progress.passed[said.why] += 1
        elif isinstance(said, Unmatched):
            if line:
                self._progress.refuse(said.why, line)
        elif isinstance(said, Reading):
            self._progress.passed[ALLOWED] += 1
        else:
            for number, one in enumerate(said):
                if one.action == "allow" and not self._allowed:
                    self._progress.passed[ALLOWED] += 1
                else:
                    found.append(Found(one.ts_ms, start, self._decision(one, start, line, number)))

    def _inside(self, line: bytes, said: Unmatched) -> Read:
        inner = None if said is _TOO_LONG else inside(line, self._programs)
        return self._adapter.read(inner) if isinstance(inner, bytes) else inner or said

    def _identify(self, first: bytes) -> None:
        self._identity = hashlib.blake2b(digest_size=16)
        for part in (self._name.encode(), self._source.encode(), first.rstrip(b"\r")[:_IDENTITY_BYTES]):
            self._identity.update(len(part).to_bytes(4, "big") + part)

    def _decision(self, said: Reading, start: int, line: bytes, number: int) -> Decision:
        if said.id:
            event_id = stable_id(self._source, self._name, said.id)
        else:
            if self._identity is None:  # a header that says something about limiting: it has no first line before it
                self._identify(line)
            digest = self._identity.copy()  # type: ignore[union-attr] # just identified
            digest.update(b"%d %d %b" % (start, number, line))
            event_id = digest.hexdigest()
        return _sparse(said, event_id, self._source) if _is_sparse(said) else _full(said, event_id, self._source)


def _is_sparse(said: Reading) -> bool:
    """Whether it has none of what few formats know."""
    return (
        said.limit is None
        and said.retry_after_s is None
        and said.remaining is None
        and said.window_s is None
        and said.established is None
        and said.sample_rate is None
        and said.count == 1
        and said.cost == 1
        and not said.cached
    )


def _sparse(said: Reading, event_id: str, source: str) -> Decision:
    """All that every format knows; what is not named has its default, which costs a fifth of naming all."""
    return Decision(
        v=1,
        id=event_id,
        ts=said.ts_ms,
        source=source,
        scenario=said.scenario,
        action=said.action,
        reason=said.reason,
        violated=said.violated,
        subjects=said.subjects,
        route=said.route,
        status=said.status,
        enforced=said.enforced,
        attrs=said.attrs,
    )


def _full(said: Reading, event_id: str, source: str) -> Decision:
    return msgspec.structs.replace(
        _sparse(said, event_id, source),
        established=said.established,
        limit=said.limit,
        window_s=said.window_s,
        remaining=said.remaining,
        retry_after_s=said.retry_after_s,
        cost=said.cost,
        count=said.count,
        cached=said.cached,
        sample_rate=said.sample_rate,
    )


def _identifies(line: bytes) -> bool:
    """Whether it is a log's first line of its own: not a header, which many logs share."""
    return line != b"" and not line.startswith(b"#")


def _starts(start: int, lines: list[bytes]) -> list[int]:
    """The offsets of lines, each with its newline."""
    lengths = map(len, lines)
    return [start + number for number in accumulate((length + 1 for length in lengths), initial=0)][:-1]
