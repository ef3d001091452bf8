"""What `penaltybox ingest FORMAT` shows: progress, the summary, and why a line is read as it is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penaltybox.cli.console import err, instant, left, out, print_json, table
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import AHEAD_MS
from penaltybox.producers.adapters.envelopes import inside
from penaltybox.producers.adapters.reading import Passed, Reading, Unmatched
from penaltybox.producers.adapters.registry import SUMMARIES, load
from penaltybox.producers.logs.files import compression

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penaltybox.producers.adapters.reading import Options, Read
    from penaltybox.producers.logs.progress import Progress as Counts

_SHAPES_SHOWN = 5


@contextmanager
def progress_bar(paths: list[Path], *, quiet: bool) -> Iterator[Callable[[Counts], None]]:
    """A bar of the bytes read; without an end when something is compressed, or comes through a pipe."""
    columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[counts]}"), TimeElapsedColumn()]
    hidden = quiet or not err.is_terminal
    with Progress(*columns, console=err, transient=True, disable=hidden) as bar:
        task = bar.add_task("reading", total=None if hidden else _size(paths), counts="")

        def report(counts: Counts) -> None:
            bar.update(task, completed=counts.read_bytes, counts=f"{counts.decisions:,} decisions")

        yield report


def _size(paths: list[Path]) -> int | None:
    try:
        sizes = [None if compression(path) else path.stat().st_size for path in paths]
    except OSError:
        return None
    return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None


def show_counts(counts: Counts, form: str, *, published: bool, as_json: bool) -> None:
    """What was read, and what became of it."""
    if as_json:
        print_json(counts)
        return
    span = f" from {instant(counts.first_ms)} to {instant(counts.last_ms)}" if counts.decisions else ""
    out.print(f"Read {counts.lines:,} lines: {counts.decisions:,} decisions{span}.")
    if counts.decisions and published:
        told = [f"{count:,} {action}" for action, count in counts.actions.most_common()]
        told += [f"{count:,} {action} of a dry run" for action, count in counts.would_have.most_common()]
        out.print(f"Published: {', '.join(told)}.")
    if counts.descending:
        out.print(f"{counts.descending:,} logs run backwards in time and were read from their end.")
    if counts.late:
        out.print(f"{counts.late:,} came later than --lateness and were taken as they came.")
    _show_counter("lines say nothing about limiting", counts.passed)
    if counts.unmatched:
        _show_counter(f"lines are not read as {form}", counts.unmatched)
        out.print("They look like:")
        for shape, count in counts.shapes.most_common(_SHAPES_SHOWN):
            out.print(f"  {count:>8,}  {shape}", markup=False)
        out.print(f"`penaltybox ingest {form} --explain-line 'LINE'` says what is wrong with one.")


def warn_of_the_future(counts: Counts, at_ms: int) -> None:
    """Says that workers will set decisions aside, which a wrong zone is the usual reason for."""
    ahead_ms = counts.last_ms - at_ms
    if ahead_ms > AHEAD_MS:
        err.print(
            f"The latest decision is {left(ahead_ms)} ahead of this machine's clock. Workers set aside what is more "
            f"than {left(AHEAD_MS)} ahead. Is --tz the log's zone?",
            markup=False,
        )


def _show_counter(what: str, counter: Counter[str]) -> None:
    if counter:
        out.print(f"{counter.total():,} {what}:")
        for why, count in counter.most_common():
            out.print(f"  {count:>8,}  {why}", markup=False)


def explain_line(form: str, text: str, options: Options, *, as_json: bool) -> None:
    """Why a line is a decision of a format, or none: field by field."""
    line = text.encode("utf-8", "surrogateescape").rstrip(b"\r\n")
    known = load(form)
    adapter = known.make(options)
    said: Read = adapter.read(line)
    found = inside(line, options.programs or known.programs) if isinstance(said, Unmatched) else None
    inner = found if isinstance(found, bytes) else None
    if found is not None:
        said = adapter.read(found) if isinstance(found, bytes) else found
    explained = adapter.explain(line if inner is None else inner) if isinstance(said, Unmatched) else ""
    others = _others(form, line, options) if isinstance(said, Unmatched) else []
    document: dict[str, Any] = {
        "format": form,
        "result": "unmatched" if isinstance(said, Unmatched) else "passed" if isinstance(said, Passed) else "decision",
        "unwrapped": inner is not None,
        "why": "" if isinstance(said, Reading | tuple) and not isinstance(said, Passed | Unmatched) else said.why,
        "explained": explained,
        "readings": _fields(said),
        "other_formats": others,
    }
    if as_json:
        print_json(document)
        return
    _show_explained(document)


def _fields(said: Read) -> list[dict[str, Any]]:
    if isinstance(said, Passed | Unmatched):
        return []
    readings = (said,) if isinstance(said, Reading) else said
    return [cast("dict[str, Any]", msgspec.to_builtins(one)) for one in readings]


def _others(form: str, line: bytes, options: Options) -> list[str]:
    """Formats that would make a decision of the line."""
    found = []
    for name in SUMMARIES:
        if name == form:
            continue
        try:
            said = load(name).make(options._replace(values={}, reject_statuses=frozenset())).read(line)
        except ConfigurationError:  # it wants options
            continue
        if not isinstance(said, Passed | Unmatched):
            found.append(name)
    return found


def _show_explained(document: dict[str, Any]) -> None:
    if document["unwrapped"]:
        out.print("The line is wrapped (syslog, journal or container runtime); what is inside was read.")
    result = {
        "decision": f"A decision of {document['format']}.",
        "passed": f"A line of {document['format']} that says nothing about limiting: {document['why']}.",
        "unmatched": f"Not read as {document['format']}: {document['why']}.",
    }
    out.print(result[document["result"]], markup=False)
    for part in filter(None, document["explained"].split("; ")):
        out.print(f"  {part}", markup=False)
    for one in document["readings"]:
        rows = [(name, _shown(name, value)) for name, value in one.items()]
        out.print(table("Fields", ["field", "value"], rows))
    if document["other_formats"]:
        out.print(f"It would be a decision of: {', '.join(document['other_formats'])}.")


def _shown(name: str, value: object) -> str:
    if name == "ts_ms" and isinstance(value, int):
        return f"{value} ({instant(value)})"
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
