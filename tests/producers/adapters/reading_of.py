"""Formats as tests use them: the options' defaults, and what a line says in few words."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.adapters.reading import Options, Reading
from penaltybox.producers.adapters.registry import load
from penaltybox.producers.adapters.targets import Targets

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Adapter, Read

NOW_MS = 1_779_012_345_678
"""2026-05-17T10:05:45.678Z"""


def options(**changes: Any) -> Options:
    """Options as the command line makes them, with changes."""
    given: dict[str, Any] = {"canonicaliser": Canonicaliser(), "targets": Targets(), "zone": UTC, "now_ms": NOW_MS}
    return Options(**(given | changes))


def adapter(name: str, **changes: Any) -> Adapter:
    """A format's adapter for one log."""
    return load(name).make(options(**changes))


def said(name: str, line: bytes, **changes: Any) -> Read:
    """What the first line of a log says."""
    return adapter(name, **changes).read(line)


def reading(name: str, line: bytes, **changes: Any) -> Reading:
    """What a line says that must say something."""
    found = said(name, line, **changes)
    assert isinstance(found, Reading), found
    return found
