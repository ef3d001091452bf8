"""The three kinds of failure: your configuration, their event, a store that is away."""

from __future__ import annotations

import reprlib
from typing import Final

SHOWN: Final = 80
_brief = reprlib.Repr()
_brief.maxlevel = 2
_brief.maxstring = _brief.maxother = _brief.maxlong = SHOWN


def shown(value: object) -> str:
    """A value as a message shows it: its repr, never longer than `SHOWN`, and never made whole before it is cut.

    A few aliases in YAML make a list that has billions of parts.
    """
    try:
        text = _brief.repr(value)
    except ValueError:
        text = "a number of thousands of digits"  # which Python refuses to write
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def cause(error: OSError | UnicodeError) -> str:
    """Why a file could not be read or written, for the end of a sentence that names the file."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is no UTF-8 text: byte {error.start:,} is 0x{error.object[error.start]:02x}"
    return getattr(error, "strerror", None) or str(error)


class PenaltyboxError(Exception):
    """Root of all errors raised on purpose. The message is a sentence: what, where, got, wanted."""


class ConfigurationError(PenaltyboxError):
    """Yours to fix: a policy file, a setting, a flag."""


class BadEvent(PenaltyboxError):  # noqa: N818 - the domain's name for it; it ends as a dead letter
    """Theirs: a record that cannot be judged. It becomes a dead letter with `reason`.

    Args:
        reason: machine-readable slug, e.g. ``not_json``, ``wrong_type``, ``too_large``.
        detail: a sentence for people.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class StoreUnavailable(PenaltyboxError):  # noqa: N818 - a state of the world, not a mistake
    """A store did not answer. Nothing was acknowledged; try again after `retry_after_ms`."""

    def __init__(self, detail: str, retry_after_ms: int = 1000) -> None:
        super().__init__(detail)
        self.retry_after_ms = retry_after_ms


class NoAnswerInTime(StoreUnavailable):
    """A store did not answer within the deadline; perhaps it was slow, perhaps it is away."""


class WrongType(PenaltyboxError):  # noqa: N818 - a state of the world, not a mistake
    """A key of Redis holds another type than wanted: another program uses its name for something else."""


class GenerationMismatch(StoreUnavailable):
    """Redis answers, but it is not the Redis we knew (wiped or swapped): run `penaltybox restore`."""
