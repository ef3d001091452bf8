"""Conditions on a report's figures: ``fdr.ip > 0.02``, ``new.permanent > 0``. A name, a comparison, a number.

A figure about which too little is known fails its condition: a gate that cannot see must not open. A ``?`` after the
name (``fdr.ip? > 0.02``) lets it pass.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penaltybox.contracts.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penaltybox.processors.replay.metrics import Metrics

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_RATE: Final = re.compile(r"(?:baseline\.)?(?:fdr|fpr)\..*")
_CONDITION: Final = re.compile(
    r"\s*(?P<name>[^\s<>=!?]{1,200})(?P<lenient>\?)?\s*(?P<operator>>=|<=|==|!=|>|<)\s*(?P<number>-?\d{1,15}(\.\d{1,15})?)"
    r"(?P<percent>\s*%)?\s*"
)


class Condition(NamedTuple):
    """One condition, as it was typed and in parts."""

    text: str
    name: str
    operator: str
    number: float
    lenient: bool


class Failure(msgspec.Struct, frozen=True):
    """A condition that holds, or that nobody can tell: why, in a sentence."""

    condition: str
    sentence: str


def parse_condition(text: str) -> Condition:
    """Read a condition; ``2%`` is 0.02.

    Raises:
        ConfigurationError: it is none, or one that means nothing: a rate over 1, per cent of what is counted. Such a
            gate would never shut, or always.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"--fail-if: got {shown(text)}, wanted a figure, one of > >= < <= == != and a number, for example "
            "'fdr.ip > 0.02' or 'new.permanent > 0'"
        )
    number = float(match["number"]) / (100 if match["percent"] else 1)
    is_rate = _RATE.fullmatch(match["name"]) is not None
    if is_rate and not 0 <= number <= 1:
        raise ConfigurationError(
            f"--fail-if: got {shown(text)}, and {match['name']} is a share between 0 and 1: 2 in 100 are 0.02, or 2%"
        )
    if match["percent"] and not is_rate:
        raise ConfigurationError(f"--fail-if: got {shown(text)}, and {match['name']} is a number of them, not a share")
    return Condition(text.strip(), match["name"], match["operator"], number, match["lenient"] is not None)


def check_names(conditions: Iterable[Condition], metrics: Metrics) -> None:
    """Refuse conditions on figures that do not exist.

    Raises:
        ConfigurationError: lists those that do.
    """
    for condition in conditions:
        if condition.name not in metrics:
            raise ConfigurationError(
                f"--fail-if {condition.text!r}: there is no figure {condition.name!r}. There are {_listing(metrics)}."
            )


def failures(conditions: Sequence[Condition], metrics: Metrics) -> list[Failure]:
    """The conditions that hold, or that cannot be told.

    Raises:
        ConfigurationError: a condition names a figure that does not exist.
    """
    check_names(conditions, metrics)
    found = []
    for condition in conditions:
        figure = metrics[condition.name]
        if isinstance(figure, str):
            if not condition.lenient:
                found.append(
                    Failure(
                        condition.text,
                        f"{condition.name} is {figure}. Write {condition.name}? to let it pass.",
                    )
                )
        elif _OPERATORS[condition.operator](figure, condition.number):
            found.append(Failure(condition.text, f"{condition.name} is {figure:,.6g}"))
    return found


def _listing(metrics: Metrics) -> str:
    """The names, those with the same beginning together: ``new.(ip, total)``."""
    families: dict[str, list[str]] = {}
    for name in metrics:
        family, _, rest = name.partition(".")
        families.setdefault(family, []).append(rest)
    alike: dict[tuple[str, ...], list[str]] = {}
    for family, rests in families.items():
        alike.setdefault(tuple(sorted(rests)), []).append(family)
    return "; ".join(
        f"{' | '.join(sorted(names))} . {', '.join(rests)}"
        for rests, names in sorted(alike.items(), key=lambda one: one[1])
    )
