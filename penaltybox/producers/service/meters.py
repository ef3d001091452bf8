"""What the decision service counts: a clock around each decision, and the figures that its limiter keeps anyway."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from penaltybox.links.exposition import SECONDS, Bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from penaltybox.producers.background import BackgroundPublisher
    from penaltybox.producers.breakers import Breakers
    from penaltybox.producers.cached import CachedDecider
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.outages import FailureCounts
    from penaltybox.producers.service.application import Application
    from penaltybox.producers.service.calls import Receive, Scope, Send
    from penaltybox.producers.verdict import Decider, Verdict

_WAYS: tuple[tuple[str, str], ...] = (
    ("/auth/nginx", "nginx"),
    ("/auth/forward", "forward"),
    ("/auth/envoy", "envoy"),
    ("/v1/decide", "decide"),
    ("/v1/refund", "refund"),
    ("/v1/outcomes", "outcomes"),
    ("/v1/subjects/", "subjects"),
    ("/v1/blocks/", "blocks"),
    ("/healthz", "health"),
    ("/readyz", "health"),
)


class MeteredDecider:
    """A `Decider` with a clock around it.

    Args:
        decider: decides.
        registry: where the figures are found.
    """

    def __init__(self, decider: Decider, registry: CollectorRegistry) -> None:
        self._decider = decider
        self._bounded = Bounded()
        self._decisions = Counter(
            "penaltybox_decisions",
            "Requests that were decided here, by scenario, action and reason.",
            ["scenario", "action", "reason"],
            registry=registry,
        )
        self._seconds = Histogram(
            "penaltybox_decision_seconds", "How long a decision took.", buckets=SECONDS, registry=registry
        )
        self._refunds = Counter(
            "penaltybox_refunds", "Requests to give back, by whether something was.", ["given"], registry=registry
        )

    async def decide(self, request: Request) -> Verdict:
        """See `Decider`."""
        began_s = time.perf_counter()
        verdict = await self._decider.decide(request)
        self._seconds.observe(time.perf_counter() - began_s)
        values = self._bounded.of(request.scenario, verdict.action, verdict.reason or "limits")
        self._decisions.labels(*values).inc()
        return verdict

    async def refund(self, idempotency_key: str) -> bool:
        """See `Decider`."""
        given = await self._decider.refund(idempotency_key)
        self._refunds.labels("true" if given else "false").inc()
        return given


class MeteredApplication:
    """The ASGI application, and how it answered each call.

    Args:
        application: answers.
        registry: where the figures are found.
    """

    def __init__(self, application: Application, registry: CollectorRegistry) -> None:
        self._application = application
        self._calls = Counter(
            "penaltybox_calls", "Calls of the service, by way and status.", ["way", "status"], registry=registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `Application`."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        way = next((way for path, way in _WAYS if scope["path"].startswith(path)), "other")

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._calls.labels(way, str(message["status"])).inc()
            await send(message)

        await self._application(scope, receive, counted)


@runtime_checkable
class Counted(Protocol):
    """A limiter on Redis, as far as it counts."""

    breaker: Breakers
    counts: FailureCounts


class LimiterFigures(Collector):
    """What limiter and publisher count anyway, read when a scrape comes.

    Args:
        limiter: caches and lists; the limiter on Redis is inside.
        publisher: takes its decisions.
    """

    def __init__(self, limiter: CachedDecider, publisher: BackgroundPublisher) -> None:
        self._limiter = limiter
        self._publisher = publisher

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        yield from self._limiter_families()
        yield from self._publisher_families()

    def _limiter_families(self) -> Iterable[Metric]:
        counts = self._limiter.counts
        yield _counter(
            "penaltybox_answers",
            "Requests by what answered them: a list, a remembered block, no check at all, a lease, or Redis.",
            "by",
            {name: getattr(counts, name) for name in counts.__struct_fields__},
        )
        policy = InfoMetricFamily("penaltybox_policy", "The policy in force here.")
        policy.add_metric([], {"version": self._limiter.policy.version})
        yield policy
        inner = self._limiter.inner
        if not isinstance(inner, Counted):
            return
        yield _counter(
            "penaltybox_redis_errors",
            "Calls of Redis that failed, by kind.",
            "kind",
            {"NoAnswerInTime": 0, "StoreUnavailable": 0, **inner.counts.errors},
        )
        yield GaugeMetricFamily(
            "penaltybox_redis_away",
            "Redis servers that do not answer, so that requests are decided without them.",
            value=len(inner.breaker.nodes),
        )
        yield CounterMetricFamily(
            "penaltybox_redis_outages", "Times that requests began to be decided without Redis.", inner.breaker.openings
        )
        yield _counter(
            "penaltybox_decisions_without_redis",
            "Decisions by a scenario's failure policy.",
            ("scenario", "reason"),
            dict(inner.counts.decisions),
        )

    def _publisher_families(self) -> Iterable[Metric]:
        counters = self._publisher.counters
        fates = ("offered", "published", "dropped", "failed", "spilled", "resent", "corrupt")
        yield _counter(
            "penaltybox_publisher_records",
            "Decisions and outcomes to publish, by what became of them.",
            "fate",
            {fate: getattr(counters, fate) for fate in fates},
        )
        yield GaugeMetricFamily(
            "penaltybox_spill_bytes", "Size of the refusals that wait on disk for Kafka.", value=counters.spilled_bytes
        )


def _counter(name: str, says: str, labels: str | Sequence[str], values: dict[Any, int]) -> Metric:
    names = (labels,) if isinstance(labels, str) else labels
    family = CounterMetricFamily(name, says, labels=names)
    for key, value in values.items():
        family.add_metric((key,) if isinstance(key, str) else key, value)
    return family
