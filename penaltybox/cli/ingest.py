"""`penaltybox ingest`: logs read as decisions, published, printed, or judged on the spot."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final, cast

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penaltybox.cli.console import AsJson, PolicyFile, err, instant, left, out, policy_of, print_json, settings, table
from penaltybox.cli.ingest_formats import TEMPLATE, FormatGroup, formats, ingest_format
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import MAX_SCENARIO, encode
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers import ingest as logs
from penaltybox.producers.combined import CombinedLog
from penaltybox.producers.limiter import Limiter
from penaltybox.producers.logs.files import unpacked
from penaltybox.producers.pseudonyms import Pseudonyms
from penaltybox.producers.scenario_map import ScenarioMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penaltybox.cli.offline import Summary
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings

_HELP: Final = (
    "Read logs as decisions: an access log through the limits of your policy (combined), or what another limiter has "
    "decided (all other formats)."
)
app = typer.Typer(help=_HELP, no_args_is_help=True, cls=FormatGroup)
app.command("formats")(formats)
app.command(TEMPLATE)(ingest_format)
_OLD_MS: Final = 3_600_000


_Log = Annotated[str, typer.Argument(metavar="FILE|-", help="The access log (also .gz, .zst), or - for stdin.")]
_Offline = Annotated[
    bool, typer.Option("--offline", help="Limiter and penalties here and now, in memory; publish nothing.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the decisions as JSON lines; publish nothing.")]
_Shift = Annotated[
    str, typer.Option(metavar="now", help="Move the log's times so that it ends now.", show_default=False)
]
_Scenario = Annotated[str, typer.Option(help="The scenario of the policy's limits that requests belong to.")]
_Mapping = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="[METHOD ]/PREFIX=SCENARIO", help="Another scenario for a part of the paths."),
]
_Source = Annotated[str, typer.Option(help="Name of this log, limiter/instance. Part of every id.")]


@app.command()
def combined(
    log: _Log,
    *,
    policy_file: PolicyFile = None,
    offline: _Offline = False,
    dry_run: _DryRun = False,
    shift: _Shift = "",
    scenario: _Scenario = "web",
    mapping: _Mapping = None,
    source: _Source = "access-log/1",
    as_json: AsJson = False,
) -> None:
    """Read a web server's access log (combined or common format).

    Each request passes the limits of the policy as it would have then, and the decision is published for the
    penalties role. Read twice, a log counts once.

    What limiter and penalties would have done to last week's traffic, with nothing deployed:

        penaltybox ingest combined access.log --offline --policy access-log

    Into your Kafka, as if it had just happened:

        penaltybox ingest combined access.log.1.gz --shift now --map "POST /login=login"
    """
    _check_flags(shift, offline=offline, dry_run=dry_run)
    source = name_of("--source", source) or "access-log/1"
    values = settings()
    reading = _Reading(values, policy_of(policy_file, values), source, scenario_map(mapping or [], scenario))
    with _source(log, seekable=bool(shift)) as stream, _progress(stream, as_json or dry_run) as report:
        task, lines = reading.start(stream, report, shifted=bool(shift))
        if dry_run:
            _print_decisions(task, lines, values)
        elif offline:
            summary = _judge(task, lines, reading.policy, reading.canonicaliser)
        else:
            asyncio.run(_publish(task, lines, values))
    if offline:
        _show_summary(task.progress, summary, as_json=as_json)
    elif not dry_run:
        _show_published(task.progress, as_json=as_json)


def _check_flags(shift: str, *, offline: bool, dry_run: bool) -> None:
    if shift not in ("", "now"):
        raise ConfigurationError(f"--shift: got {shift!r}, wanted now")
    if offline and dry_run:
        raise ConfigurationError("--offline and --dry-run: wanted one of them")


class _Reading:
    """A log about to be read: with which limits, and which of its requests belong to which scenario."""

    def __init__(self, values: Settings, policy: Policy, source: str, scenarios: dict[str, str]) -> None:
        unknown = sorted(set(scenarios.values()) - set(policy.limits))
        if unknown:
            raise ConfigurationError(
                f"scenario {unknown[0]!r}: the policy has no limits for it; it has "
                f"{', '.join(policy.limits) or 'none'}. Use --scenario, --map or another --policy."
            )
        self.policy = policy
        self.canonicaliser = Canonicaliser(values.ipv6_prefix)
        self._source = source
        default = scenarios.pop("")
        self._scenarios = ScenarioMap(scenarios, default)

    def start(
        self, stream: IO[bytes], report: Callable[[logs.Progress], None], *, shifted: bool
    ) -> tuple[logs.LogIngest, Iterator[logs.Line]]:
        """The ingest and its lines; a log that is shifted is read once before, for its end."""
        shift_ms = 0
        if shifted:
            shift_ms = now_ms() - logs.end_of_log(logs.read_lines(stream))
            stream.seek(0)
        task = logs.LogIngest(
            Limiter(self.policy.limits, source=self._source, canonicaliser=self.canonicaliser),
            CombinedLog(canonicaliser=self.canonicaliser),
            scenarios=self._scenarios,
            lateness_ms=self.policy.lateness_ms,
            shift_ms=shift_ms,
            report=report,
        )
        return task, logs.read_lines(stream)


def scenario_map(mapping: list[str], default: str) -> dict[str, str]:
    """Prefix -> scenario; the empty prefix is the default."""
    found = {"": name_of("--scenario", default)}
    for text in mapping:
        prefix, equals, scenario = text.rpartition("=")
        if not equals or not prefix:
            raise ConfigurationError(f"--map: got {text!r}, wanted /PREFIX=SCENARIO or 'POST /PREFIX=SCENARIO'")
        found[prefix] = name_of("--map", scenario)
    return found


def name_of(option: str, text: str) -> str:
    """A name that every decision has: one that workers refuse would make dead letters of them all.

    Raises:
        ConfigurationError: it is too long, or not for printing.
    """
    if len(text) > MAX_SCENARIO or not text.isprintable():
        raise ConfigurationError(
            f"{option}: got {text[:40]!a}, wanted at most {MAX_SCENARIO} characters that can be printed"
        )
    return text


@contextmanager
def _source(log: str, *, seekable: bool) -> Iterator[IO[bytes]]:
    """The log as a stream. Standard input is copied to a temporary file when it must be read twice."""
    if log != "-":
        with logs.open_log(log) as stream:
            yield stream
    elif seekable:
        with logs.copied(sys.stdin.buffer) as copy:
            yield unpacked(copy, log)
    else:
        yield unpacked(sys.stdin.buffer, log)


@contextmanager
def _progress(stream: IO[bytes], quiet: bool) -> Iterator[Callable[[logs.Progress], None]]:
    size = _size(stream)
    columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[counts]}"), TimeElapsedColumn()]
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task("reading", total=size, counts="")

        def report(progress: logs.Progress) -> None:
            counts = f"{progress.requests:,} requests, {progress.actions.total() - progress.actions['allow']:,} refused"
            bar.update(task, completed=progress.read_bytes, counts=counts)

        yield report


def _size(stream: IO[bytes]) -> int | None:
    name = getattr(stream, "name", None)
    return Path(name).stat().st_size if isinstance(name, str) and Path(name).is_file() else None


def _print_decisions(task: logs.LogIngest, lines: Iterator[logs.Line], values: Settings) -> None:
    pseudonyms = Pseudonyms(values)
    for decision in task.decisions(lines):
        sys.stdout.buffer.write(encode(pseudonyms.applied(decision)) + b"\n")
    sys.stdout.buffer.flush()


def _judge(task: logs.LogIngest, lines: Iterator[logs.Line], policy: Policy, canonicaliser: Canonicaliser) -> Summary:
    from penaltybox.cli.offline import Offline, run_offline

    judged = Offline(policy, canonicaliser)
    task.listed = judged.listed
    return run_offline(task.decisions(lines), judged)


async def _publish(task: logs.LogIngest, lines: Iterator[logs.Line], values: Settings) -> None:
    from penaltybox.producers.publisher import Publisher

    async with Publisher(values) as publisher:
        for decision in task.decisions(lines):
            await publisher.send(decision)


def _show_published(progress: logs.Progress, *, as_json: bool) -> None:
    if as_json:
        print_json(progress)
        return
    _show_reading(progress)
    counts = ", ".join(f"{count:,} {action}" for action, count in progress.actions.most_common())
    out.print(f"Published {progress.actions.total() + progress.would_have.total():,} decisions: {counts or 'none'}.")
    age_ms = now_ms() - progress.last_ms
    if progress.last_ms and age_ms > _OLD_MS:
        out.print(
            f"The log ends {left(age_ms)} ago. Penalties are reported as of then; blocks that have ended meanwhile are "
            "not written. --shift now moves its end to the present."
        )


def _show_summary(progress: logs.Progress, summary: Summary, *, as_json: bool) -> None:
    if as_json:
        print_json(cast("object", {"log": progress, "summary": summary}))
        return
    _show_reading(progress)
    refused = summary.over_limit + summary.stopped + summary.challenged
    out.print(
        f"Of {summary.requests:,} requests {summary.allowed:,} would have been allowed and {refused:,} refused: "
        f"{summary.over_limit:,} over a limit, {summary.stopped:,} stopped by a block, "
        f"{summary.challenged:,} challenged by one."
    )
    if not summary.penalties:
        out.print("No rule would have led to a penalty.")
        return
    out.print()
    rows = [(rule, count) for rule, count in summary.by_rule.items()]
    out.print(table("Penalties by rule", ["rule", "penalties"], rows, right=["penalties"]))
    out.print()
    rows = [(rung, count) for rung, count in summary.by_rung.items()]
    out.print(table("Penalties by rung", ["rung", "penalties"], rows, right=["penalties"]))
    out.print()
    columns = ["subject", "highest", "penalties", "over limit", "stopped", "challenged"]
    top = [(t.subject, t.highest, t.penalties, t.over_limit, t.stopped, t.challenged) for t in summary.top]
    title = f"Penalised subjects ({min(len(top), summary.subjects_penalised)} of {summary.subjects_penalised})"
    out.print(table(title, columns, top, right=columns[2:]))


def _show_reading(progress: logs.Progress) -> None:
    out.print(
        f"Read {progress.lines:,} lines, {progress.requests:,} requests from {instant(progress.first_ms or None)} "
        f"to {instant(progress.last_ms or None)}."
    )
    if progress.late:
        out.print(f"{progress.late:,} lines came later than the policy's lateness and were taken as they came.")
    if progress.unmatched:
        out.print(f"{progress.unmatched:,} lines are no requests in combined or common format; they look like:")
        for shape, count in sorted(progress.shapes.items(), key=lambda item: -item[1])[:5]:
            out.print(f"  {count:>8,}  {shape}", markup=False)
