"""Penalties and the ladder's funnel; account farms."""

from __future__ import annotations

from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard

from dashboards.panels import (
    DIMENSION,
    DIMENSIONS,
    PERIOD,
    Sql,
    address,
    board,
    columns,
    filter_variable,
    lines,
    numbers,
    rows,
)

RULE: Final = "$__conditionalAll(rule IN (${rule:singlequote}), $rule)"
RULES: Final = filter_variable(
    "rule", "Rule", "SELECT DISTINCT rule FROM penalties FINAL WHERE $__timeFilter(ts) AND rule != ''"
)
REAL: Final = f"$__timeFilter(ts) AND NOT shadow AND {DIMENSION} AND {RULE}"


def _over_time(by: str, where: str) -> Sql:
    return Sql(
        f"""
SELECT $__timeInterval(ts) AS time, {by} AS series, count() AS penalties
FROM penalties FINAL WHERE {where} GROUP BY time, series ORDER BY time
""",
        series=True,
    )


def penalties() -> Any:
    """Who was punished by what, and how far they climbed."""
    made = board(
        "pbx-penalties",
        "Penalties and ladder funnel",
        "Steps of the ladder by rule, rung and dimension; who comes back and climbs; what blocks had to hold off.",
        [DIMENSIONS, RULES],
    )
    for panel in [*_steps(), *_climbing(), *_trail()]:
        made = made.with_panel(panel)
    return made


def _steps() -> list[Any]:
    return [
        numbers(
            "Penalties in figures",
            "Steps up and challenges, without shadow rules and lifts; different subjects; steps by hand, lifts "
            "included; steps handled more than late_after behind their decision: nobody was blocked meanwhile, so "
            "none is permanent.",
            Sql(
                f"""
SELECT countIf(action != 'lift') AS penalties, uniqExactIf(subject, action != 'lift') AS subjects,
       countIf(origin = 'hand') AS `by hand`, countIf(late) AS late
FROM penalties FINAL WHERE {REAL}
"""
            ),
            {},
        ),
        lines(
            "By rule",
            "Penalties over time, by rule.",
            _over_time("rule", f"{REAL} AND action != 'lift'"),
            "short",
            bars=True,
        ),
        lines(
            "By dimension and rung",
            "Penalties over time, by what they are on and the rung they lead to.",
            _over_time(
                "concat(toString(dimension), ' ', if(action = 'challenge', 'challenge', toString(to_rung)))",
                f"{REAL} AND action != 'lift'",
            ),
            "short",
            bars=True,
        ),
    ]


def _climbing() -> list[Any]:
    return [
        columns(
            "Ladder funnel",
            "Subjects that reached a rung, and how many of them reached a higher one. A rung from which few climb "
            "has worked.",
            Sql(
                f"""
SELECT concat(toString(dimension), ' ', rung) AS step, subjects, climbed
FROM penalty_funnel({PERIOD}) WHERE {DIMENSION} ORDER BY dimension, height_ms, rung
"""
            ),
            "short",
            "step",
        ),
        rows(
            "Ladder funnel in figures",
            "Per dimension and rung: penalties, subjects, who came back to the same rung (`again`) or climbed.",
            Sql(
                f"""
SELECT dimension, rung, action, penalties, subjects, climbed, climbed_share, again, late_ones
FROM penalty_funnel({PERIOD}) WHERE {DIMENSION}
"""
            ),
            {"climbed_share": "percentunit"},
            size=(12, 8),
        ),
        rows(
            "Hits per block",
            "Refusals that a block or challenge had to answer while it held; idle ones held nothing off.",
            Sql(
                f"""
SELECT dimension, rule, rung, action, blocks, hits, hits_per_block, median_hits, idle_blocks
FROM hits_per_block({PERIOD}) WHERE {DIMENSION} AND {RULE} LIMIT 100
"""
            ),
            {},
            size=(12, 8),
        ),
        rows(
            "Shadow rules",
            "What rules on trial would have done: nothing of this was in force.",
            Sql(
                f"""
SELECT rule, dimension, if(action = 'challenge', 'challenge', toString(to_rung)) AS rung, count() AS penalties,
       uniqExact(subject) AS subjects, max(ts) AS last
FROM penalties FINAL WHERE $__timeFilter(ts) AND shadow AND {DIMENSION} AND {RULE}
GROUP BY rule, dimension, rung ORDER BY penalties DESC LIMIT 100
"""
            ),
            {"last": "dateTimeAsIso"},
            size=(12, 8),
        ),
    ]


