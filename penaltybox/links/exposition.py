"""What a process counts, for Prometheus: a registry of its own, served on a port if a setting names one."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Info,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from penaltybox import __version__
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.settings import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from penaltybox.contracts.settings import Settings

SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Bounds of histograms of durations."""
SIZES: Final = (1, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
"""Bounds of histograms of batch sizes."""
MOST_LABELS: Final = 500
OTHER: Final = "other"
_log = logging.getLogger(__name__)


class Bounded:
    """At most so many combinations of label values; those that come later are all one, named `other`.

    Names of rules, scenarios and dimensions come from a policy or an event: they are few, until somebody generates
    them, and every combination is a time series.
    """

    def __init__(self, most: int = MOST_LABELS) -> None:
        self._most = most
        self._known: set[tuple[str, ...]] = set()

    def of(self, *values: str) -> tuple[str, ...]:
        """The values, or as often `other`."""
        if values not in self._known:
            if len(self._known) >= self._most:
                return (OTHER,) * len(values)
            self._known.add(values)
        return values


def new_registry(role: str) -> CollectorRegistry:
    """A registry with what every process tells: which role and version it is, CPU, memory, files."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    Info("penaltybox_process", "Role and version of this process.", registry=registry).info(
        {"role": role, "version": __version__}
    )
    return registry


@contextmanager
def exposed(settings: Settings, role: str) -> Iterator[CollectorRegistry | None]:
    """A registry, served while the block lasts; None when the settings name no port. Raises what `served` raises."""
    if not settings.metrics_port:
        yield None
        return
    registry = new_registry(role)
    with served(settings, registry):
        yield registry


@contextmanager
def served(settings: Settings, registry: CollectorRegistry, processes: int = 1) -> Iterator[None]:
    """A registry is served while the block lasts.

    Args:
        settings: `metrics_host`, `metrics_port`.
        registry: what is told.
        processes: how many like this one share the setting: each takes the first free port from `metrics_port` on.

    Raises:
        ConfigurationError: no port is free, or no such address here.
    """
    ports = range(settings.metrics_port, settings.metrics_port + processes)
    server, thread, port = _listen(settings.metrics_host, ports, registry)
    _log.info("metrics on http://%s:%d/metrics", settings.metrics_host, port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(host: str, ports: Sequence[int], registry: CollectorRegistry) -> tuple[WSGIServer, Thread, int]:
    for port in ports:
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            failure = error
        else:
            return server, thread, port
    raise ConfigurationError(
        f"metrics: cannot listen on {host} port {ports[0]}: {failure}; "
        f"change {PREFIX}METRICS_HOST or {PREFIX}METRICS_PORT"
    ) from failure
