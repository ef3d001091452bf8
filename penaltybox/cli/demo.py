"""`penaltybox demo`: the whole thing on this machine, in about a minute."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from penaltybox.cli.console import AsJson, err, out, policy_of, print_json, settings
from penaltybox.cli.roles import show_addresses, until_ended
from penaltybox.cli.setup import create_tables, create_topics
from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from rich.console import Console

    from penaltybox.cli.console_page.beside import Beside
    from penaltybox.cli.demo_play import Score
    from penaltybox.cli.demo_report import Facts
    from penaltybox.cli.fleet import Fleet
    from penaltybox.contracts.settings import Settings
    from penaltybox.embedded.stack import EmbeddedStack
    from penaltybox.producers.campaign import Campaign

_MATURES: Final = "1m"
"""The demo's console cannot wait a day for payments either."""
_REFRESH_S: Final = 0.25
_STEPS_S: Final = 5.0
_BURST: Final = 40_000
_LOG_REQUESTS: Final = 10_000


def demo(
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running, with the console to watch it, until Ctrl-C.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, max=8, help="Processes of the role penalties.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed, another campaign.")] = 1,
    labelled: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Of which fraction of the people outcomes are reported.")
    ] = 0.4,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the data goes; else a temporary directory.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """See it work: real servers on this machine, a real log, a simulated campaign, and what became of everybody.

    Starts a Kafka-compatible broker, Valkey and ClickHouse's engine on free local ports, a worker and the analytics
    role; replays 10,000 real requests; lets a coupon farm, credential stuffing, an office behind one address and
    ordinary people loose on it; prints penalties, blocklist and false positives. Ends by itself.
    """
    from penaltybox.cli.demo_play import CAMPAIGN_MS

    values = settings()
    policy = policy_of(None, values)
    if policy.late_after_ms <= CAMPAIGN_MS:
        raise ConfigurationError("demo: wanted a policy whose late_after is 10m or more, so that no step is late")
    asyncio.run(_demo(values, data_dir, keep=keep, workers=workers, seed=seed, labelled=labelled, as_json=as_json))


async def _demo(
    values: Settings, data_dir: Path | None, *, keep: bool, workers: int, seed: int, labelled: float, as_json: bool
) -> None:
    from penaltybox.cli.console_page.beside import Beside
    from penaltybox.cli.fleet import Fleet
    from penaltybox.embedded.stack import EmbeddedStack

    began = time.monotonic()
    _stop_on_signals()
    say = err if as_json else out
    say.print("Starting broker (Tansu), Valkey and ClickHouse's engine on this machine …")
    async with EmbeddedStack(data_dir) as stack:
        here = msgspec.structs.replace(stack.applied_to(values), hashed_dimensions=())
        await create_topics(here)
        await asyncio.to_thread(create_tables, here)
        fleet = Fleet(here, ["penalties"] * workers + ["analytics"], stack.data_dir / "logs")
        console = Beside(here, stack.data_dir / "logs", _MATURES) if keep else None
        if console is not None:
            fleet.processes["console"] = console.process
        try:
            await fleet.start()
            addresses = f"{stack.kafka}, {stack.redis_url}, {stack.clickhouse_url}"
            say.print(f"Up after {time.monotonic() - began:.1f} s: {addresses}", soft_wrap=True)
            if console is not None:
                await console.ready()
                say.print(f"Watch it: {console.address}", markup=False, soft_wrap=True)
            await _play(here, stack, fleet, seed=seed, labelled=labelled, burst=0 if keep else _BURST, as_json=as_json)
            say.print(f"The demo took {time.monotonic() - began:.0f} s.")
            _say_whats_next(stack, console, to=say)
            if keep:
                await _until_told(stack, fleet)
        finally:
            await fleet.stop()


