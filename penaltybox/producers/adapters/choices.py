"""What many formats let people choose by ``--option``, and the loose values of JSON logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.subjects import DIMENSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.producers.adapters.reading import Options

TOO_MANY: Final = frozenset({429})
"""What most limiters refuse with."""
KEYED_BY: Final = (
    "the dimension the limits count by, when the log does not tell (ip); `shared` for a limit that all requests "
    "share: nobody is charged for it"
)
STATUSES: Final = range(100, 600)
UNSET: Final = frozenset({"", "-"})
_LARGEST: Final = 1 << 53


def refusals(options: Options) -> frozenset[int]:
    """The statuses that mean a refusal over a limit: ``--status``, else 429."""
    return options.reject_statuses or TOO_MANY


def keyed_by(options: Options, default: str = "ip") -> str:
    """The dimension of ``--option keyed-by``.

    Raises:
        ConfigurationError: it is no name of a dimension.
    """
    text = options.values.get("keyed-by")
    if text is None:
        return default
    if DIMENSION.fullmatch(text) is None:
        raise ConfigurationError(
            f"--option keyed-by: got {text!r}, wanted a dimension such as ip, user, api_key, shared"
        )
    return text


def one_of(options: Options, name: str, choices: Sequence[str]) -> str:
    """The choice of ``--option NAME``; the first is the default.

    Raises:
        ConfigurationError: it is none of them.
    """
    text = options.values.get(name, choices[0])
    if text not in choices:
        raise ConfigurationError(f"--option {name}: got {text!r}, wanted one of {', '.join(choices)}")
    return text


def number(value: Any) -> int | None:
    """A count or duration as logs have it (5, "5", 5.0, "-", null) as a whole number from 0; None when it is none."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        text = value.strip()
        return int(text) if 0 < len(text) <= 15 and text.isascii() and text.isdigit() else None  # noqa: PLR2004 - 2^53
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < _LARGEST else None


def status_of(value: Any) -> int | None:
    """An HTTP status; None when it is none (0, "-", null)."""
    found = number(value)
    return found if found is not None and found in STATUSES else None


def known(value: str | None) -> str:
    """A text of a log in which ``-`` and null stand for nothing."""
    return "" if value is None or value in UNSET else value
