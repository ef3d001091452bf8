"""`penaltybox ingest FORMAT`: the decisions of other people's limiters, from their logs."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import sys
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final
from zoneinfo import ZoneInfo

import typer
from typer.core import TyperGroup

from penaltybox.cli.console import AsJson, err, out, print_json, settings, tell
from penaltybox.cli.ingest_view import explain_line, progress_bar, show_counts, warn_of_the_future
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import encode
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.adapters.reading import Options
from penaltybox.producers.adapters.registry import SUMMARIES, load
from penaltybox.producers.adapters.targets import Targets
from penaltybox.producers.logs.checkpoint import Checkpoint
from penaltybox.producers.logs.delivery import Delivery
from penaltybox.producers.logs.files import logs_of, unpacked
from penaltybox.producers.logs.follow import Follower, Pipe
from penaltybox.producers.logs.garbage import collected_less_often
from penaltybox.producers.logs.passage import Common, stretches
from penaltybox.producers.logs.progress import Progress
from penaltybox.producers.logs.whole import WholeLogs
from penaltybox.producers.pseudonyms import Pseudonyms
from penaltybox.producers.scenario_map import ScenarioMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penaltybox.contracts.events import Decision
    from penaltybox.contracts.settings import Settings
    from penaltybox.producers.logs.delivery import Outlet

TEMPLATE: Final = "FORMAT"
"""The command that all formats share; it goes by each of their names."""


class FormatGroup(TyperGroup):
    """A group that has a command for every format, beside its own."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Its own commands, then the formats."""
        return [*(name for name in super().list_commands(ctx) if name != TEMPLATE), *SUMMARIES]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Says which there are, instead of only that one is not there."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            near = get_close_matches(args[0], names)
            wanted = f"wanted {' or '.join(near)}?" if near else f"wanted one of {', '.join(names)}"
            raise ConfigurationError(f"ingest: got {args[0]!r}, {wanted}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of its own, or the shared one under a format's name."""
        if cmd_name not in SUMMARIES:
            return super().get_command(ctx, cmd_name)
        made = copy.copy(self.commands[TEMPLATE])
        made.name, made.short_help = cmd_name, SUMMARIES[cmd_name]
        made.help = f"{SUMMARIES[cmd_name]}\n\n{made.help}"
        return made


_Source = Annotated[
    str, typer.Argument(metavar="FILE|-|DIR", help="A log (also .gz, .zst), standard input, or a folder of logs.")
]
_Follow = Annotated[bool, typer.Option("--follow", help="Go on as the log is written, rotations included.")]
_Zone = Annotated[str, typer.Option("--tz", metavar="ZONE", help="Of times without an offset; else this machine's.")]
_Saved = Annotated[
    Path | None, typer.Option("--checkpoint", metavar="PATH", help="File that keeps how far it has come.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the decisions as JSON lines; publish nothing.")]
_Explain = Annotated[str, typer.Option("--explain-line", metavar="TEXT", help="Say why a line is read as it is.")]
_Status = Annotated[str, typer.Option("--status", metavar="N[,N]", help="The statuses that mean a refusal.")]
_Option = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of the format: see formats.")
]
_Allowed = Annotated[bool, typer.Option("--allowed", help="Also requests that the limiter let pass.")]
_Scenario = Annotated[str, typer.Option(help="The scenario of the decisions.")]
_Mapping = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="[METHOD ]/PREFIX=SCENARIO", help="Another scenario for a part of the paths."),
]
_Name = Annotated[
    str, typer.Option("--source", help="Name of this log, limiter/instance; else FORMAT/1. Part of every id.")
]
_Program = Annotated[
    str,
    typer.Option(metavar="NAME[,NAME]", help="Whose lines are read in syslog and the journal; '*' is everybody's."),
]
_Lateness = Annotated[str, typer.Option(help="How far lines may run backwards in time and are still put in order.")]


