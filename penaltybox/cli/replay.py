"""`penaltybox replay`: what another policy would have done to recorded traffic. It touches nothing that is live."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from penaltybox.cli.console import AsJson, PolicyFile, err, kafka_errors, policy_of, settings
from penaltybox.cli.ingest import scenario_map
from penaltybox.cli.replay_job import RECORDED, Job
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.errors import ConfigurationError, shown
from penaltybox.processors.replay.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.replay.loop import Progress as Far

_Baseline = Annotated[
    str,
    typer.Option(
        metavar="FILE|recorded",
        help="What it is compared with: another policy file, or what live workers used then.",
        show_default=False,
    ),
]
_Source = Annotated[
    str,
    typer.Option(
        metavar="kafka|FILE|combined:FILE|clickhouse",
        help="The recorded events: the topics, JSON lines (.gz, .zst), Parquet, a web server's log, or ClickHouse.",
    ),
]
_From = Annotated[str, typer.Option("--from", help="Results count from here: a time, a date, or -2h.")]
_To = Annotated[str, typer.Option("--to", help="And before this.")]
_WarmUp = Annotated[
    str, typer.Option(metavar="DURATION", help="How far before --from to read; else as far as the policies look back.")
]
_Processes = Annotated[
    int, typer.Option(min=1, max=64, help="So many that step, beside this one; partitions or subjects are shared out.")
]
_Speed = Annotated[
    float | None, typer.Option(min=0.001, max=1e9, help="Times the recorded pace, instead of as fast as it goes.")
]
_Scenario = Annotated[str, typer.Option(help="combined: the scenario of the limits that requests belong to.")]
_Mapping = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="[METHOD ]/PREFIX=SCENARIO", help="combined: another one for a part of the paths."),
]
_Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the comparison as one page too.", dir_okay=False)
]
_FailIf = Annotated[
    list[str] | None,
    typer.Option("--fail-if", metavar="CONDITION", help="Exit with code 3 if this holds: 'new.permanent > 0'."),
]
_Matures = Annotated[
    str,
    typer.Option(metavar="DURATION", help="Labels come this soon, instead of within each kind's own time (up to 30d)."),
]


def replay(
    *,
    policy_file: PolicyFile = None,
    baseline: _Baseline = "",
    source: _Source = "kafka",
    from_: _From = "",
    to: _To = "",
    warm_up: _WarmUp = "",
    processes: _Processes = 1,
    speed: _Speed = None,
    scenario: _Scenario = "web",
    mapping: _Mapping = None,
    html: _Html = None,
    fail_if: _FailIf = None,
    matures: _Matures = "",
    as_json: AsJson = False,
) -> None:
    """Run recorded traffic through a policy, in memory: which penalties it would have led to.

    Nothing is written anywhere, no consumer group is joined, live Redis and ClickHouse are not asked.

    The last two hours of the topics; the days before them fill the windows and are left out of the result:

        penaltybox replay --policy candidate.yaml --baseline current.yaml --from -2h

    Beside what live workers did, under the policies that were in force then:

        penaltybox replay --policy candidate.yaml --baseline recorded

    A file of decisions, one JSON object a line, under a changed policy beside today's:

        penaltybox replay --policy candidate.yaml --baseline current.yaml --source decisions.jsonl.gz

    With a page of plots, and as a gate that exits with code 3 (docs/replay.md names the figures):

        penaltybox replay --policy candidate.yaml --baseline current.yaml --source decisions.jsonl.gz
        --html report.html --fail-if "fdr.ip > 0.02" --fail-if "new.permanent > 0"
    """
    from penaltybox.cli.replay_diff import finish, make_diff
    from penaltybox.cli.replay_parts import run_shared

    values = settings()
    job = make_job(
        values,
        policy_of(policy_file, values),
        baseline=baseline,
        source=source,
        span=(from_, to, warm_up),
        processes=processes,
        speed=speed,
        scenarios=scenario_map(mapping or [], scenario),
    )
    matures_ms = parse_duration(matures, "--matures") if matures else None
    diff = make_diff(job, fail_if=fail_if or (), page=html, matures_ms=matures_ms)
    if matures and diff is None:
        raise ConfigurationError(
            f"--matures: got {shown(matures)}, and nothing is compared, so no label is used: give --baseline, "
            "--fail-if or --html, or leave it out"
        )
    with kafka_errors(values), progress(quiet=as_json) as report:
        result = asyncio.run(run_shared(job, report=report, observer=diff.comparison if diff is not None else None))
    finish(result, diff, as_json=as_json)


def make_job(
    values: Settings,
    candidate: Policy,
    *,
    baseline: str,
    source: str,
    span: tuple[str, str, str],
    processes: int = 1,
    speed: float | None = None,
    scenarios: dict[str, str] | None = None,
) -> Job:
    """A replay as the command's options describe it; `span` is (from, to, warm-up) as typed.

    Raises:
        ConfigurationError: an option, or the baseline's file, is not right.
    """
    now = now_ms()
    from_, to, warm_up = span
    if warm_up and not from_:
        raise ConfigurationError(
            f"--warm-up: got {shown(warm_up)} without --from. Without it all that is there counts, and nothing lies "
            "before it: give --from, or leave --warm-up out"
        )
    return Job(
        settings=values,
        candidate=candidate,
        baseline=None if baseline in ("", RECORDED) else policy_of(Path(baseline), values),
        recorded=baseline == RECORDED,
        source=source,
        from_ms=parse_time(from_, "--from", now) if from_ else None,
        to_ms=parse_time(to, "--to", now) if to else None,
        warm_up_ms=parse_duration(warm_up, "--warm-up") if warm_up else None,
        processes=processes,
        speed=speed,
        scenarios=scenarios or {},
    )


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[Far], None]]:
    """A bar with rate and remaining time, on standard error while that is a terminal."""
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task("replaying", total=None, rate="")

        def report(far: Far) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = f"{far.decisions:,} decisions, {far.decisions / elapsed:,.0f}/s" if elapsed else ""
            bar.update(task, completed=far.done, total=far.total, rate=rate)

        yield report
