"""`penaltybox blocks export | import`: blocks to a file, and from one into the ladder of each subject."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.progress import Progress as Bar

from penaltybox.cli.address_export import export_addresses, known_format
from penaltybox.cli.block_files import BlockLine, WrongLine, read_blocks, write_csv, write_lines
from penaltybox.cli.blocks import collect
from penaltybox.cli.console import AsJson, PolicyFile, err, instant, one_subject, out, print_json, settings
from penaltybox.cli.foreign_bans import READERS
from penaltybox.cli.foreign_import import Terms, ban_ranges, plan
from penaltybox.cli.hand import Actor, Reason, actor_given, at_store, engine_at, policy_now, reason_given
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable, cause
from penaltybox.contracts.events import Command
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.subjects import DIMENSION, Canonicaliser
from penaltybox.processors.garbage import collector_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penaltybox.cli.foreign_import import Plan
    from penaltybox.contracts.policy import Policy, Rung
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.hand import Executed
    from penaltybox.processors.state import SubjectState

_ERRORS_SHOWN = 20
_GO_ON = "Import the file again: it goes on, for who is denied already is left alone."


def export(
    file: Annotated[str, typer.Argument(help="Where to: .csv or .jsonl; else standard output.")] = "",
    *,
    dimension: Annotated[str, typer.Option(help="Only subjects of this dimension, e.g. ip.")] = "",
    lines: Annotated[bool, typer.Option("--jsonl", help="JSON lines, whatever the file is called.")] = False,
    form: Annotated[
        str, typer.Option("--format", help="csv, jsonl, or a list of addresses; see below.", show_default=False)
    ] = "",
    policy_file: PolicyFile = None,
) -> None:
    """Write who is denied or challenged now into a file: subject, action, until, rung, rule, penalty.

    Times in CSV are UTC, to the second; in JSON milliseconds. Hidden blocks of allowlisted subjects are not in
    force, so not in it.

        penaltybox blocks export blocks.csv --dimension ip

    Lists of addresses, for programs that enforce them: plain, nftables, haproxy, nginx-geo, nginx-deny, apache,
    cloudflare, aws-waf-ipv4, aws-waf-ipv6. They have blocked addresses and banned ranges, without what is on the
    allowlist. What cannot be in them (users, devices, in most of them challenges) is counted and told.

        penaltybox blocks export blocked.nft --format nftables
    """
    if form not in ("", "csv", "jsonl"):
        if dimension or lines:
            raise ConfigurationError(f"--format {form} has addresses only: leave --dimension and --jsonl out")
        known_format(form)
        values = settings()
        export_addresses(values, policy_now(policy_file, values), file, form)
        return
    if dimension and not all(DIMENSION.fullmatch(part) for part in dimension.split("+")):
        raise ConfigurationError(f"--dimension: got {dimension!r}, wanted for example ip, device, or device+route")
    found = asyncio.run(collect(settings(), dimension or None, quiet=not file))
    found.sort(key=lambda block: block.subject)
    try:
        with Path(file).open("w", encoding="utf-8", newline="") if file else nullcontext(sys.stdout) as target:
            if lines or form == "jsonl" or (not form and file.endswith((".jsonl", ".json", ".ndjson"))):
                write_lines(target, found)
            else:
                write_csv(target, found, lambda until: "permanent" if until is None else instant(until))
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {cause(error)}") from error
    if file:
        out.print(f"{len(found):,} blocks and challenges are in {file}.", markup=False)


def import_(
    file: Annotated[str, typer.Argument(help="CSV with a header, or JSON lines; as `blocks export` writes them.")],
    *,
    reason: Reason,
    actor: Actor = "",
    form: Annotated[
        str, typer.Option("--format", help="fail2ban or crowdsec: a ban list of theirs.", show_default=False)
    ] = "",
    for_: Annotated[
        str, typer.Option("--for", help="With --format: how long bans last whose list does not say it.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")] = False,
    policy_file: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Ban every subject of a file, as `ban` would, many at a time: 100,000 in seconds.

    Wanted is a column subject; until (a time, or permanent) and rung are optional. Who is denied for as long already
    is left alone, so importing a file again changes nothing. Of several lines of a subject the last counts. Lines that
    are none are told with their numbers, the others are imported; the exit code is 1 then.

        penaltybox blocks import blocks.csv --reason "from the old firewall, ticket 4711" --dry-run

    From fail2ban its database, or what `fail2ban-client banned` prints; from CrowdSec `cscli decisions list -o json`
    (or raw): ranges become bans of ranges, a captcha a challenge, and each lasts as long as was left of it.

        penaltybox blocks import /var/lib/fail2ban/fail2ban.sqlite3 --format fail2ban --reason "moved over"
    """
    values, who, why = settings(), actor_given(actor), reason_given(reason)
    policy = policy_now(policy_file, values)
    terms = Terms(now_ms(), parse_duration(for_, "--for") if for_ else None, who, why)
    theirs = _theirs(values, Path(file), form, terms)
    lines: Iterable[BlockLine | WrongLine]
    lines = read_blocks(Path(file), _namer(values), terms.at_ms) if theirs is None else [*theirs.wrong, *theirs.lines]
    wanted, wrong = _wanted(policy, lines, terms.at_ms)
    ranges = {} if theirs is None else theirs.ranges
    written = kept = banned = 0
    if ranges and not dry_run:
        banned = ban_ranges(values, ranges)
    if wanted and not dry_run:
        with collector_off(), Bar(console=err, transient=True, disable=as_json or not err.is_terminal) as bar:
            task = bar.add_task("subjects", total=len(wanted))
            written, kept = asyncio.run(
                _execute(values, policy, wanted, terms, lambda done: bar.update(task, completed=done))
            )
    if as_json:
        more = {} if theirs is None else {"ranges": len(ranges), "ranges_banned": banned, "ended": theirs.ended}
        print_json({"subjects": len(wanted), "banned": written, "already": kept, **more,
                    "wrong": [{"line": one.number, "says": one.says} for one in wrong]})  # fmt: skip
    else:
        for one in wrong[:_ERRORS_SHOWN]:
            err.print(f"{file}:{one.number}: {one.says}", markup=False)
        if len(wrong) > _ERRORS_SHOWN:
            err.print(f"… and {len(wrong) - _ERRORS_SHOWN:,} more lines that are no block")
        done = f"{len(wanted):,} subjects would be banned" if dry_run else f"{written:,} subjects are banned"
        out.print(f"{done}, {kept:,} were for as long already, {len(wrong):,} lines left out.")
        if theirs is not None:
            verb = f"{len(ranges):,} ranges would be" if dry_run else f"{banned:,} of {len(ranges):,} ranges are newly"
            out.print(f"{verb} banned or challenged; {theirs.ended:,} bans had ended.")
    if wrong:
        raise typer.Exit(1)


