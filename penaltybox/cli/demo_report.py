"""The demo's report: penalties, blocklist, the office, false positives beside the hidden truth, throughput."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group

from penaltybox.cli.console import left, table
from penaltybox.cli.demo_facts import Facts, read_facts
from penaltybox.producers.campaign_cast import OFFICE_IP

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penaltybox.cli.demo_play import Score
    from penaltybox.cli.offline import Summary
    from penaltybox.producers.campaign import Campaign

__all__ = ["Facts", "read_facts", "report"]
_SHOWN: Final = 3


def report(facts: Facts, campaign: Campaign, offline: Summary | None, score: Score) -> RenderableType:
    """The report for people; lines fit into 90 columns."""
    parts = [_penalties(facts), _blocks(facts), _treatments(facts), _office(facts), _false_positives(facts, campaign)]
    if offline is not None:
        parts.append(_log(offline))
    parts.append(_throughput(facts, score))
    return Group(*(line for part in parts for line in (part, "")))


def _penalties(facts: Facts) -> RenderableType:
    columns = ["rule", "led to", "on", "penalties", "subjects"]
    rows = [
        (row["rule"], _landing(row), row["dimension"], row["penalties"], row["subjects"]) for row in facts.penalties
    ]
    return table("Penalties by rule and rung (ClickHouse)", columns, rows, right=columns[3:])


def _landing(row: dict[str, Any]) -> str:
    if row["action"] in ("challenge", "lift"):
        return str(row["action"]) if row["rung"] == "none" else f"{row['action']} at {row['rung']}"
    return str(row["rung"])


def _blocks(facts: Facts) -> RenderableType:
    """The blocklist; of each kind and rule the first three."""
    seen: Counter[tuple[str, str]] = Counter()
    rows = []
    for one in facts.blocks:
        seen[one.kind, one.rule] += 1
        if seen[one.kind, one.rule] <= _SHOWN:
            rows.append((one.subject, one.kind, left(one.ttl_ms), one.rung, one.rule))
    denied = sum(block.kind == "deny" for block in facts.blocks)
    title = f"Blocklist, read back from Redis: {denied} denied, {len(facts.blocks) - denied} challenged, among them"
    return table(title, ["subject", "what", "TTL left", "rung", "rule"], rows, right=["TTL left"])


def _treatments(facts: Facts) -> RenderableType:
    columns = ["who (hidden truth)", "people", "requests", "allowed", "over limit", "challenged", "blocked"]
    rows = [
        (role, one["people"], one["requests"], one["allowed"], one["limited"], one["challenged"], one["blocked"])
        for role, one in facts.treatments.items()
    ]
    return table("What became of whom (requests)", columns, rows, right=columns[1:])


def _office(facts: Facts) -> RenderableType:
    one, block, row = facts.treatments["NAT office"], facts.office_block, facts.office
    said = [f"[bold]The NAT office[/bold]: {one['people']} people behind ip:{OFFICE_IP}"]
    if block is None:
        said.append("  nothing is in force against it now")
    else:
        verb = "denied" if block.kind == "deny" else "asked for a challenge, not denied"
        said.append(f"  {verb}, {left(block.ttl_ms)} left, by rule {block.rule} (Redis)")
    said.append(
        f"  of {one['requests']:,} requests {one['allowed']:,} were allowed, "
        f"{one['challenged']:,} challenged for the address,\n"
        f"  {one['limited']:,} over a limit (mostly the address's own), {one['blocked']:,} blocked"
    )
    if row:
        collateral = "too few to say" if row["collateral"] is None else f"{row['collateral']:.0%}"
        sharing = "attributable to sharing" if row["nat_attributable"] else "not attributable to sharing alone"
        said.append(
            f"  as ClickHouse sees it: {row['users']} users, {row['established_users']} of them established, "
            f"N_eff {row['n_eff']:.0f};\n"
            f"  collateral (refused within their own limit / refused): {collateral};\n"
            f"  {sharing}"
        )
    return "\n".join(said)


def _false_positives(facts: Facts, campaign: Campaign) -> RenderableType:
    columns = ["dimension", "episodes", "labelled", "FDR at least", "FDR true", "FPR estimate", "FPR true"]
    rows = [
        (
            one.dimension,
            one.episodes,
            one.labelled,
            _interval(one.fdr, one.fdr_low, one.fdr_high, one.fdr_status),
            _share(one.fdr_true),
            _interval(one.fpr, one.fpr_low, one.fpr_high, one.fpr_status),
            _share(one.fpr_true),
        )
        for one in facts.rates
    ]
    return Group(
        table("False positives per dimension (ClickHouse), beside the hidden truth", columns, rows, right=columns[1:]),
        "  FDR: of what was limited, how much was legitimate. Outcomes are reported for\n"
        f"  {campaign.sizes.labelled:.0%} of the people only and the rest is unknown: so it is a lower bound.\n"
        "  FPR: of the legitimate, how many were limited at least once; estimated from those\n"
        "  whom outcomes prove legitimate. In brackets: 95 % interval (Wilson).",
    )


def _interval(value: float | None, low: float | None, high: float | None, status: str) -> str:
    if value is None or low is None or high is None:
        return status
    return f"{value:.1%} ({low * 100:.0f}-{high * 100:.0f})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _log(offline: Summary) -> RenderableType:
    blocked = ", ".join(total.subject for total in offline.top[:3])
    return (
        "[bold]The real log[/bold]: none of its 1,753 addresses exceeds the default 120 requests a minute.\n"
        "  With --policy access-log (60 a minute), in the log's own time:\n"
        f"  {offline.over_limit} requests over the limit, {offline.penalties} blocks of five minutes ({blocked}),\n"
        f"  {offline.stopped} requests stopped by them."
    )


def _throughput(facts: Facts, score: Score) -> RenderableType:
    said = [
        (
            f"[bold]Throughput[/bold]: {score.published:,} events in {score.pipeline_s:.0f} s, waiting for the worker "
            "after each wave."
        )
    ]
    if score.burst:
        said += [
            f"  Then {score.burst:,} at once, sent, judged, written and committed: {score.burst_per_s:,.0f}/s,",
            "  sender, broker, worker and both stores on this machine (`make bench` measures).",
        ]
    letters = f"{facts.dead_letters} dead letters"
    said.append(f"  ClickHouse: {facts.decisions:,} decisions of log and campaign, {letters}.")
    if score.unfinished:
        said.append(f"  [red]{score.unfinished:,} events were not finished in time; figures are incomplete.[/red]")
    return "\n".join(said)
