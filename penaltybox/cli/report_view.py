"""A report as tables for people, as one JSON document, and as a page without scripts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rich.console import Group
from rich.markup import escape

from penaltybox.cli.console import instant, plain, table
from penaltybox.cli.replay_page import STYLE, check_page
from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

__all__ = ["FEW", "Period", "Plot", "Report", "Section", "check_page", "rate_text", "show", "write_page"]
_TEMPLATE = Path(__file__).with_name("report_page.html")
_NONE = "Nothing of the kind in this time."
_FINE = 0.1
FEW = "*: of fewer than 100; nothing should act on it."
"""What the mark of `rate_text` means."""


class Period(NamedTuple):
    """Event times from `from_ms` to before `to_ms`, as known at `as_of_ms`."""

    from_ms: int
    to_ms: int
    as_of_ms: int


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """What a section draws.

    Attributes:
        label: of the axis.
        dots: (name, value, low, high), shares.
        bars: (name, length of each part).
        parts: (name, colour) of the parts of bars.
    """

    label: str
    dots: Sequence[tuple[str, float, float, float]] = ()
    bars: Sequence[tuple[str, Sequence[float]]] = ()
    parts: Sequence[tuple[str, str]] = ()


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One table with what it means.

    Attributes:
        name: its key in JSON.
        title: for people.
        columns, right: of the table; those in `right` hold numbers.
        cells: rows as people read them.
        rows: the same with every figure, for programs.
        notes: sentences below.
        plot: what is drawn on the page.
    """

    name: str
    title: str
    columns: Sequence[str]
    cells: Sequence[Sequence[object]]
    rows: Sequence[dict[str, Any]]
    right: Sequence[str] = ()
    notes: Sequence[str] = ()
    plot: Plot | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Sections about a period."""

    name: str
    title: str
    period: Period
    sections: Sequence[Section]

    def document(self) -> dict[str, Any]:
        """The report for programs: times in ms, the rows of each section by its name."""
        return {
            "report": self.name,
            "from": self.period.from_ms,
            "to": self.period.to_ms,
            "as_of": self.period.as_of_ms,
            **{section.name: section.rows for section in self.sections},
        }


def rate_text(value: float | None, low: float | None, high: float | None, status: str) -> str:
    """``42.1% (31-54)``, finer under ten per cent, where whole ones hide the interval; or why there is none."""
    if value is None or low is None or high is None:
        return status
    digits = 1 if high < _FINE else 0
    few = "*" if status == "report only" else ""
    return f"{value:.1%} ({low * 100:.{digits}f}-{high * 100:.{digits}f}){few}"


def show(report: Report) -> RenderableType:
    """For the terminal."""
    period = report.period
    parts: list[RenderableType] = [f"{report.title}, {instant(period.from_ms)} to {instant(period.to_ms)}", ""]
    for section in report.sections:
        if section.cells:
            parts.append(table(section.title, section.columns, section.cells, right=section.right))
        else:
            parts.append(f"[bold]{escape(section.title)}[/bold]\n{_NONE}")
        parts += [f"  {escape(note)}" for note in section.notes]
        parts.append("")
    return Group(*parts)


def write_page(path: Path, report: Report) -> None:
    """Write the report as a page.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    try:
        path.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--html {path}: {error.strerror}") from error


def page(report: Report) -> str:
    """The page's text: no script, no network, whatever subjects are called."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"instant": instant, "cell": _cell}
    drawn = {name: Markup(svg) for name, svg in _plots(report).items()}  # noqa: S704 - matplotlib escapes its texts
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        style=Markup(STYLE.read_text(encoding="utf-8")),  # noqa: S704 - a file of this package
        report=report,
        plots=drawn,
        none=_NONE,
    )


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else plain(str(value))


def _plots(report: Report) -> dict[str, str]:
    from penaltybox.cli.plots import bars, dots, style, svg

    found = {}
    with style():
        for section in report.sections:
            plot = section.plot
            if plot is None or not (plot.dots or plot.bars):
                continue
            figure = dots(plot.dots, plot.label) if plot.dots else bars(plot.bars, plot.parts, plot.label)
            found[section.name] = svg(figure, section.name, section.title)
    return found