def _stop_on_signals() -> None:
    """SIGTERM ends the demo as Ctrl-C does: with everything that it started."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def _play(
    here: Settings, stack: EmbeddedStack, fleet: Fleet, *, seed: int, labelled: float, burst: int, as_json: bool
) -> None:
    from penaltybox.cli import demo_report
    from penaltybox.cli.demo_play import Play

    play = Play(here, policy_of(None, here), check=fleet.check, seed=seed, labelled=labelled, burst=burst)
    found: list[tuple[Facts, Campaign]] = []

    async def read(campaign: Campaign) -> None:
        found.append((await demo_report.read_facts(here, campaign), campaign))

    await _watched(play.run(read), play.score, stack, quiet=as_json)
    facts, campaign = found[0]
    if as_json:
        print_json({"facts": facts, "score": play.score, "real_log": play.offline})
    else:
        out.print()
        out.print(demo_report.report(facts, campaign, play.offline, play.score))


async def _watched(
    playing: Coroutine[object, object, None], score: Score, stack: EmbeddedStack, *, quiet: bool
) -> None:
    """Runs the play, shows how it goes, and ends it when a server dies."""
    running = asyncio.create_task(playing)
    failure = asyncio.create_task(stack.wait_failed())
    try:
        with _screen(score, quiet=quiet) as show:
            while not running.done():
                await asyncio.wait({running, failure}, timeout=_REFRESH_S, return_when=asyncio.FIRST_COMPLETED)
                if failure.done():
                    raise failure.result()
                show()
        running.result()
    finally:
        for task in (running, failure):
            task.cancel()
            with suppress(asyncio.CancelledError, PenaltyboxError):
                await task


@contextmanager
def _screen(score: Score, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A board that is redrawn on a terminal; a line now and then elsewhere."""
    if quiet:
        yield lambda: None
    elif out.is_terminal:
        with Live(_board(score), console=out, auto_refresh=False, transient=True) as live:
            yield lambda: live.update(_board(score), refresh=True)
    else:
        phase, told_at = "", 0.0

        def tell() -> None:
            nonlocal phase, told_at
            if score.phase != phase or time.monotonic() - told_at > _STEPS_S:
                phase, told_at = score.phase, time.monotonic()
                out.print(f"  {_line(score)}", soft_wrap=True)

        yield tell


def _line(score: Score) -> str:
    return (
        f"{score.phase}: {score.log_requests + score.campaign_requests:,} requests, {score.refused:,} refused, "
        f"{score.outcomes:,} outcomes, {score.penalties:,} penalties on {score.subjects:,} subjects"
    )


def _board(score: Score) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("[bold]now[/bold]", score.phase)
    grid.add_row("real log", ProgressBar(_LOG_REQUESTS, score.log_requests, width=40))
    grid.add_row("campaign", ProgressBar(max(1, score.campaign_planned), score.campaign_requests, width=40))
    grid.add_row("its clock", f"minute {score.campaign_ms / 60_000:.1f} of 9")
    grid.add_row("requests", f"{score.log_requests + score.campaign_requests:,}, {score.refused:,} refused")
    grid.add_row("outcomes", f"{score.outcomes:,}")
    grid.add_row("penalties", f"{score.penalties:,} on {score.subjects:,} subjects")
    return grid


def _say_whats_next(stack: EmbeddedStack, console: Beside | None, *, to: Console) -> None:
    to.print(
        "\nEmbedded here: the broker (in memory, one node), Valkey, and ClickHouse's engine\n"
        "in a process. Limiter, workers and queries are the real ones. For your servers:\n"
        "  export PENALTYBOX_KAFKA=host:9092\n"
        "  export PENALTYBOX_REDIS_URL=redis://host:6379/0\n"
        "  export PENALTYBOX_CLICKHOUSE_URL=http://host:8123\n"
        "  penaltybox doctor; penaltybox setup\n"
        "  penaltybox run penalties & penaltybox run analytics"
    )
    if console is not None:
        to.print()
        show_addresses(stack)
        to.print("  penaltybox explain device:farm-phone")
        to.print(f"In a browser: {console.address}", markup=False, soft_wrap=True)
        to.print("Ctrl-C ends all of it.")
    else:
        to.print("With --keep everything stays up to be looked at, in a browser too.")


async def _until_told(stack: EmbeddedStack, fleet: Fleet) -> None:
    from penaltybox.processors.ending import Ending

    ending = Ending()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.request)
    await until_ended(ending, fleet, stack)
