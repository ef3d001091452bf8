"""The pipeline: lag, throughput, dead letters, what waits for what."""

from __future__ import annotations

from typing import Any

from dashboards.panels import PERIOD, Prom, Sql, board, lines, number, rows


def pipeline() -> Any:
    """Whether decisions become penalties, and rows, in time."""
    made = board(
        "pbx-pipeline",
        "Pipeline",
        "Lag and throughput of workers, times of Redis, Kafka and ClickHouse, dead letters, and the state of the "
        "roll-ups.",
        [],
        since="now-6h",
    )
    for panel in [*_state(), *_flow(), *_stores(), *_letters(), *_processes()]:
        made = made.with_panel(panel)
    return made


def _state() -> list[Any]:
    return [
        number(
            "Processes",
            "Workers and services that Prometheus reaches.",
            Prom("count(penaltybox_process_info)"),
            "short",
        ),
        number(
            "Paused",
            "1 while new blocks are paused, by hand or by the breaker.",
            Prom("max(penaltybox_paused)"),
            "short",
            bad_above=1,
        ),
        number(
            "Waiting",
            "Processes that acknowledge nothing on purpose: a pause, or an outage of Redis, Kafka or ClickHouse.",
            Prom("sum(penaltybox_waiting)"),
            "short",
            bad_above=1,
        ),
        number(
            "Breaker trips",
            "Times that too many new denials paused new blocks, in the period.",
            Prom("sum(increase(penaltybox_breaker_trips_total[$__range]))"),
            "short",
            bad_above=1,
        ),
        number(
            "Dead letters",
            "Records that could not be judged, in the period.",
            Sql("SELECT count() AS dead_letters FROM dead_letters FINAL WHERE $__timeFilter(ts)"),
            "short",
            bad_above=1,
        ),
        number(
            "Roll-ups current",
            "Share of the ten-minute slots that queries read from a roll-up; the others are read from the rows, "
            "exact and "
            "slower.",
            Sql(f"SELECT countIf(current) / count() AS current_share FROM slot_states({PERIOD})"),
            "percentunit",
        ),
    ]


def _flow() -> list[Any]:
    rate = "[$__rate_interval]"
    return [
        lines(
            "Lag by topic",
            "Records that no worker is done with; decisions wait for the penalties role and for analytics, so "
            "they are here "
            "twice.",
            Prom("sum by (topic) (penaltybox_lag_records)", "{{topic}}"),
            "short",
        ),
        lines(
            "Largest lag of a partition",
            "One partition far behind the others: a hot key, or a worker that is stuck.",
            Prom("topk(5, max by (topic, partition) (penaltybox_lag_records))", "{{topic}} {{partition}}"),
            "short",
        ),
        lines(
            "Throughput",
            "Records done a second, by process.",
            Prom(f"sum by (instance) (rate(penaltybox_acknowledged_records_total{rate}))", "{{instance}}"),
            "ops",
            stacked=True,
        ),
        lines(
            "Stepped events",
            "Decisions and outcomes that went through the engine, a second.",
            Prom(f"sum by (instance) (rate(penaltybox_stepped_events_total{rate}))", "{{instance}}"),
            "ops",
            stacked=True,
        ),
        lines(
            "Penalties told",
            "Penalties that Kafka has taken, a second, by rule; shadow rules too.",
            Prom(f"sum by (rule, shadow) (rate(penaltybox_penalties_total{rate}))", "{{rule}} shadow={{shadow}}"),
            "ops",
        ),
        lines(
            "Run sizes",
            "Records of one partition in one run: larger ones are cheaper and come with lag.",
            [
                Prom(f"histogram_quantile(0.5, sum by (le) (rate(penaltybox_run_records_bucket{rate})))", "median"),
                Prom(f"histogram_quantile(0.95, sum by (le) (rate(penaltybox_run_records_bucket{rate})))", "95 %"),
            ],
            "short",
        ),
        lines(
            "From decision to penalty",
            "Time from a decision's own time until its penalty was in Kafka, of steps by rules that were not late.",
            Sql(
                """
SELECT $__timeInterval(ts) AS time,
       quantile(0.5)(toUnixTimestamp64Milli(logged_at) - toUnixTimestamp64Milli(ts)) / 1000 AS median,
       quantile(0.95)(toUnixTimestamp64Milli(logged_at) - toUnixTimestamp64Milli(ts)) / 1000 AS most
FROM penalties FINAL WHERE $__timeFilter(ts) AND origin = 'rule' AND NOT late
GROUP BY time ORDER BY time
""",
                series=True,
            ),
            "s",
        ),
        lines(
            "Rows stored",
            "Rows a second into ClickHouse, by table.",
            Prom(f"sum by (table) (rate(penaltybox_stored_rows_total{rate}))", "{{table}}"),
            "ops",
        ),
    ]