def _trail() -> list[Any]:
    return [
        rows(
            "Latest",
            "The latest steps, with who took them and why if it was by hand. `penaltybox explain` tells the whole "
            "story.",
            Sql(
                f"""
SELECT ts, subject, from_rung, to_rung, action, until, rule, origin, actor, note, evidence, policy_version
FROM penalties FINAL WHERE {REAL} ORDER BY ts DESC, seq DESC LIMIT 200
"""
            ),
            {"ts": "dateTimeAsIso", "until": "dateTimeAsIso"},
            size=(24, 10),
        ),
        rows(
            "By hand",
            "Steps by hand, by actor.",
            Sql(
                f"""
SELECT actor, action, count() AS steps, uniqExact(subject) AS subjects, max(ts) AS last
FROM penalties FINAL WHERE $__timeFilter(ts) AND origin = 'hand' AND {DIMENSION}
GROUP BY actor, action ORDER BY steps DESC LIMIT 100
"""
            ),
            {"last": "dateTimeAsIso"},
            size=(24, 6),
        ),
    ]


def farms() -> Any:
    """Devices and addresses with many accounts."""
    made = board(
        "pbx-farms",
        "Account farms",
        "Devices and addresses on which several accounts act of which few are established.",
        [_farm_dimension(), dashboard.TextBoxVariable("accounts").label("At least accounts").default_value("4")],
        since="now-7d",
        refresh="15m",
    )
    for panel in _farm_panels():
        made = made.with_panel(panel)
    return made


def _farm_dimension() -> Any:
    return filter_variable("dimension", "Dimension", f"SELECT DISTINCT dimension FROM account_farms({PERIOD})")


def _farm_panels() -> list[Any]:
    chosen_farms = f"account_farms({PERIOD}) WHERE accounts >= toUInt64OrZero(${{accounts:sqlstring}}) AND {DIMENSION}"
    return [
        numbers(
            "Farms in figures",
            "Devices and addresses with at least so many accounts, fewer than a quarter of them established; the "
            "accounts on them (one that acts on two counts twice); the share of their requests that was not refused; "
            "farms that no rule has punished yet.",
            Sql(
                f"""
SELECT count() AS farms, sum(accounts) AS `accounts on them`,
       1 - sum(refused) / greatest(1, sum(requests)) AS `got through`, countIf(penalties = 0) AS `without a penalty`
FROM {chosen_farms}
"""
            ),
            {"got through": "percentunit"},
        ),
        rows(
            "Farms",
            "The largest first. `abusive` and `legitimate` accounts are so by their labels.",
            Sql(
                f"""
SELECT subject, dimension, accounts, established_accounts, established_share, abusive_accounts, legitimate_accounts,
       requests, refused, penalties, first_at, last_at
FROM {chosen_farms} ORDER BY accounts DESC, subject LIMIT 200
"""
            ),
            {"established_share": "percentunit", "first_at": "dateTimeAsIso", "last_at": "dateTimeAsIso"},
            links={"penalties": ("Penalties", address("pbx-penalties"))},
            size=(16, 10),
        ),
        columns(
            "Accounts per farm",
            "How many farms have how many accounts.",
            Sql(
                f"""
SELECT toString(accounts) AS accounts_there, count() AS farms
FROM {chosen_farms} GROUP BY accounts ORDER BY accounts LIMIT 50
"""
            ),
            "short",
            "accounts_there",
            size=(8, 10),
        ),
    ]
