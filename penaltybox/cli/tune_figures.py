"""What `penaltybox tune` knows: episodes per limit and rule from ClickHouse, and what shared addresses need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penaltybox.cli.report_advice import advise
from penaltybox.cli.report_sections import limits_met
from penaltybox.processors.softening import Figure, Needed
from penaltybox.sinks.clickhouse import queries

if TYPE_CHECKING:
    from penaltybox.cli.report_view import Period
    from penaltybox.contracts.policy import Policy
    from penaltybox.sinks.clickhouse.client import ClickHouse

_SPAN: Final = "from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}"
_JUDGED: Final = f"judged_episodes({_SPAN}, as_of = {{as_of:DateTime64(3, 'UTC')}}, matures_s = {{matures_s:Int64}})"
_SUMS: Final = """
SELECT place, toUInt64(sum(n)) AS episodes, toUInt64(sum(young)) AS immature,
       toUInt64(sum(known)) AS labelled, sum(good) AS legitimate,
       if(sum(n) > 0, sum(n) * sum(n) / sum(n * n), 0) AS independent
FROM
(
    SELECT place, subject, countIf(ripe) AS n, countIf(NOT ripe) AS young, countIf(ripe AND has_label) AS known,
           sumIf(honest, ripe) AS good
    FROM ({rows})
    GROUP BY place, subject
)
GROUP BY place ORDER BY place
"""
_BY_RULE: Final = f"""
SELECT name AS place, subject, mature AS ripe, labelled AS has_label, legitimate AS honest
FROM {_JUDGED} WHERE cause = 'rule'
"""  # noqa: S608 - constants
_BY_LIMIT: Final = f"""
SELECT concat(d.scenario, '/', e.name) AS place, e.subject AS subject, e.started AS started,
       any(e.mature) AS ripe, any(e.labelled) AS has_label, any(e.legitimate) AS honest
FROM {_JUDGED} AS e
INNER JOIN
(
    SELECT subject, toString(limit_name) AS limit_name, toString(scenario) AS scenario, first_at, last_at
    FROM denied_subjects({_SPAN})
    WHERE enforced AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
) AS d ON d.subject = e.subject AND d.limit_name = e.name
WHERE e.cause = 'limit' AND d.first_at <= e.ended AND d.last_at >= e.started
GROUP BY place, subject, started
"""  # noqa: S608 - constants


def figures(clickhouse: ClickHouse, period: Period, matures_s: int) -> list[Figure]:
    """Every limit and rule with an episode in the period; an episode that spans scenarios counts in each."""
    values = {
        "from": period.from_ms / 1000,
        "to": period.to_ms / 1000,
        "as_of": period.as_of_ms / 1000,
        "matures_s": matures_s,
    }
    limits = clickhouse.rows(_SUMS.replace("{rows}", _BY_LIMIT), values)
    rules = clickhouse.rows(_SUMS.replace("{rows}", _BY_RULE), values)
    return [_figure("limit", row) for row in limits] + [_figure("rule", row) for row in rules]


def _figure(kind: Any, row: dict[str, Any]) -> Figure:
    known = {key: row[key] for key in ("episodes", "immature", "independent", "labelled", "legitimate")}
    return Figure(kind=kind, name=row["place"], **known)


def needed(clickhouse: ClickHouse, period: Period, policy: Policy) -> dict[str, Needed]:
    """Limit on addresses -> the largest figure of `report nat`, of the addresses that sharing explains."""
    places = [row for row in queries.nat(clickhouse, period.from_ms, period.to_ms, "ip") if row["nat_attributable"]]
    met = limits_met(clickhouse, period, places)
    found: dict[str, Needed] = {}
    for row in places:
        for one in advise(row, met.get(f"ip:{row['place']}", []), policy):
            name = f"{one.scenario}/{one.limit}"
            if one.raise_to is not None and (name not in found or found[name].limit < one.raise_to):
                found[name] = Needed(one.raise_to, f"{row['place']}: {one.why}")
    return found
