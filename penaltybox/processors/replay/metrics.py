"""The figures of a report by name, for conditions that gate a pipeline (`--fail-if`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.contracts.labels import STANDINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.contracts.rates import Rate
    from penaltybox.processors.replay.report import Change, Report, SideRates

Metrics = dict[str, "float | str"]
"""Name -> figure; a text instead says why there is none."""

CHANGES: Final = ("new", "gone", "earlier", "later", "longer", "shorter")


def metrics_of(report: Report) -> Metrics:
    """Every figure that a condition may name."""
    found: Metrics = {}
    for name, change in _groups(report):
        for kind in CHANGES:
            found[f"{kind}.{name}"] = getattr(change, kind).total
        found[f"subjects.{name}"] = change.candidate.total
        found[f"penalties.{name}"] = change.penalties.candidate
    for standing in STANDINGS:
        for kind in CHANGES:
            found[f"{kind}.{standing}"] = getattr(getattr(report.total, kind), standing)
        found[f"stopped.{standing}"] = getattr(report.stopped.candidate, standing)
    for dimension, rates in report.rates.items():
        found |= _rates("", dimension, rates.candidate) | _rates("baseline.", dimension, rates.baseline)
    return found | {
        "stopped.total": report.stopped.candidate.total,
        "stopped.change": report.stopped.candidate.total - report.stopped.baseline.total,
        "demand.freed": report.demand.freed.candidate,
        "shared.hit": report.shared.hit.candidate,
        "shared.denied": report.shared.denied.candidate,
        "shared.attributable": report.shared.attributable.candidate,
        "allowlisted.subjects": report.allowlisted.subjects.candidate,
        "allowlisted.requests": report.allowlisted.requests.candidate,
    }


def _groups(report: Report) -> Iterator[tuple[str, Change]]:
    yield from report.dimensions.items()
    for kind, changes in (
        ("rule", report.rules),
        ("rung", report.rungs),
        ("action", report.actions),
        ("shadow", report.shadow_rules),
    ):
        for name, change in changes.items():
            yield f"{kind}.{name}", change
    yield "shadow", report.shadow
    yield "permanent", report.permanent
    yield "total", report.total


def _rates(prefix: str, dimension: str, rates: SideRates) -> Metrics:
    found: Metrics = {}
    for name, rate in (("fdr", rates.fdr), ("fpr", rates.fpr)):
        path = f"{prefix}{name}.{dimension}"
        found[path] = _figure(rate, rate.value, rates)
        found[f"{path}.low"] = _figure(rate, rate.low, rates)
        found[f"{path}.high"] = _figure(rate, rate.high, rates)
    return found


def _figure(rate: Rate, value: float | None, rates: SideRates) -> float | str:
    if rate.status == "none":
        return 0.0
    if value is not None:
        return value
    if rate.status == "unlabelled":
        return f"unlabelled: no outcome says anything about its {rates.episodes:,} mature episodes"
    young = f"; {rates.immature:,} episodes are not mature yet" if rates.immature else ""
    return f"insufficient: {rate.n:,.0f} observations, 30 are needed{young}"
