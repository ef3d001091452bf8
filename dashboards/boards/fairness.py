"""Who is hurt: false positives by dimension, shared addresses."""

from __future__ import annotations

from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import VariableRefresh, VariableSort

from dashboards.panels import (
    CHANGES,
    CLICKHOUSE,
    DIMENSION,
    DIMENSIONS,
    LIMIT,
    LIMITS,
    MATURES,
    PERIOD,
    SCENARIO,
    SCENARIOS,
    Sql,
    address,
    board,
    chosen,
    columns,
    lines,
    numbers,
    rows,
)

JUDGED: Final = f"{PERIOD}, as_of = now64(3, 'UTC'), matures_s = ${{matures}}"
SHARES: Final = dict.fromkeys(
    (
        *("fdr_lower_bound", "fdr_low", "fdr_high", "fdr_estimate", "fdr_estimate_low", "fdr_estimate_high"),
        *("fpr", "fpr_low", "fpr_high", "legitimate_share", "legitimate_low", "legitimate_high"),
        *("established_share", "largest_share", "ip_share", "ip_share_low", "ip_share_high"),
        *("pass_rate", "trusted_pass_rate", "abuser_pass_rate", "fdr_probe", "fdr_probe_low", "fdr_probe_high"),
        *("collateral", "collateral_low", "collateral_high", "nat_rate", "nat_rate_low", "nat_rate_high"),
    ),
    "percentunit",
)


def false_positives() -> Any:
    """Of what is refused, how much is wrong; of the good, how many are hurt."""
    made = board(
        "pbx-false-positives",
        "False positives by dimension",
        "FDR: of the refused episodes, how many are of legitimate subjects. FPR: of the legitimate subjects, how "
        "many are "
        "refused. 95 % intervals; labels come from outcomes, and unlabelled means unknown.",
        [SCENARIOS, DIMENSIONS, LIMITS, MATURES, _change()],
        since="now-30d",
        refresh="15m",
    )
    for panel in [*_rates(), *_causes()]:
        made = made.with_panel(panel)
    return made


def _change() -> Any:
    """The instants at which a policy version came into force, latest first."""
    made = dashboard.QueryVariable("change").label("Policy change").datasource(CLICKHOUSE)
    made = made.query(
        # The data source takes the first of two columns for the value, the second for what is shown.
        "SELECT toString(toUnixTimestamp(at)) AS value, concat(toString(at), ' ', version) AS text "
        f"FROM ({CHANGES}) ORDER BY at DESC"
    )
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.DISABLED)


def _rates() -> list[Any]:
    return [
        rows(
            "Rates",
            "Per dimension. `fdr_lower_bound` counts unlabelled subjects as not legitimate; `fdr_estimate` looks "
            "at labelled "
            "episodes only. Under 30 episodes: insufficient; under 100: nothing should act on it. `immature` "
            "episodes still "
            "wait for labels and are left out.",
            Sql(
                f"""
SELECT dimension, episodes, immature, labelled, fdr_status, fdr_lower_bound, fdr_low, fdr_high,
       fdr_estimate, fdr_estimate_low, fdr_estimate_high, fpr_status, fpr, fpr_low, fpr_high
FROM false_positives_as_of({JUDGED})
WHERE {DIMENSION}
"""
            ),
            SHARES,
            size=(24, 7),
        ),
        rows(
            "FDR by probe",
            "Of denials that became challenges by chance (the limiter's `probe`), how many were passed, between what "
            "trusted users and confirmed abusers pass. It needs no label of those who were limited: where it differs "
            "from the labels' estimate, believe it. Empty without a probe; insufficient under 30.",
            Sql(
                f"""
SELECT dimension, drawn, drawn_passed, pass_rate, trusted, trusted_pass_rate, abusers, abuser_pass_rate, probe_status,
       fdr_probe, fdr_probe_low, fdr_probe_high
FROM probe_estimates({JUDGED})
WHERE {DIMENSION}
"""
            ),
            SHARES,
            size=(24, 5),
        ),
        columns(
            "FDR by limit and rule",
            "Lower bound per limit or rule, of its mature episodes; those with fewer than 30 are left out. "
            "It tells which one to look at first.",
            Sql(
                f"""
SELECT name, sum(legitimate) / count() AS fdr
FROM judged_episodes({JUDGED})
WHERE mature AND {DIMENSION}
GROUP BY name HAVING count() >= 30 ORDER BY fdr DESC
"""
            ),
            "percentunit",
            "name",
        ),
        columns(
            "Episodes by state",
            "Episodes whose labels have come or had time to come, those without any label, and those that still wait.",
            Sql(
                f"""
SELECT dimension, countIf(mature AND labelled) AS labelled_ones, countIf(mature AND NOT labelled) AS unlabelled,
       countIf(NOT mature) AS immature
FROM judged_episodes({JUDGED})
WHERE {DIMENSION}
GROUP BY dimension ORDER BY dimension
"""
            ),
            "short",
            "dimension",
            stacked=True,
        ),
        lines(
            "FDR over time",
            "Lower bound per dimension, of the mature episodes that began then; points with fewer than 30 are "
            "left out.",
            Sql(
                f"""
SELECT toStartOfInterval(started, toIntervalSecond(greatest(3600, $__interval_s))) AS time, dimension AS series,
       sum(legitimate) / count() AS fdr
FROM judged_episodes({JUDGED})
WHERE mature AND {DIMENSION}
GROUP BY time, series HAVING count() >= 30 ORDER BY time
""",
                series=True,
            ),
            "percentunit",
            most=1,
        ),
        lines(
            "Outcomes",
            "Labels as they came: what became of subjects.",
            Sql(
                """
SELECT $__timeInterval(ts) AS time, label AS series, uniqExact(id) AS outcomes
FROM outcomes FINAL WHERE $__timeFilter(ts) GROUP BY time, series ORDER BY time
""",
                series=True,
            ),
            "short",
            bars=True,
        ),
    ]


