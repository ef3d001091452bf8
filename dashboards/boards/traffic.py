"""Overview, and the limiter's health."""

from __future__ import annotations

from typing import Any, Final

from dashboards.panels import (
    DIMENSION,
    DIMENSIONS,
    LIMIT,
    LIMITS,
    PERIOD,
    SCENARIO,
    SCENARIOS,
    STEP,
    Prom,
    Sql,
    address,
    board,
    lines,
    number,
    rows,
)

REFUSED: Final = "enforced AND action IN ('deny', 'challenge', 'shadow')"
FAILED: Final = "reason IN ('fail_open', 'fail_closed', 'local_fallback')"


def _per_second(by: str, where: str, amount: str = "requests") -> Sql:
    """Requests a second over time, by one column of the roll-up per minute."""
    return Sql(
        f"""
SELECT toStartOfInterval(minute, {STEP}) AS time, {by} AS series,
       sum({amount}) / greatest(60, $__interval_s) AS per_second
FROM decisions_per_minute({PERIOD})
WHERE {where}
GROUP BY time, series ORDER BY time
""",
        series=True,
    )


def overview() -> Any:
    """What happens, at a glance; each figure leads to the dashboard that explains it."""
    made = board(
        "pbx-overview",
        "Overview",
        "What the limiter answered, what was punished, and whether anything is wrong.",
        [SCENARIOS, DIMENSIONS, LIMITS],
    )
    for panel in [*_figures(), *_traffic(), *_what_refuses()]:
        made = made.with_panel(panel)
    return made


def _figures() -> list[Any]:
    return [
        number(
            "Requests",
            "Requests that a limiter decided, each weighed by its count and sample rate.",
            Sql(f"SELECT sum(requests) AS requests FROM decisions_per_minute({PERIOD}) WHERE {SCENARIO}"),
            "short",
        ),
        number(
            "Refused",
            "Share of the requests that were denied, challenged or answered with a false success.",
            Sql(
                f"SELECT sumIf(requests, {REFUSED}) / sum(requests) AS refused "
                f"FROM decisions_per_minute({PERIOD}) WHERE {SCENARIO}"
            ),
            "percentunit",
        ),
        number(
            "Penalties",
            "Steps up the ladder and challenges, by rules and by hand; without shadow rules and lifts.",
            Sql(
                "SELECT count() AS penalties FROM penalties FINAL "
                f"WHERE $__timeFilter(ts) AND NOT shadow AND action != 'lift' AND {DIMENSION}"
            ),
            "short",
        ),
        number(
            "Denied now",
            "Subjects whose latest step within the period denies them and has not ended.",
            Sql(
                "SELECT countIf(latest.1 = 'deny' AND (isNull(latest.2) OR latest.2 > now64(3, 'UTC'))) AS denied "
                "FROM (SELECT subject, argMax((action, until), (seq, ts)) AS latest FROM penalties FINAL "
                f"WHERE $__timeFilter(ts) AND NOT shadow AND {DIMENSION} GROUP BY subject)"
            ),
            "short",
        ),
        number(
            "Records waiting",
            "Records that workers are not done with, over all topics. See Pipeline.",
            Prom("sum(penaltybox_lag_records)"),
            "short",
            bad_above=50_000,
        ),
        number(
            "Paused",
            "1 while new blocks are paused, by hand or by the breaker: decisions wait.",
            Prom("max(penaltybox_paused)"),
            "short",
            bad_above=1,
        ),
    ]


def _traffic() -> list[Any]:
    return [
        lines(
            "Requests by answer",
            "Requests a second. `shadow` is a false success: the client believes it worked.",
            _per_second("action", SCENARIO),
            "reqps",
            stacked=True,
        ),
        lines(
            "Refusals by reason",
            "Refused requests a second: over a limit, an existing block, a challenge, or the failure policy.",
            _per_second("reason", f"{REFUSED} AND {SCENARIO}"),
            "reqps",
            stacked=True,
        ),
        lines(
            "Refusals by dimension",
            "Refusals over a limit a second, by the most specific violated dimension: what it is charged to.",
            _per_second("dimension", f"{REFUSED} AND dimension != '' AND {SCENARIO} AND {DIMENSION} AND {LIMIT}"),
            "reqps",
            stacked=True,
        ),
        lines(
            "Penalties by rung",
            "Steps and challenges over time, by the rung they lead to.",
            Sql(
                """
SELECT $__timeInterval(ts) AS time, if(action = 'challenge', 'challenge', toString(to_rung)) AS series,
       count() AS penalties
FROM penalties FINAL
WHERE $__timeFilter(ts) AND NOT shadow AND action != 'lift'
  AND $__conditionalAll(dimension IN (${dimension:singlequote}), $dimension)
GROUP BY time, series ORDER BY time
""",
                series=True,
            ),
            "short",
            bars=True,
        ),
    ]