def _namer(values: Settings) -> Callable[[str], str]:
    canonicaliser = Canonicaliser(values.ipv6_prefix, values.hashed_dimensions)
    return lambda text: one_subject(text, values, canonicaliser)


def _theirs(values: Settings, file: Path, form: str, terms: Terms) -> Plan | None:
    """What another program's list says; None for one of ours."""
    if not form:
        if terms.for_ms is not None:
            raise ConfigurationError("--for: only with --format; our own files say until when")
        return None
    if form not in READERS:
        raise ConfigurationError(
            f"--format: got {form!r}, wanted one of {', '.join(READERS)}; or none for our own files"
        )
    return plan(READERS[form](file), values, terms, _namer(values))


class _Wanted(NamedTuple):
    """Until when (ms; None is for good) a subject is to be denied, and on which rung."""

    until: int | None
    level: str


def _wanted(
    policy: Policy, lines: Iterable[BlockLine | WrongLine], at_ms: int
) -> tuple[dict[str, _Wanted], list[WrongLine]]:
    """What is to be done, by subject, and what is no line of it. Small: a file may have millions of lines."""
    denying = [rung for rung in policy.ladder.rungs if rung.action == "deny"]
    wanted: dict[str, _Wanted] = {}
    wrong: list[WrongLine] = []
    for line in lines:
        level = "" if isinstance(line, WrongLine) else _level(denying, line, at_ms)
        if isinstance(line, WrongLine):
            wrong.append(line)
        elif not level:
            wrong.append(WrongLine(line.number, "permanent, and the policy has no permanent rung: give it an end"))
        else:
            wanted[line.subject] = _Wanted(line.until, level)
    return wanted, wrong


def _commands(wanted: Mapping[str, _Wanted], terms: Terms) -> Iterator[Command]:
    """One by one, as they are needed."""
    at_ms = terms.at_ms
    for subject, one in wanted.items():
        yield Command(
            id=ulid(at_ms),
            ts=at_ms,
            verb="ban",
            subject=subject,
            actor=terms.actor,
            reason=terms.reason,
            level=one.level,
            for_ms=None if one.until is None else one.until - at_ms,
        )


def _level(denying: Sequence[Rung], line: BlockLine, at_ms: int) -> str:
    """The rung that is named, if it fits; else the shortest that denies for as long, or the longest."""
    if line.until is None:
        return next((rung.name for rung in denying if rung.duration_ms is None), "")
    if line.rung and any(rung.name == line.rung for rung in denying):
        return line.rung
    wanted_ms = line.until - at_ms
    long = (rung.name for rung in denying if rung.duration_ms is None or rung.duration_ms >= wanted_ms)
    return next(long, denying[-1].name if denying else "")


async def _execute(
    values: Settings, policy: Policy, wanted: Mapping[str, _Wanted], terms: Terms, progress: Callable[[int], object]
) -> Executed:
    from penaltybox.processors.hand import execute_all

    reached = 0

    def far(done: int) -> None:
        nonlocal reached
        reached = done
        progress(done)

    try:
        async with at_store(values) as store:
            engine = await engine_at(values, policy, store)
            commands = _commands(wanted, terms)
            return await execute_all(engine, store, commands, now_ms, unless=_denied_already, progress=far)
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error} Of {len(wanted):,} subjects {reached:,} are done, and stay. {_GO_ON}"
        ) from error
    except asyncio.CancelledError:
        err.print(
            f"Interrupted. At least {reached:,} of {len(wanted):,} subjects are done, and stay. {_GO_ON}", markup=False
        )
        raise


def _denied_already(state: SubjectState, command: Command) -> bool:
    """Whether it is denied at least as long as the command says, give or take a second."""
    deny = state.real.deny
    if deny is None or (deny.until is not None and deny.until <= command.ts):
        return False
    wanted = None if command.for_ms is None else command.ts + command.for_ms
    return deny.until is None or (wanted is not None and deny.until >= wanted - 1000)