def ingest_format(
    context: typer.Context,
    log: _Source = "",
    *,
    follow: _Follow = False,
    zone: _Zone = "",
    saved: _Saved = None,
    dry_run: _DryRun = False,
    explain: _Explain = "",
    status: _Status = "",
    option: _Option = None,
    allowed: _Allowed = False,
    scenario: _Scenario = "web",
    mapping: _Mapping = None,
    source: _Name = "",
    program: _Program = "",
    lateness: _Lateness = "60s",
    as_json: AsJson = False,
) -> None:
    """Read what another limiter has decided, from its log, and publish that.

    Read twice, a log counts once.

        penaltybox ingest nginx-error /var/log/nginx/error.log --follow --checkpoint nginx.checkpoint

    What would be published:

        penaltybox ingest nginx-error error.log.1.gz --dry-run
    """
    from penaltybox.cli.ingest import name_of

    form = load(context.info_name or "")
    values = settings()
    options = Options(
        canonicaliser=Canonicaliser(values.ipv6_prefix),
        targets=Targets(scenarios=_scenarios(mapping or [], scenario)),
        zone=_zone(zone),
        now_ms=now_ms,
        reject_statuses=_statuses(status),
        values=_values(form.name, form.options, option or []),
        programs=frozenset(filter(None, program.split(","))),
    )
    if explain:
        explain_line(form.name, explain, options, as_json=as_json)
        return
    name = name_of("--source", source) or f"{form.name}/1"
    common = Common(form, options, name, Progress(), parse_duration(lateness, "--lateness"), allowed=allowed)
    form.make(options)  # says what is wrong with the options before anything is opened
    run = _Run(log, common, Checkpoint(saved, form.name, name, moves=not dry_run), values)
    run.check(follow=follow)
    with collected_less_often():
        run.go(follow=follow, dry_run=dry_run, quiet=as_json or dry_run)
    warn_of_the_future(common.progress, now_ms())
    if not dry_run:
        show_counts(common.progress, form.name, published=True, as_json=as_json)
    elif common.progress.unmatched or not common.progress.decisions:
        counts = common.progress
        err.print(
            f"{counts.decisions:,} decisions; {counts.passed.total():,} lines say nothing about limiting, "
            f"{counts.unmatched.total():,} are not read as {form.name}."
        )
    if common.progress.damaged and not follow:  # who follows was told when it was met
        raise ConfigurationError(" ".join(common.progress.damaged))


def formats(*, as_json: AsJson = False) -> None:
    """List the formats: what each reads, an example, its options.

    combined is another matter: it passes an access log through the limits of your policy. These read what another
    limiter has decided.
    """
    loaded = {name: load(name) for name in SUMMARIES}
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "summary": SUMMARIES[name],
                    "options": dict(form.options),
                    "examples": [example.decode("utf-8", "replace") for example in form.examples],
                }
                for name, form in loaded.items()
            ]
        )
        return
    for name, form in loaded.items():
        out.print(f"[bold]{name}[/bold]  {SUMMARIES[name]}")
        for option, told in form.options.items():
            out.print(f"  --option {option}=…  {told}", markup=False)
        shown = next(example for example in form.examples if not example.startswith(b"#"))
        out.print(f"  {shown.decode('utf-8', 'replace')}", markup=False, style="dim", soft_wrap=True)