def _what_refuses() -> list[Any]:
    return [
        rows(
            "Limits that refuse most",
            "Refusals by limit, how many subjects they hit, and whether those are customers or abusers by their labels "
            "(under 30 labelled subjects: insufficient).",
            Sql(
                f"""
SELECT scenario, limit_name, dimension, denials, subjects, established_share, largest_share, who
FROM limit_pressure({PERIOD})
WHERE {SCENARIO} AND {DIMENSION} AND {LIMIT}
ORDER BY denials DESC LIMIT 50
"""
            ),
            {"established_share": "percentunit", "largest_share": "percentunit"},
            links={"who": ("False positives", address("pbx-false-positives"))},
            size=(16, 9),
        ),
        rows(
            "Scenarios",
            "Requests and the share refused, by scenario.",
            Sql(
                f"""
SELECT scenario, sum(requests) AS asked, sumIf(requests, {REFUSED}) / asked AS refused_share
FROM decisions_per_minute({PERIOD})
WHERE {SCENARIO} GROUP BY scenario ORDER BY asked DESC LIMIT 50
"""
            ),
            {"refused_share": "percentunit"},
            size=(8, 9),
        ),
    ]


def limiter() -> Any:
    """Whether limiters answer in time, and what they do when Redis does not."""
    made = board(
        "pbx-limiter",
        "Limiter health",
        "Latency, failures of Redis and what the failure policies did, caches, and what was published.",
        [SCENARIOS],
        since="now-6h",
    )
    for panel in [*_latency(), *_failures(), *_publishing()]:
        made = made.with_panel(panel)
    return made


def _latency() -> list[Any]:
    buckets = "sum by (le) (rate(penaltybox_decision_seconds_bucket[$__rate_interval]))"
    return [
        lines(
            "Time of a decision",
            "In the decision service, Redis included, its own HTTP not. Applications that embed the limiter are "
            "not in it.",
            [
                Prom(f"histogram_quantile(0.5, {buckets})", "median"),
                Prom(f"histogram_quantile(0.99, {buckets})", "99 %"),
            ],
            "s",
        ),
        lines(
            "Decisions of the service",
            "Decisions a second of the decision service, by action and reason.",
            Prom(
                "sum by (action, reason) (rate(penaltybox_decisions_total[$__rate_interval]))", "{{action}} {{reason}}"
            ),
            "reqps",
            stacked=True,
        ),
        lines(
            "What answered",
            "Requests a second by what answered them: a list, a remembered block, no check (sampling), a lease, "
            "or Redis.",
            Prom("sum by (by) (rate(penaltybox_answers_total[$__rate_interval]))", "{{by}}"),
            "reqps",
            stacked=True,
        ),
        lines(
            "HTTP answers",
            "Calls of the decision service a second, by way of asking and status. 5xx and 4xx of a gateway are "
            "mistakes in "
            "its configuration.",
            Prom("sum by (way, status) (rate(penaltybox_calls_total[$__rate_interval]))", "{{way}} {{status}}"),
            "reqps",
        ),
    ]


def _failures() -> list[Any]:
    return [
        lines(
            "Decisions by failure policy",
            "Requests a second that were decided without Redis: let through, refused, or judged in memory. From "
            "every limiter, "
            "as published.",
            Sql(
                f"""
SELECT toStartOfInterval(minute, {STEP}) AS time, concat(scenario, ' ', reason) AS series,
       sum(requests) / greatest(60, $__interval_s) AS per_second
FROM decisions_per_minute({PERIOD})
WHERE {FAILED} AND {SCENARIO}
GROUP BY time, series ORDER BY time
""",
                series=True,
            ),
            "reqps",
            stacked=True,
        ),
        rows(
            "Failure policies used",
            "Requests that were decided without Redis, by scenario, reason and limiter instance.",
            Sql(
                f"""
SELECT scenario, reason, source, sum(requests) AS decided, min(first_at) AS first, max(last_at) AS last
FROM decisions_per_minute({PERIOD})
WHERE {FAILED} AND {SCENARIO}
GROUP BY scenario, reason, source ORDER BY decided DESC LIMIT 100
"""
            ),
            {"first": "dateTimeAsIso", "last": "dateTimeAsIso"},
            size=(12, 8),
        ),
        lines(
            "Redis errors of the service",
            "Failed calls a second by kind. NoAnswerInTime: a scenario's deadline was missed.",
            Prom("sum by (kind) (rate(penaltybox_redis_errors_total[$__rate_interval]))", "{{kind}}"),
            "ops",
        ),
        lines(
            "Without Redis",
            "1 while an instance of the service decides without Redis; how often that began, over the period shown.",
            [
                Prom("max by (instance) (penaltybox_redis_away)", "{{instance}}"),
                Prom("sum(increase(penaltybox_redis_outages_total[$__range]))", "outages in the period"),
            ],
            "short",
        ),
    ]


def _publishing() -> list[Any]:
    return [
        lines(
            "What became of decisions to publish",
            "Records a second of the service's publisher. Dropped are allowed requests while Kafka was away; "
            "spilled are "
            "refusals that wait on disk.",
            Prom("sum by (fate) (rate(penaltybox_publisher_records_total[$__rate_interval]))", "{{fate}}"),
            "ops",
        ),
        lines(
            "Spill",
            "Size of the refusals that wait on disk for Kafka.",
            Prom("sum by (instance) (penaltybox_spill_bytes)", "{{instance}}"),
            "bytes",
        ),
        lines(
            "Requests by limiter",
            "Requests a second that each limiter instance has published: one that is missing publishes nothing.",
            _per_second("source", SCENARIO),
            "reqps",
            size=(24, 8),
        ),
    ]
