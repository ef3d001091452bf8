"""The shipped queries. Each is a parameterised view of the database; docs/analytics.md says what its columns mean.

All count an event stored twice once: they read roll-ups that hold it once, what no roll-up covers FINAL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from penaltybox.sinks.clickhouse.client import ClickHouse

    Rows = list[dict[str, Any]]

BY_LABEL: Final = -1
"""`matures_s` of the false-positive queries: each label's own time, from table `label_weights`."""

PARAMETERS: Final = {
    "from": "DateTime64(3, 'UTC')",
    "to": "DateTime64(3, 'UTC')",
    "as_of": "DateTime64(3, 'UTC')",
    "matures_s": "Int64",
    "by": "String",
    "prefix": "String",
    "change": "DateTime64(3, 'UTC')",
}
QUERIES: Final = {
    "totals": ("from", "to"),
    "decisions_per_minute": ("from", "to"),
    "blocks_by_dimension": ("from", "to"),
    "denied_subjects": ("from", "to"),
    "sightings": ("from", "to"),
    "penalties_by_rung": ("from", "to"),
    "penalty_funnel": ("from", "to"),
    "hits_per_block": ("from", "to"),
    "policy_versions": ("from", "to"),
    "dead_letters_by_reason": ("from", "to"),
    "episodes": ("from", "to"),
    "judged_episodes": ("from", "to", "as_of", "matures_s"),
    "false_positives": ("from", "to"),
    "false_positives_as_of": ("from", "to", "as_of", "matures_s"),
    "probe_estimates": ("from", "to", "as_of", "matures_s"),
    "nat": ("from", "to", "by"),
    "nat_false_positives": ("from", "to", "prefix"),
    "shared_ips": ("from", "to"),
    "account_farms": ("from", "to"),
    "limit_pressure": ("from", "to"),
    "blocks_by_ip_share": ("from", "change", "to"),
}
"""Name -> parameters."""
_WORST_PLACES: Final = """
SELECT *, count() OVER () AS total
FROM nat(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, by = {by:String})
ORDER BY nat_attributable DESC, denied_within_limit DESC, place LIMIT {most:UInt32}
"""
_NOT_PROBED: Final = {
    "drawn": 0, "probe_status": "off", "fdr_probe": None, "fdr_probe_low": None, "fdr_probe_high": None,
}  # fmt: skip
_LAST_MS: Final = 10_413_791_999_999


def totals(clickhouse: ClickHouse, from_ms: int, to_ms: int) -> Rows:
    """Decisions, requests and users by action and reason, for event times from `from_ms` to before `to_ms`."""
    return run(clickhouse, "totals", {"from": from_ms, "to": to_ms})


def blocks_by_dimension(clickhouse: ClickHouse, from_ms: int, to_ms: int) -> Rows:
    """Enforced denials by charged dimension, limit, reason and action, with their share of all."""
    return run(clickhouse, "blocks_by_dimension", {"from": from_ms, "to": to_ms})


def penalties_by_rung(clickhouse: ClickHouse, from_ms: int, to_ms: int) -> Rows:
    """Penalties by rule, rung, dimension and action; shadow ones apart."""
    return run(clickhouse, "penalties_by_rung", {"from": from_ms, "to": to_ms})


def dead_letters_by_reason(clickhouse: ClickHouse, from_ms: int, to_ms: int) -> Rows:
    """Dead letters by topic and reason, with the latest detail."""
    return run(clickhouse, "dead_letters_by_reason", {"from": from_ms, "to": to_ms})


def episodes(clickhouse: ClickHouse, from_ms: int, to_ms: int) -> Rows:
    """Merged denials: one row per (limit or rule, subject) and incident."""
    return run(clickhouse, "episodes", {"from": from_ms, "to": to_ms})


def judged_episodes(clickhouse: ClickHouse, from_ms: int, to_ms: int, as_of_ms: int, matures_s: int = BY_LABEL) -> Rows:
    """Episodes with maturity, labels and the probability that the subject was legitimate; see `false_positives`."""
    return run(clickhouse, "judged_episodes", {"from": from_ms, "to": to_ms, "as_of": as_of_ms, "matures_s": matures_s})


def false_positives(clickhouse: ClickHouse, from_ms: int, to_ms: int, as_of_ms: int, matures_s: int = BY_LABEL) -> Rows:
    """FDR and FPR per dimension with 95 % intervals.

    Args:
        clickhouse: the database.
        from_ms: event time of the first denial.
        to_ms: end of the period, exclusive.
        as_of_ms: what is known now: labels after it are not looked at, and maturity is measured from it.
        matures_s: seconds after which an episode is mature, instead of the labels' own times.
    """
    values: dict[str, int | str] = {"from": from_ms, "to": to_ms, "as_of": as_of_ms, "matures_s": matures_s}
    return run(clickhouse, "false_positives_as_of", values)


def probe_estimates(clickhouse: ClickHouse, from_ms: int, to_ms: int, as_of_ms: int, matures_s: int = BY_LABEL) -> Rows:
    """FDR per dimension from denials that the probe turned into challenges; parameters as of `false_positives`.

    `matures_s` is the time in which a challenge is passed or not, by default that of the label `challenge_passed`.
    """
    values: dict[str, int | str] = {"from": from_ms, "to": to_ms, "as_of": as_of_ms, "matures_s": matures_s}
    return run(clickhouse, "probe_estimates", values)


def probed_rates(clickhouse: ClickHouse, from_ms: int, to_ms: int, as_of_ms: int, matures_s: int = BY_LABEL) -> Rows:
    """Rows of `false_positives` with what `probe_estimates` has of the same dimension, `off` where it has nothing."""
    span = (clickhouse, from_ms, to_ms, as_of_ms, matures_s)
    probed = {row["dimension"]: row for row in probe_estimates(*span)}
    return [_NOT_PROBED | row | probed.get(row["dimension"], {}) for row in false_positives(*span)]


def nat(clickhouse: ClickHouse, from_ms: int, to_ms: int, by: Literal["ip", "prefix", "asn"] = "ip") -> Rows:
    """Places with denials: effective users, whether their episodes are attributable to a shared address, collateral."""
    return run(clickhouse, "nat", {"from": from_ms, "to": to_ms, "by": by})


def worst_places(
    clickhouse: ClickHouse, from_ms: int, to_ms: int, by: Literal["ip", "prefix", "asn"], most: int
) -> Rows:
    """The first `most` rows of `nat`: what sharing explains, then the most users refused within their own limit.

    Each has the number of all of them as `total`: there may be a hundred thousand, and nobody reads them.
    """
    values = {"from": _bound("from", from_ms), "to": _bound("to", to_ms), "by": by, "most": most}
    return clickhouse.rows(_WORST_PLACES, values)


def run(clickhouse: ClickHouse, name: str, values: dict[str, int | str]) -> Rows:
    """Rows of a shipped query by name.

    Raises:
        StoreUnavailable: no answer, or the views are not there.
        KeyError: no such query, or a parameter is missing.
    """
    parameters = {key: _bound(key, values[key]) for key in QUERIES[name]}
    arguments = ", ".join(f"{key} = {{{key}:{PARAMETERS[key]}}}" for key in parameters)
    return clickhouse.rows(f"SELECT * FROM {name}({arguments})", parameters)  # noqa: S608 - names are constants above


def _bound(key: str, value: int | str) -> str:
    if PARAMETERS[key].startswith("DateTime64"):
        milliseconds = min(max(int(value), 0), _LAST_MS)
        return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"
    return str(value)
