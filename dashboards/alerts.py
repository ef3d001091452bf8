"""Alert rules, as Grafana's file provisioning reads them.

Nothing in them has a dollar sign: Grafana would take what follows for a variable of its environment.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from dashboards.panels import CLICKHOUSE_UID, PLUGIN_VERSION, PROMETHEUS_UID

FOLDER: Final = "penaltybox"
EXPRESSION: Final = "__expr__"
MONTH: Final = "from = toUnixTimestamp(now() - INTERVAL 30 DAY), to = toUnixTimestamp(now())"


class Rule(NamedTuple):
    """When to call somebody.

    Attributes:
        uid, title: its own.
        says: what it means and what to do.
        query: PromQL, or SQL whose one figure per row is compared.
        above: what is too much.
        lasts: for how long before it fires.
        severity: ``critical`` wakes somebody up.
        board: the dashboard that shows more.
    """

    uid: str
    title: str
    says: str
    query: str
    above: float
    lasts: str
    severity: str
    board: str

    @property
    def is_sql(self) -> bool:
        """Whether ClickHouse is asked."""
        return self.query.lstrip().startswith("SELECT")


RULES: Final = (
    Rule(
        "pbx-false-positives",
        "False positives over the target",
        "The lower end of the FDR's interval exceeds the target (addresses 5 %, others 1 %): too much of what is "
        "refused is "
        "known to be legitimate. The dashboard says which limit; `penaltybox replay` tries a softer one.",
        f"""
SELECT dimension, fdr_low - if(dimension = 'ip', 0.05, 0.01) AS over
FROM false_positives({MONTH})
WHERE fdr_status IN ('report only', 'actionable')
""".strip(),
        0,
        "30m",
        "warning",
        "pbx-false-positives",
    ),
    Rule(
        "pbx-lag",
        "Workers fall behind",
        "Records wait for longer than workers need to catch up: penalties come late. Start more workers, up to "
        "the number of "
        "partitions; look whether one is stuck or Redis is slow.",
        "sum by (topic) (penaltybox_lag_records)",
        50_000,
        "5m",
        "critical",
        "pbx-pipeline",
    ),
    Rule(
        "pbx-dead-letters",
        "Records cannot be judged",
        "A publisher sends records that no worker can read. `penaltybox dead-letters show` prints them, `retry` "
        "sends them "
        "again when the cause is corrected.",
        "sum by (reason) (increase(penaltybox_dead_letters_total[15m]))",
        0,
        "0s",
        "warning",
        "pbx-pipeline",
    ),
    Rule(
        "pbx-redis-workers",
        "Workers cannot use Redis",
        "Reads or writes of states fail; nothing is acknowledged meanwhile. Kind generation: Redis was wiped or "
        "swapped, run "
        "`penaltybox restore`.",
        "sum by (kind) (rate(penaltybox_store_errors_total[5m]))",
        0,
        "2m",
        "critical",
        "pbx-pipeline",
    ),
    Rule(
        "pbx-redis-limiter",
        "Requests are decided without Redis",
        "The decision service goes by each scenario's failure policy: limits are not exact, or everything is refused.",
        "max by (instance) (penaltybox_redis_away)",
        0,
        "1m",
        "critical",
        "pbx-limiter",
    ),
    Rule(
        "pbx-failure-policy",
        "Failure policies are in use",
        "More than 1 % of the published requests of the last ten minutes were decided without Redis, by limiters in "
        "applications too.",
        """
SELECT scenario, sumIf(requests, reason IN ('fail_open', 'fail_closed', 'local_fallback')) / sum(requests) AS share
FROM decisions_per_minute(from = toUnixTimestamp(now() - INTERVAL 10 MINUTE), to = toUnixTimestamp(now()))
GROUP BY scenario
""".strip(),
        0.01,
        "2m",
        "warning",
        "pbx-limiter",
    ),
    Rule(
        "pbx-paused",
        "New blocks are paused",
        "By hand, or because the breaker has tripped: look at `penaltybox blocks`, correct the rule, `penaltybox "
        "resume`. "
        "Decisions wait in Kafka.",
        "max(penaltybox_paused)",
        0,
        "1m",
        "critical",
        "pbx-pipeline",
    ),
    Rule(
        "pbx-waiting",
        "A role waits for a server",
        "Redis, Kafka or ClickHouse is away for longer than a restart takes; nothing is lost, and nothing goes on.",
        "max by (instance) (penaltybox_waiting)",
        0,
        "5m",
        "critical",
        "pbx-pipeline",
    ),
    Rule(
        "pbx-down",
        "A process is gone",
        "Prometheus does not reach a process that it knows.",
        'max by (instance) (1 - up{job="penaltybox"})',
        0,
        "3m",
        "critical",
        "pbx-pipeline",
    ),
    Rule(
        "pbx-spill",
        "Refusals wait on disk",
        "The decision service cannot publish: Kafka is away, or refuses. At PENALTYBOX_SPILL_MAX_MB refusals are "
        "dropped.",
        "sum(penaltybox_spill_bytes)",
        10_000_000,
        "5m",
        "warning",
        "pbx-limiter",
    ),
)


def provisioning() -> dict[str, Any]:
    """The file for `provisioning/alerting`."""
    group = {
        "orgId": 1,
        "name": "penaltybox",
        "folder": FOLDER,
        "interval": "1m",
        "rules": [_rule(one) for one in RULES],
    }
    return {"apiVersion": 1, "groups": [group]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "uid": rule.uid,
        "title": rule.title,
        "condition": "B",
        "data": [_question(rule), _comparison(rule)],
        "noDataState": "OK",
        "execErrState": "Error",
        "for": rule.lasts,
        "annotations": {"summary": rule.title, "description": rule.says, "__dashboardUid__": rule.board},
        "labels": {"severity": rule.severity, "service": "penaltybox"},
        "isPaused": False,
    }


def _question(rule: Rule) -> dict[str, Any]:
    model: dict[str, Any] = {"refId": "A", "intervalMs": 60_000, "maxDataPoints": 1000}
    if rule.is_sql:
        model |= {"editorType": "sql", "queryType": "table", "format": 1, "rawSql": rule.query}
        model["pluginVersion"] = PLUGIN_VERSION
    else:
        model |= {"expr": rule.query, "instant": True, "range": False}
    return {
        "refId": "A",
        "relativeTimeRange": {"from": 900, "to": 0},
        "datasourceUid": CLICKHOUSE_UID if rule.is_sql else PROMETHEUS_UID,
        "model": model,
    }


def _comparison(rule: Rule) -> dict[str, Any]:
    condition = {"type": "query", "evaluator": {"type": "gt", "params": [rule.above]}}
    return {
        "refId": "B",
        "relativeTimeRange": {"from": 0, "to": 0},
        "datasourceUid": EXPRESSION,
        "model": {"refId": "B", "type": "threshold", "expression": "A", "conditions": [condition]},
    }
