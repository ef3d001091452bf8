"""The plots of a report, as SVG that takes its colours from the page (so light and dark are the page's business)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from penaltybox.cli.console import one_line
from penaltybox.cli.plots import VARIABLES, legend, short, style, svg
from penaltybox.cli.replay_words import rung_text
from penaltybox.contracts.labels import STANDINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.rates import Rate
    from penaltybox.processors.replay.report import Report, Row

_ROWS: Final = 14
_FADED: Final = 0.45
"""How strong the bars of shadow rules are."""


def plots(report: Report) -> dict[str, str]:
    """Name -> SVG, of those that have something to show: ``changes``, ``rates``, ``times``."""
    found = {}
    with style():
        rows = [row for row in report.rows if row.change.new.total or row.change.gone.total][:_ROWS]
        if rows:
            found["changes"] = svg(
                _changes(rows), "changes", "Subjects newly and no longer penalised, by rule and rung"
            )
        if any(rate.low is not None for _, _, rate in _known_rates(report)):
            found["rates"] = svg(_rates(report), "rates", "False discovery and false positive rates of both sides")
        if any(sum(counts) for counts in report.times.penalties.values()):
            found["times"] = svg(_times(report), "times", "Penalties and stopped requests over time, both sides")
    return found


def _changes(rows: Sequence[Row]) -> Figure:
    """Bars to the right: newly penalised; to the left: no longer. Parts by label."""
    figure = Figure(figsize=(8.4, 1.1 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    for name, sign in (("new", 1), ("gone", -1)):
        begun = [0.0] * len(rows)
        for standing in STANDINGS:
            counts = [sign * getattr(getattr(row.change, name), standing) for row in rows]
            label = standing if sign == 1 else None
            bars = axes.barh(places, counts, left=begun, color=VARIABLES[standing], height=0.7, label=label)
            for bar, row in zip(bars, rows, strict=True):
                bar.set_alpha(_FADED if row.shadow else None)
            begun = [start + count for start, count in zip(begun, counts, strict=True)]
    axes.set_yticks(places, [short(f"{row.dimension}: {one_line(row.rule)} → {rung_text(row)}") for row in rows])
    axes.invert_yaxis()
    axes.axvline(0, color=VARIABLES["ink"], linewidth=0.8)
    gone = "← no longer penalised · " if any(row.change.gone.total for row in rows) else ""
    axes.set_xlabel(f"{gone}subjects · newly penalised →")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
    legend(axes)
    return figure


def _known_rates(report: Report) -> list[tuple[str, str, Rate]]:
    """(what, side, rate) for every dimension."""
    return [
        (f"{name.upper()} {dimension}", side, getattr(getattr(rates, side), name))
        for dimension, rates in report.rates.items()
        for name in ("fdr", "fpr")
        for side in ("baseline", "candidate")
    ]


def _rates(report: Report) -> Figure:
    """A dot and its 95 % interval for each rate that is known."""
    known = [one for one in _known_rates(report) if one[2].low is not None]
    names = list(dict.fromkeys(name for name, _, _ in known))
    figure = Figure(figsize=(8.4, 1.1 + 0.5 * len(names)), layout="constrained")
    axes = figure.subplots()
    for side, shift in (("baseline", -0.14), ("candidate", 0.14)):
        mine = [(names.index(name) + shift, rate) for name, whose, rate in known if whose == side]
        for place, rate in mine:
            low, high = (rate.low or 0.0) * 100, (rate.high or 0.0) * 100
            axes.plot([low, high], [place, place], color=VARIABLES[side], linewidth=2, solid_capstyle="butt")
        values = [(rate.value or 0.0) * 100 for _, rate in mine]
        axes.plot(
            values, [place for place, _ in mine], "o", color=VARIABLES[side], label=side, markersize=6, clip_on=False
        )
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.grid(visible=True, axis="x", linewidth=0.4)
    axes.set_xlabel("per cent, with the 95 % interval")
    legend(axes)
    return figure


def _times(report: Report) -> Figure:
    """Penalties, and requests stopped, per bucket of time."""
    times = report.times
    number = len(times.penalties["baseline"])
    edges = [
        date2num(datetime.fromtimestamp((times.start_ms + bucket * times.bucket_ms) / 1000, UTC))  # type: ignore[no-untyped-call] # matplotlib
        for bucket in range(number + 1)
    ]
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for axes, title, series in ((above, "penalties", times.penalties), (below, "requests stopped", times.stopped)):
        for side, line in (("baseline", "-"), ("candidate", "--")):
            axes.stairs(series[side], edges, color=VARIABLES[side], linewidth=1.6, linestyle=line, label=side)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(title)
        axes.grid(visible=True, axis="y", linewidth=0.4)
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call] # as above
    below.xaxis.set_major_locator(locator)
    below.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    legend(above)
    return figure