def _causes() -> list[Any]:
    return [
        rows(
            "Who collides with which limit",
            "Subjects refused per limit, and what their labels say they are. `largest_share`: of one subject, so "
            "a limit that "
            "stops one robot looks different from one that everybody meets.",
            Sql(
                f"""
SELECT scenario, limit_name, dimension, subjects, denials, median_denials, established_share, largest_share, labelled,
       legitimate_share, legitimate_low, legitimate_high, who
FROM limit_pressure({PERIOD})
WHERE {SCENARIO} AND {DIMENSION} AND {LIMIT}
LIMIT 100
"""
            ),
            SHARES,
        ),
        rows(
            "Legitimate subjects that were refused",
            "Mature episodes of subjects that are more likely legitimate than not, the most refused first.",
            Sql(
                f"""
SELECT subject, dimension, cause, name, started, denials,
       arrayStringConcat(arrayMap(k -> k.1, kinds), ' ') AS labels, legitimate
FROM judged_episodes({JUDGED})
WHERE mature AND legitimate > 0.5 AND {DIMENSION}
ORDER BY denials DESC, started LIMIT 100
"""
            ),
            {"started": "dateTimeAsIso", "legitimate": "percentunit"},
        ),
        rows(
            "Before and after a policy change",
            "Share of the episodes that are of addresses, before and after the chosen change: whether blocks by "
            "address became fewer.",
            Sql(
                f"""
SELECT period, episodes, ip_episodes, denials, ip_denials, status, ip_share, ip_share_low, ip_share_high
FROM blocks_by_ip_share({PERIOD.replace(", to =", ", change = ${change}, to =")})
"""
            ),
            SHARES,
            size=(24, 5),
        ),
    ]


def nat() -> Any:
    """Addresses that many people share."""
    made = board(
        "pbx-nat",
        "NAT and shared IPs",
        "Offices, schools, carriers: how many people are behind an address, and how many of them are refused for "
        "what others "
        "did or for their number.",
        [chosen("by", "By", {"address": "ip", "network": "prefix", "ASN": "asn"}), _prefix()],
        since="now-7d",
        refresh="15m",
    )
    for panel in [*_nat_figures(), *_nat_tables()]:
        made = made.with_panel(panel)
    return made


def _prefix() -> Any:
    return dashboard.TextBoxVariable("prefix").label("Within (CIDR)").description("Empty: everywhere").default_value("")


def _nat_figures() -> list[Any]:
    return [
        numbers(
            "What shared addresses cost",
            "Of the episodes on addresses, the share that is the fault of their size: no user there exceeded a user "
            "limit, and at least three established users are behind it. Users refused although they kept within their "
            "own limit. The largest effective number of users: N_eff = 1/Σp², which attackers cannot invent.",
            Sql(
                f"""
SELECT sum(nat_episodes) / greatest(1, sum(ip_episodes)) AS `fault of their size`,
       sum(denied_within_limit) AS `users refused within their limit`,
       max(largest_n_eff) AS `largest effective number of users`
FROM nat_false_positives({PERIOD}, prefix = ${{prefix:sqlstring}})
"""
            ),
            {"fault of their size": "percentunit"},
        )
    ]


def _nat_tables() -> list[Any]:
    within = "(${prefix:sqlstring} = '' OR isIPAddressInRange(splitByChar('/', ip_prefix)[1], "
    within += "if(${prefix:sqlstring} = '', '0.0.0.0/0', ${prefix:sqlstring})))"
    return [
        rows(
            "Places where somebody was refused",
            "By address, network (/24, /48) or ASN. `nat_attributable`: its own size is what was refused; make "
            "its limit a "
            "challenge, or raise it toward the user limit times `n_eff`.",
            Sql(
                f"""
SELECT place, ip_prefix, requests, users, established_users, n_eff, users_over_limit, ip_episodes, nat_attributable,
       denied_users, denied_within_limit, status, collateral, collateral_low, collateral_high
FROM nat({PERIOD}, by = ${{by:singlequote}})
WHERE ip_prefix = '' OR {within}
LIMIT 200
"""
            ),
            SHARES,
        ),
        rows(
            "Networks",
            "Episodes on addresses, per network, and the share that is its addresses' size.",
            Sql(
                f"""
SELECT network, addresses, users, established_users, largest_n_eff, ip_episodes, nat_episodes, denied_users,
       denied_within_limit, status, nat_rate, nat_rate_low, nat_rate_high,
       arrayStringConcat(attributable_addresses, ' ') AS attributable
FROM nat_false_positives({PERIOD}, prefix = ${{prefix:sqlstring}}) LIMIT 200
"""
            ),
            SHARES,
        ),
        rows(
            "Shared addresses",
            "Every address with more than one user, refused or not.",
            Sql(
                f"""
SELECT ip, ip_prefix, users, established_users, n_eff, requests, refused, refused_users, users_over_limit,
       first_at, last_at
FROM shared_ips({PERIOD})
WHERE ip_prefix = '' OR {within}
LIMIT 200
"""
            ),
            {"first_at": "dateTimeAsIso", "last_at": "dateTimeAsIso"},
            links={"ip": ("Account farms", address("pbx-farms"))},
        ),
    ]