class _Run:
    """One run of the command."""

    def __init__(self, log: str, common: Common, checkpoint: Checkpoint, values: Settings) -> None:
        self._log = log
        self._common = common
        self._checkpoint = checkpoint
        self._values = values
        path = Path(log)
        self._piped = log == "-" or (path.exists() and not path.is_file() and not path.is_dir())
        """Standard input, or another pipe, as shells make of ``<(zcat …)``."""

    def check(self, *, follow: bool) -> None:
        """Raises ConfigurationError for what does not go together."""
        if not self._log:
            raise ConfigurationError("FILE|-|DIR: got nothing, wanted a log, - for standard input, or a folder")
        if self._piped and self._checkpoint.path is not None:
            raise ConfigurationError("--checkpoint: a pipe has no place to go on at; wanted a file or a folder")
        if not follow and self._log != "-" and not Path(self._log).exists():
            raise ConfigurationError(f"log {self._log}: cannot be read: No such file or directory")

    def go(self, *, follow: bool, dry_run: bool, quiet: bool) -> None:
        """Reads, and publishes or prints."""
        delivery = Delivery(self._outlet(dry_run), self._checkpoint, self._common.progress, tell)
        if follow:
            with self._followed() as followed:
                asyncio.run(_until_stopped(delivery, followed))
            return
        besides = [self._checkpoint.path] if self._checkpoint.path is not None else []
        logs = [] if self._piped else logs_of(Path(self._log), besides)
        with progress_bar([path for log in logs for path in log], quiet=quiet) as report:
            common = self._common._replace(report=report)
            if self._piped:
                with _pipe(self._log) as stream:
                    asyncio.run(delivery.piped(stretches(stream, self._log, common), common.lateness_ms))
            else:
                asyncio.run(delivery.whole(WholeLogs(logs, common, self._checkpoint)))

    @contextmanager
    def _followed(self) -> Iterator[Follower | Pipe]:
        if self._log == "-":
            yield Pipe(sys.stdin.fileno(), self._common)
        elif self._piped:
            with Path(self._log).open("rb", buffering=0) as stream:
                yield Pipe(stream.fileno(), self._common)
        else:
            yield Follower(Path(self._log), self._common, self._checkpoint)

    def _outlet(self, dry_run: bool) -> Callable[[], Outlet]:
        if dry_run:
            return lambda: _Printer(self._values)
        from penaltybox.producers.publisher import Publisher

        return lambda: Publisher(self._values)


@contextmanager
def _pipe(log: str) -> Iterator[IO[bytes]]:
    """Standard input, or a pipe by its name; decompressed."""
    with nullcontext(sys.stdin.buffer) if log == "-" else Path(log).open("rb") as stream:
        yield unpacked(stream, log)


async def _until_stopped(delivery: Delivery, logs: Follower | Pipe) -> None:
    """Follows until SIGTERM or Ctrl-C."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await delivery.followed(logs, stop)


class _Printer:
    """Decisions as JSON lines on standard output: the wire form."""

    def __init__(self, values: Settings) -> None:
        self._pseudonyms = Pseudonyms(values)

    async def start(self) -> None:
        """Nothing to do."""

    async def send(self, record: Decision, /) -> None:
        """Writes a line."""
        sys.stdout.buffer.write(encode(self._pseudonyms.applied(record)) + b"\n")

    async def flush(self) -> None:
        """What was written is there for whoever reads it."""
        sys.stdout.buffer.flush()

    async def close(self) -> None:
        """As `flush`."""
        await self.flush()


def _scenarios(mapping: list[str], default: str) -> ScenarioMap:
    from penaltybox.cli.ingest import scenario_map  # which takes its commands from here

    prefixes = scenario_map(mapping, default)
    return ScenarioMap({prefix: name for prefix, name in prefixes.items() if prefix}, default)


def _statuses(text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and 100 <= int(part) <= 599 for part in parts):  # noqa: PLR2004 - HTTP's
        raise ConfigurationError(f"--status: got {text!r}, wanted statuses such as 429,503")
    return frozenset(map(int, parts))


def _values(name: str, known: Any, given: list[str]) -> dict[str, str]:
    values = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or key not in known:
            wanted = f"one of {', '.join(known)}, as NAME=VALUE" if known else f"none: {name} has no options"
            raise ConfigurationError(f"--option: got {text!r}, wanted {wanted}")
        values[key] = value
    return values


def _zone(text: str) -> ZoneInfo:
    """The zone named, else this machine's (TZ, then /etc/localtime), else UTC."""
    link = Path("/etc/localtime")
    local = str(link.resolve()).partition("/zoneinfo/")[2] if link.is_symlink() else ""
    for name in [text] if text else [os.environ.get("TZ", "").removeprefix(":"), local]:
        try:
            return ZoneInfo(name)
        except (ValueError, OSError, LookupError) as error:
            if text:
                raise ConfigurationError(f"--tz: got {text!r}, wanted a zone such as Europe/Berlin or UTC") from error
    return ZoneInfo("UTC")
