"""`penaltybox keys | clean`: the inline limiter's counters of one scenario, looked at and removed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.filesize import decimal
from rich.progress import Progress as Bar

from penaltybox.cli.console import AsJson, err, left, out, print_json, settings, table
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.subjects import DIMENSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penaltybox.contracts.settings import Settings
    from penaltybox.sinks.limit_counters import LimitCounter, LimitCounters, Walked, Which

Result = TypeVar("Result")
Scenario = Annotated[str, typer.Option(help="Whose counters: a scenario of the policy, today's or an old one.")]
Dimension = Annotated[str, typer.Option(help="Only those of this dimension or combination, e.g. device.")]
LimitName = Annotated[str, typer.Option("--limit", help="Only those of the limit with this name.")]


def keys(
    *,
    scenario: Scenario,
    dimension: Dimension = "",
    limit: LimitName = "",
    rows: Annotated[int, typer.Option(min=1, help="Rows in the table.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the limiter's counters of a scenario: whose they are, when they go, what they take.

    Walks the keys by SCAN, so it does no harm to a busy Redis. With --json: all of them, one a line.

        penaltybox keys --scenario coupon_claim --dimension device
    """
    which = _which(scenario, dimension, limit)

    async def collect(counters: LimitCounters, report: Callable[[Walked], None]) -> list[LimitCounter]:
        return [counter async for counter in counters.counters(which, report)]

    found = asyncio.run(_on_counters(settings(), collect, quiet=as_json))
    found.sort(key=lambda counter: (-counter.bytes, counter.key))
    if as_json:
        for counter in found:
            print_json(counter._asdict())
        return
    if not found:
        out.print(f"No counters of {scenario}. Is it a scenario of the policy, and was it asked about lately?")
        return
    shown = [(one.subject, one.limit, left(one.ttl_ms), decimal(one.bytes)) for one in found[:rows]]
    title = f"{_counters(len(found))} of {scenario}, {decimal(sum(one.bytes for one in found))} in Redis"
    title += f" (the largest {rows})" if len(found) > rows else ""
    out.print(table(title, ["subject", "limit", "left", "takes"], shown, right=["left", "takes"]))


def clean(
    *,
    scenario: Scenario,
    dimension: Dimension = "",
    limit: LimitName = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the limiter's counters of a scenario, such as a finished campaign's.

    Their subjects have their whole quota again. Penalties, blocks and other scenarios stay as they are. Counters go
    by SCAN and UNLINK in small batches while traffic runs on; interrupted, it can simply be run again.

        penaltybox clean --scenario coupon_claim
    """
    which = _which(scenario, dimension, limit)

    async def look(counters: LimitCounters, report: Callable[[Walked], None]) -> Walked:
        return await counters.tally(which, report)

    async def remove(counters: LimitCounters, report: Callable[[Walked], None]) -> Walked:
        return await counters.clean(which, report)

    values = settings()
    if dry_run or not yes:
        there = asyncio.run(_on_counters(values, look, quiet=as_json))
        if dry_run or not there.found:
            _tell(scenario, there, "would go" if dry_run else "there, so nothing to do", as_json=as_json, removed=0)
            return
        typer.confirm(f"Remove {_counters(there.found)} of {scenario} ({decimal(there.bytes)})?", abort=True, err=True)
    done = asyncio.run(_on_counters(values, remove, quiet=as_json))
    _tell(scenario, done, "removed", as_json=as_json, removed=done.found)


def _tell(scenario: str, walked: Walked, what: str, *, as_json: bool, removed: int) -> None:
    if as_json:
        print_json({"scenario": scenario, "counters": walked.found, "bytes": walked.bytes, "removed": removed})
    else:
        out.print(f"{_counters(walked.found)} of {scenario} {what} ({decimal(walked.bytes)}).", markup=False)


def _counters(count: int) -> str:
    return f"{count:,} counter" if count == 1 else f"{count:,} counters"


def _which(scenario: str, dimension: str, limit: str) -> Which:
    from penaltybox.sinks.limit_counters import Which

    if not scenario:
        raise ConfigurationError("--scenario: got nothing, wanted the scenario whose counters are meant")
    if dimension and not all(DIMENSION.fullmatch(part) for part in dimension.split("+")):
        raise ConfigurationError(f"--dimension: got {dimension!r}, wanted for example ip, device, or device+route")
    return Which(scenario, dimension, limit)


async def _on_counters(
    values: Settings,
    act: Callable[[LimitCounters, Callable[[Walked], None]], Awaitable[Result]],
    *,
    quiet: bool,
) -> Result:
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.sinks.limit_counters import LimitCounters

    link = open_link(endpoint_of(values))
    try:
        with Bar(console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
            task = bar.add_task("keys", total=None)
            return await act(
                LimitCounters(link, values.redis_prefix),
                lambda walked: bar.update(task, completed=walked.examined, total=walked.total),
            )
    finally:
        await link.close()
