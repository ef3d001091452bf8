"""What plots of pages share: SVG that takes its colours from the page (so light and dark are the page's business)."""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from penaltybox.cli.console import plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

# Colours that nothing else uses stand for the page's variables.
VARIABLES: Final = {
    "ink": "#010203",
    "faint": "#040506",
    "baseline": "#070809",
    "candidate": "#0a0b0c",
    "legitimate": "#0d0e0f",
    "abusive": "#101112",
    "unknown": "#131415",
}
_NAME: Final = 38
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "penaltybox",
    "text.parse_math": False,
    "font.size": 10,
    "text.color": VARIABLES["ink"],
    "axes.labelcolor": VARIABLES["ink"],
    "axes.edgecolor": VARIABLES["faint"],
    "xtick.color": VARIABLES["ink"],
    "ytick.color": VARIABLES["ink"],
    "grid.color": VARIABLES["faint"],
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def style() -> AbstractContextManager[None]:
    """How figures look; they must be drawn inside it."""
    return mpl.rc_context(_STYLE)


def dots(rows: Sequence[tuple[str, float, float, float]], label: str) -> Figure:
    """A dot and its interval for each (name, value, low, high), shares shown in per cent."""
    figure = Figure(figsize=(8.4, 1.1 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (_, value, low, high) in enumerate(rows):
        axes.plot([low * 100, high * 100], [place] * 2, color=VARIABLES["baseline"], linewidth=2, solid_capstyle="butt")
        axes.plot([value * 100], [place], "o", color=VARIABLES["candidate"], markersize=6, clip_on=False)
    axes.set_yticks(range(len(rows)), [short(row[0]) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.grid(visible=True, axis="x", linewidth=0.4)
    axes.set_xlabel(label)
    return figure


def bars(rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[tuple[str, str]], label: str) -> Figure:
    """Stacked bars: per row a name and the length of each part; `parts` are (name, colour)."""
    figure = Figure(figsize=(8.4, 1.1 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    begun = [0.0] * len(rows)
    for number, (part, colour) in enumerate(parts):
        lengths = [row[1][number] for row in rows]
        axes.barh(places, lengths, left=begun, color=VARIABLES[colour], height=0.7, label=part)
        begun = [start + length for start, length in zip(begun, lengths, strict=True)]
    axes.set_yticks(places, [short(row[0]) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes)
    return figure


def legend(axes: Axes) -> None:
    """Above the plot's lower right corner, without a frame."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, borderaxespad=0.2)


def short(text: str) -> str:
    """A name that fits beside a plot, and holds nothing that a page must not."""
    text = plain(text)
    return text if len(text) <= _NAME else f"{text[: _NAME - 1]}…"


def svg(figure: Figure, name: str, title: str) -> str:
    """The figure as an element of a page: ids of its own, colours of the page, said for those who cannot see it."""
    FigureCanvasSVG(figure)
    drawn = io.StringIO()
    with warnings.catch_warnings():
        # Names may be of any script; the browser draws them, not this machine's font.
        warnings.filterwarnings("ignore", message="Glyph ")
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<style type="text/css">.*?</style>', "", text, flags=re.DOTALL)
    text = re.sub(r' id="', f' id="{name}-', text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)
    for variable, colour in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return text.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
