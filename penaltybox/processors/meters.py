"""What a worker tells Prometheus: read when a scrape comes, counted per run, write and insert, never per event.

docs/metrics.md describes every one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from penaltybox.links.exposition import SIZES
from penaltybox.processors.watchdog import consumer_lags

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from penaltybox.processors.alert_delivery import Delivery
    from penaltybox.processors.analytics_pipeline import Pipeline
    from penaltybox.processors.app import App
    from penaltybox.processors.worker import Worker

LAG_S: Final = 5.0
SOON_S: Final = 0.5
"""Without partitions, as at the start, they are looked for again soon."""


class Role(Protocol):
    """What every role keeps."""

    acknowledged: int

    @property
    def waiting(self) -> bool:
        """Whether nothing is acknowledged on purpose."""


class Figures(Collector):
    """Figures that somebody keeps anyway, read when a scrape comes; registered under what they are now."""

    def __init__(self, registry: CollectorRegistry, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        return self._families()


def meter_role(registry: CollectorRegistry | None, app: App, role: Role) -> list[Coroutine[Any, Any, None]]:
    """Tell what every role has: what was fetched and done, what waits in Kafka, whether it waits on purpose.

    Args:
        registry: where it is found; None: nothing is told.
        app: the role's.
        role: what takes its runs.

    Returns:
        What has to run beside the app.
    """
    if registry is None:
        return []
    fetched = Counter("penaltybox_fetched_records", "Records handed to the role.", ["topic"], registry=registry)
    runs = Histogram("penaltybox_run_records", "Records of one partition in one run.", buckets=SIZES, registry=registry)
    waiting = Gauge(
        "penaltybox_waiting", "1 while nothing is acknowledged on purpose: a pause, an outage.", registry=registry
    )
    waiting.set_function(lambda: float(role.waiting))
    done = "Records that the role is done with."
    Figures(registry, lambda: [CounterMetricFamily("penaltybox_acknowledged_records", done, value=role.acknowledged)])

    def note_run(topic: str, records: int) -> None:
        fetched.labels(topic).inc(records)
        runs.observe(records)

    app.note_run = note_run
    return [_tell_lag(registry, app)]


async def _tell_lag(registry: CollectorRegistry, app: App) -> None:
    """Look at the lag of the app's partitions every few seconds, for ever."""
    lags: Mapping[Any, int] = {}

    def families() -> Iterable[Metric]:
        says = "Records of a partition of this process that it is not done with."
        family = GaugeMetricFamily("penaltybox_lag_records", says, labels=["topic", "partition"])
        for tp, lag in lags.items():
            family.add_metric([tp.topic, str(tp.partition)], lag)
        return [family]

    Figures(registry, families)
    look = consumer_lags(app)
    while True:
        found = await look()
        lags = lags if found is None else found
        await asyncio.sleep(LAG_S if found else SOON_S)


def meter_worker(registry: CollectorRegistry | None, worker: Worker) -> None:
    """Tell what only the penalties role has."""
    if registry is None:
        return
    for name, says, value in (
        ("penaltybox_paused", "1 while new blocks are paused, by hand or by the breaker.", lambda: worker.paused),
        ("penaltybox_resident_subjects", "Subjects whose states are in memory.", lambda: len(worker.residents)),
        (
            "penaltybox_untold_writes",
            "Stored writes whose penalties or ladders Kafka has not taken yet.",
            lambda: worker.teller.taken - worker.teller.told,
        ),
    ):
        Gauge(name, says, registry=registry).set_function(_number(value))
    Figures(registry, lambda: _worker_families(worker))


def _number(value: Callable[[], Any]) -> Callable[[], float]:
    def number() -> float:
        found = value()
        return float(found if isinstance(found, int) else found is not None)

    return number


def _worker_families(worker: Worker) -> Iterable[Metric]:
    stepped = "Decisions and outcomes that went through the engine; one that is stepped again counts again."
    yield CounterMetricFamily("penaltybox_stepped_events", stepped, value=worker.stepped)
    policy = InfoMetricFamily("penaltybox_policy", "The policy that is stepped with.")
    policy.add_metric([], {"version": worker.engine.version})
    yield policy


def meter_pipeline(registry: CollectorRegistry | None, pipeline: Pipeline) -> None:
    """Tell what only the analytics role has."""
    if registry is not None:
        Gauge("penaltybox_held_records", "Records in memory that are not stored yet.", registry=registry).set_function(
            lambda: float(pipeline.held)
        )


def restore_progress(registry: CollectorRegistry | None) -> Callable[[int, int], object]:
    """Tell how far a restore has come; called with ladders done and ladders in all."""
    says = "Ladders that a restore has to put back (state total) and has put back (state done)."
    gauge = Gauge("penaltybox_restore_ladders", says, ["state"], registry=registry)

    def note(done: int, total: int) -> None:
        gauge.labels("done").set(done)
        gauge.labels("total").set(total)

    note(0, 0)
    return note


def meter_delivery(registry: CollectorRegistry | None, delivery: Delivery) -> None:
    """Tell what only the alerts role has."""
    if registry is not None:
        Figures(registry, lambda: [_alerts(delivery)])


def _alerts(delivery: Delivery) -> Metric:
    family = CounterMetricFamily("penaltybox_alerts", "Alerts, by what became of them.", labels=["result"])
    family.add_metric(["delivered"], delivery.delivered)
    family.add_metric(["given_up"], delivery.given_up)
    family.add_metric(["too_old"], delivery.too_old)
    return family
