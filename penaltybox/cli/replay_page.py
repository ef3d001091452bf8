"""The report of a comparison as one HTML page: no script, no network, whatever the subjects are called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penaltybox.cli.console import instant, left, one_line
from penaltybox.cli.replay_words import (
    headline,
    pair_text,
    rate_text,
    rung_text,
    sighting_text,
    split_text,
    step_text,
    top_text,
)
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.processors.replay.metrics import CHANGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.processors.replay.conditions import Failure
    from penaltybox.processors.replay.observer import Side
    from penaltybox.processors.replay.report import Report

_TEMPLATE = Path(__file__).with_name("replay_page.html")
STYLE = Path(__file__).with_name("page_style.css")


def check_page(path: Path) -> None:
    """Refuse a page that could not be written.

    Raises:
        ConfigurationError: a package is missing, or the folder.
    """
    try:
        import jinja2  # noqa: F401 - only whether it is there
        import matplotlib as mpl  # noqa: F401 - as above
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"--html needs {error.name}: pip install 'penaltybox[reports]'") from error
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigurationError(f"--html {path}: wanted the name of a file in a folder that exists")


def write_page(
    path: Path, report: Report, versions: Mapping[Side, str], failures: Sequence[Failure] = ()
) -> None:  # fmt: skip
    """Write the page; `versions` are of the policies on each side.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    try:
        path.write_text(page(report, versions, failures), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--html {path}: {error.strerror}") from error


def page(report: Report, versions: Mapping[Side, str], failures: Sequence[Failure] = ()) -> str:
    """The page's text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from penaltybox.cli.replay_plots import plots

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "split": split_text,
        "pair": pair_text,
        "rate": rate_text,
        "rung": rung_text,
        "one_line": one_line,
        "instant": instant,
        "duration": left,
        "top": top_text,
        "step": step_text,
        "sighting": sighting_text,
        "number": lambda number: f"{number:,.0f}",
    }
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    drawn = {name: Markup(svg) for name, svg in plots(report).items()}  # noqa: S704 - matplotlib escapes its texts
    return template.render(
        style=Markup(STYLE.read_text(encoding="utf-8")),  # noqa: S704 - a file of this package
        report=report,
        headline=headline(report),
        plots=drawn,
        versions=versions,
        failures=failures,
        changes=CHANGES,
    )
