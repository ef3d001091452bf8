"""The sections of each report, from the shipped queries."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from penaltybox.cli.report_advice import advise
from penaltybox.cli.report_view import FEW, Period, Plot, Section, rate_text
from penaltybox.sinks.clickhouse import queries

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy
    from penaltybox.sinks.clickhouse.client import ClickHouse

    Row = dict[str, Any]

_SHOWN: Final = 25
_DRAWN: Final = 14
_RATES: Final = (
    "FDR: of the limited episodes, how many were of legitimate subjects.",
    "At least: who has no label counts as an abuser. Of labelled: among those with a label only.",
    "By probe: from denials that became challenges by chance. off: none did. indistinct: abusers pass them too.",
    "FPR: of the legitimate subjects, how many were limited.",
    "Each labelled one stands for those of its own kind, limited or not, that have no label.",
    "In brackets the 95 % interval. insufficient: under 30. immature: too young to be judged, and not in.",
    FEW,
)
_SHARED: Final = (
    "N_eff: how many equally busy established users would be as many.",
    "By sharing: no user there exceeded a user limit and N_eff is 3 or more: its IP episodes are false positives.",
    "Collateral: of the users refused there, the share that kept within their own limit.",
    FEW,
)
_BY_ADDRESS: Final = "What to change is told for each address, whose own N_eff it takes: report nat --by ip."
_MEETING: Final = (
    "established: share of the denials that met an established user. largest: share of the loudest subject.",
    "legitimate: of the subjects with a label, with the 95 % interval; insufficient: under 30.",
)
_MET: Final = """
SELECT subject, scenario, limit_name, sum(denials) AS denials
FROM denied_subjects(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
WHERE enforced AND dimension = 'ip' AND limit_name != '' AND subject IN {subjects:Array(String)}
GROUP BY subject, scenario, limit_name ORDER BY denials DESC
"""


def rate_sections(clickhouse: ClickHouse, period: Period, dimension: str, matures_s: int) -> list[Section]:
    """False positives per dimension."""
    rows = _of(queries.probed_rates(clickhouse, *period, matures_s), dimension)
    cells = [
        (
            row["dimension"], row["episodes"], row["immature"], row["labelled"],
            rate_text(row["fdr_lower_bound"], row["fdr_low"], row["fdr_high"], row["fdr_status"]),
            rate_text(
                row["fdr_estimate"], row["fdr_estimate_low"], row["fdr_estimate_high"], row["fdr_estimate_status"]
            ),
            rate_text(row["fdr_probe"], row["fdr_probe_low"], row["fdr_probe_high"], row["probe_status"]),
            rate_text(row["fpr"], row["fpr_low"], row["fpr_high"], row["fpr_status"]),
        )
        for row in rows
    ]  # fmt: skip
    columns = [
        "dimension",
        "episodes",
        "immature",
        "labelled",
        "FDR at least",
        "FDR of labelled",
        "FDR by probe",
        "FPR",
    ]
    drawn = [
        (f"{name} {row['dimension']}", row[key], row[f"{key}_low"], row[f"{key}_high"])
        for row in rows
        for name, key in (("FDR of labelled", "fdr_estimate"), ("FDR by probe", "fdr_probe"), ("FPR", "fpr"))
        if row[key] is not None
    ]
    plot = Plot(label="per cent, with the 95 % interval", dots=drawn)
    return [
        Section(name="rates", title="False positives per dimension", columns=columns, cells=cells, rows=rows,
                right=columns[1:], notes=_RATES, plot=plot)
    ]  # fmt: skip


def nat_sections(
    clickhouse: ClickHouse, period: Period, by: Literal["ip", "prefix", "asn"], policy: Policy
) -> list[Section]:
    """Shared addresses, the ones that sharing explains first."""
    places = queries.nat(clickhouse, period.from_ms, period.to_ms, by)
    shared = sorted(
        (row for row in places if row["n_eff"] >= 3),  # noqa: PLR2004 - docs/analytics.md: from three effective users on
        key=lambda row: (not row["nat_attributable"], -row["denied_within_limit"], row["place"]),
    )
    met = limits_met(clickhouse, period, shared) if by == "ip" else {}
    rows: list[Row] = []
    notes = [] if by == "ip" else [_BY_ADDRESS]
    for row in shared:
        advice = advise(row, met.get(f"ip:{row['place']}", []), policy)
        rows.append(row | {"advice": [msgspec.to_builtins(one) for one in advice]})
        notes += [f"{row['place']}: {one.text()}" for one in advice if len(rows) <= _SHOWN]
    cells = [
        (
            row["place"], row["users"], row["established_users"], f"{row['n_eff']:.1f}",
            "yes" if row["nat_attributable"] else "no", row["ip_episodes"],
            f"{row['denied_within_limit']:,} of {row['denied_users']:,}",
            rate_text(row["collateral"], row["collateral_low"], row["collateral_high"], row["status"]),
        )
        for row in shared[:_SHOWN]
    ]  # fmt: skip
    columns = [
        "place",
        "users",
        "established",
        "N_eff",
        "by sharing",
        "IP episodes",
        "refused within limit",
        "collateral",
    ]
    bars = [
        (row["place"], (row["denied_within_limit"], row["denied_users"] - row["denied_within_limit"]))
        for row in shared[:_DRAWN]
        if row["denied_users"]
    ]
    plot = Plot(
        label="refused users",
        bars=bars,
        parts=(("within their own limit", "legitimate"), ("over it", "abusive")),
    )
    return [
        Section(name="places", title="Shared addresses with refusals", columns=columns, cells=cells, rows=rows,
                right=columns[1:4] + columns[5:], notes=[*_left_out(shared), *notes, *_SHARED], plot=plot)
    ]  # fmt: skip


def limits_met(clickhouse: ClickHouse, period: Period, places: list[Row]) -> dict[str, list[tuple[str, str]]]:
    """Subject of an address -> (scenario, limit) that it met, the most frequent first."""
    values = {
        "from": period.from_ms / 1000,
        "to": period.to_ms / 1000,
        "subjects": [f"ip:{row['place']}" for row in places],
    }
    found = defaultdict(list)
    for row in clickhouse.rows(_MET, values):
        found[row["subject"]].append((row["scenario"], row["limit_name"]))
    return found


def penalty_sections(clickhouse: ClickHouse, period: Period, dimension: str) -> list[Section]:
    """By rule, up the ladder, hits per block."""
    span = period[:2]
    by_rung = _of(queries.penalties_by_rung(clickhouse, *span), dimension)
    values: dict[str, int | str] = {"from": period.from_ms, "to": period.to_ms}
    funnel = _of(queries.run(clickhouse, "penalty_funnel", values), dimension)
    hits = _of(queries.run(clickhouse, "hits_per_block", values), dimension)
    rungs = ["dimension", "rung", "subjects", "went higher", "share", "again", "penalties"]
    return [
        Section(
            name="funnel", title="Up the ladder", columns=rungs, right=rungs[2:], rows=funnel,
            cells=[(row["dimension"], row["rung"], row["subjects"], row["climbed"], f"{row['climbed_share']:.0%}",
                    row["again"], row["penalties"]) for row in funnel],
            plot=Plot(
                label="subjects",
                bars=[(f"{row['dimension']}: {row['rung']}", (row["climbed"], row["subjects"] - row["climbed"]))
                      for row in funnel[:_DRAWN]],
                parts=(("went higher", "candidate"), ("stayed", "baseline")),
            ),
        ),
        Section(
            name="rules", title="Penalties by rule and rung",
            columns=["rule", "dimension", "rung", "action", "penalties", "subjects", "late"], rows=by_rung,
            right=["penalties", "subjects", "late"],
            cells=[(f"{row['rule']} (shadow)" if row["shadow"] else row["rule"] or row["origin"], row["dimension"],
                    row["rung"], row["action"], row["penalties"], row["subjects"], row["late_ones"])
                   for row in by_rung],
        ),
        Section(
            name="hits", title="What blocks and challenges held off",
            columns=["rule", "dimension", "rung", "action", "blocks", "hits", "per block", "never hit"], rows=hits,
            right=["blocks", "hits", "per block", "never hit"],
            cells=[(row["rule"], row["dimension"], row["rung"], row["action"], row["blocks"], row["hits"],
                    f"{row['hits_per_block']:.1f}", row["idle_blocks"]) for row in hits],
        ),
    ]  # fmt: skip


def farm_sections(clickhouse: ClickHouse, period: Period, dimension: str) -> list[Section]:
    """Devices and addresses with many accounts."""
    values: dict[str, int | str] = {"from": period.from_ms, "to": period.to_ms}
    rows = _of(queries.run(clickhouse, "account_farms", values), dimension)
    columns = ["subject", "accounts", "established", "abusers", "legitimate", "requests", "refused", "penalties"]
    return [
        Section(
            name="farms", title="Four accounts or more, fewer than a quarter established", columns=columns, rows=rows,
            right=columns[1:],
            cells=[(row["subject"], row["accounts"], row["established_accounts"], row["abusive_accounts"],
                    row["legitimate_accounts"], int(row["requests"]), row["refused"], row["penalties"])
                   for row in rows[:_SHOWN]],
            notes=[*_left_out(rows), "abusers, legitimate: accounts by the labels of outcomes; the others have none."],
            plot=Plot(
                label="accounts",
                bars=[(row["subject"], (row["established_accounts"], row["accounts"] - row["established_accounts"]))
                      for row in rows[:_DRAWN]],
                parts=(("established", "legitimate"), ("not established", "abusive")),
            ),
        )
    ]  # fmt: skip


def limit_sections(clickhouse: ClickHouse, period: Period, dimension: str) -> list[Section]:
    """Who meets which limit."""
    values: dict[str, int | str] = {"from": period.from_ms, "to": period.to_ms}
    rows = _of(queries.run(clickhouse, "limit_pressure", values), dimension)
    columns = ["scenario", "limit", "subjects", "denials", "established", "largest", "labelled", "legitimate", "who"]
    return [
        Section(
            name="limits", title="Who meets which limit", columns=columns, right=columns[2:-1], rows=rows,
            cells=[(row["scenario"], row["limit_name"], row["subjects"], row["denials"],
                    f"{row['established_share']:.0%}", f"{row['largest_share']:.0%}", row["labelled"],
                    rate_text(row["legitimate_share"], row["legitimate_low"], row["legitimate_high"], "insufficient"),
                    row["who"]) for row in rows],
            notes=_MEETING,
            plot=Plot(
                label="legitimate among the labelled, per cent, with the 95 % interval",
                dots=[(f"{row['scenario']} {row['limit_name']}", row["legitimate_share"], row["legitimate_low"],
                       row["legitimate_high"]) for row in rows if row["legitimate_share"] is not None],
            ),
        )
    ]  # fmt: skip


def _left_out(rows: list[Row]) -> list[str]:
    return [f"The first {_SHOWN} of {len(rows):,}; --json has all of them."] if len(rows) > _SHOWN else []


def _of(rows: list[Row], dimension: str) -> list[Row]:
    return [row for row in rows if not dimension or row["dimension"] == dimension]
