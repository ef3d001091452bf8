"""`penaltybox tune`: which limits and rules hurt legitimate subjects, and a softer candidate policy to replay."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penaltybox.cli.console import AsJson, PolicyFile, out, policy_path, print_json, settings, table
from penaltybox.cli.policy import show_changes
from penaltybox.cli.policy_edits import candidate
from penaltybox.cli.policy_source import read_file
from penaltybox.cli.report_view import Period, rate_text
from penaltybox.cli.tune_figures import figures, needed
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_changes import changes
from penaltybox.processors.replay.times import parse_time
from penaltybox.processors.softening import propose
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.queries import BY_LABEL, probe_estimates

if TYPE_CHECKING:
    from penaltybox.cli.policy_edits import Candidate
    from penaltybox.cli.policy_source import Named
    from penaltybox.processors.softening import Finding

_UNNAMED = Path("candidate.yaml")


def tune(
    *,
    policy_file: PolicyFile = None,
    since: Annotated[str, typer.Option(help="Event times from here on; not before the policy last changed.")] = "-7d",
    until: Annotated[str, typer.Option(help="To here, exclusive.")] = "now",
    target: Annotated[
        float | None,
        typer.Option(
            help="Share of limited episodes that may be legitimate; else 0.05 on addresses, 0.01 elsewhere.",
            show_default=False,
        ),
    ] = None,
    matures: Annotated[
        str, typer.Option(help="How long labels take to come, instead of each label's own time: 1h, 2d.")
    ] = "",
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Write the candidate policy to this file.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Propose a softer policy where the false positives prove to be over the target; says how to judge it by replay.

    One step for each limit and rule whose whole interval is over it. Nothing is applied, nothing is written but --out.

        penaltybox tune --policy policy.yaml --since -30d --out candidate.yaml
    """
    if target is not None and not 0 < target < 1:
        raise ConfigurationError(f"--target: got {target:g}, wanted a share above 0 and below 1, such as 0.01")
    values, as_of_ms = settings(), now_ms()
    named = read_file(policy_file, values)
    period = Period(parse_time(since, "--since", as_of_ms), parse_time(until, "--until", as_of_ms), as_of_ms)
    if period.from_ms >= period.to_ms:
        raise ConfigurationError(f"--since {since} is not before --until {until}")
    if out_file is not None and out_file.resolve() == policy_path(policy_file, values).resolve():
        raise ConfigurationError(f"--out {out_file}: got the policy itself, wanted another file")
    matures_s = parse_duration(matures, "--matures") // 1000 if matures else BY_LABEL
    clickhouse = ClickHouse.of(values, answer_s=PATIENT_S)
    try:
        known = figures(clickhouse, period, matures_s)
        probed = probe_estimates(clickhouse, *period, matures_s)
        found = propose(named.policy, known, target=target, needed=needed(clickhouse, period, named.policy))
    finally:
        clickhouse.close()
    made = candidate(named.policy, named.text, found)
    steps = any(one.step for one in found)
    if out_file is not None and steps:
        _write(out_file, made.text)
    # From where the figures are: the topics may not go back so far.
    span = ["--source", "clickhouse", "--from", since, *(["--to", until] if until != "now" else [])]
    span += ["--matures", matures] if matures else []
    replay = shlex.join(
        ["penaltybox", "replay", "--policy", str(out_file or _UNNAMED), "--baseline", named.name, *span]
    )
    if as_json:
        print_json(
            {
                "policy": named.policy.version,
                "findings": found,
                "probe": probed,
                "candidate": made.policy.version if steps else None,
                "changes": changes(named.policy, made.policy),
                "comments_kept": made.kept,
                "replay": replay if steps else None,
            }
        )
        return
    _show(named, found)
    _show_probe(probed)
    if steps:
        _show_candidate(named, made, out_file, replay)
    else:
        out.print("Nothing is proposed.")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--out {path}: {error.strerror}") from error


def _show(named: Named, found: list[Finding]) -> None:
    if not found:
        out.print("Nobody was limited or penalised in this time.")
        return
    rows = [
        (
            one.figure.name,
            one.figure.episodes,
            rate_text(one.rate.value, one.rate.low, one.rate.high, one.rate.status),
            f"{one.target:.1%}",
            one.verdict if one.step is None else f"{one.step.field}: {one.step.before} → {one.step.after}",
        )
        for one in found
    ]
    columns = ["limit or rule", "mature episodes", "FDR at least", "target", "proposal"]
    out.print(table(f"{named.name}, version {named.policy.version}", columns, rows, right=columns[1:4]))
    for one in found:
        out.print(f"  {one.figure.name}: {one.why}", markup=False)


def _show_probe(probed: list[dict[str, Any]]) -> None:
    """What the probe says of limits that deny, which nothing above rests on."""
    for row in probed:
        told = rate_text(row["fdr_probe"], row["fdr_probe_low"], row["fdr_probe_high"], row["probe_status"])
        out.print(
            f"  by probe, limits on {row['dimension']}: FDR {told}, {row['drawn']:,} episodes drawn; "
            "it needs no label of those who were limited, and proposes nothing",
            markup=False,
        )


def _show_candidate(named: Named, made: Candidate, out_file: Path | None, replay: str) -> None:
    out.print(f"\nFrom {named.name} to the candidate, version {made.policy.version}:", markup=False)
    show_changes(changes(named.policy, made.policy))
    if not made.kept:
        out.print(
            "Its file is written anew, without the comments of the original: what changes stands behind an alias."
        )
    if out_file is None:
        out.print(f"--out {_UNNAMED} writes it. Then judge it:", markup=False)
    else:
        out.print(f"{out_file} has it; nothing is applied. Judge it:", markup=False)
    out.print(f"  {replay}", markup=False, soft_wrap=True)