def _stores() -> list[Any]:
    rate = "[$__rate_interval]"
    store = f"sum by (le, operation) (rate(penaltybox_store_seconds_bucket{rate}))"
    tell = f"sum by (le) (rate(penaltybox_tell_seconds_bucket{rate}))"
    insert = f"sum by (le, table) (rate(penaltybox_insert_seconds_bucket{rate}))"
    return [
        lines(
            "Redis, 95 % of calls",
            "Reads and writes of states: one call carries many subjects.",
            Prom(f"histogram_quantile(0.95, {store})", "{{operation}}"),
            "s",
        ),
        lines(
            "Kafka and ClickHouse, 95 % of calls",
            "Deliveries of penalties, ladders and dead letters; inserts by table.",
            [
                Prom(f"histogram_quantile(0.95, {tell})", "delivery"),
                Prom(f"histogram_quantile(0.95, {insert})", "insert into {{table}}"),
            ],
            "s",
        ),
        lines(
            "Errors",
            "Failed calls a second; all are tried again. Kind generation: Redis was wiped or swapped, run "
            "penaltybox restore.",
            [
                Prom(
                    f"sum by (operation, kind) (rate(penaltybox_store_errors_total{rate}))",
                    "Redis {{operation}} {{kind}}",
                ),
                Prom(f"sum(rate(penaltybox_tell_errors_total{rate}))", "Kafka"),
                Prom(f"sum(rate(penaltybox_clickhouse_errors_total{rate}))", "ClickHouse"),
            ],
            "ops",
        ),
        lines(
            "Races",
            "Writes that another worker forestalled, and writes that found less in Redis than was read.",
            [
                Prom(f"sum(rate(penaltybox_store_races_total{rate}))", "lost races"),
                Prom(f"sum(rate(penaltybox_store_rewound_total{rate}))", "rewound"),
            ],
            "ops",
        ),
        lines(
            "Not told yet",
            "Stored writes whose penalties Kafka has not taken, subjects in the outbox, records held for ClickHouse.",
            [
                Prom("sum(penaltybox_untold_writes)", "writes not told"),
                Prom("max(penaltybox_outbox_subjects)", "subjects in the outbox"),
                Prom("sum(penaltybox_held_records)", "records not stored"),
            ],
            "short",
        ),
        lines(
            "Resident subjects",
            "States in the memory of each penalties worker.",
            Prom("max by (instance) (penaltybox_resident_subjects)", "{{instance}}"),
            "short",
        ),
    ]


def _letters() -> list[Any]:
    return [
        lines(
            "Dead letters by reason",
            "Records that could not be judged, over time. `penaltybox dead-letters show` prints them.",
            Sql(
                """
SELECT $__timeInterval(ts) AS time, reason AS series, count() AS dead_letters
FROM dead_letters FINAL WHERE $__timeFilter(ts) GROUP BY time, series ORDER BY time
""",
                series=True,
            ),
            "short",
            bars=True,
        ),
        rows(
            "Dead letters",
            "By topic and reason, with the latest detail.",
            Sql(f"SELECT * FROM dead_letters_by_reason({PERIOD}) LIMIT 100"),
            {},
            size=(12, 8),
        ),
    ]


def _processes() -> list[Any]:
    return [
        lines(
            "CPU",
            "Of each process; a worker uses one core at most.",
            Prom("sum by (instance) (rate(process_cpu_seconds_total[$__rate_interval]))", "{{instance}}"),
            "percentunit",
        ),
        lines(
            "Memory",
            "Resident memory of each process.",
            Prom("max by (instance) (process_resident_memory_bytes)", "{{instance}}"),
            "bytes",
        ),
        lines(
            "Alerts sent",
            "Alerts a second to the webhook, by what became of them.",
            Prom("sum by (result) (rate(penaltybox_alerts_total[$__rate_interval]))", "{{result}}"),
            "ops",
            size=(24, 6),
        ),
    ]
