"""What a line says, in one line of text: tables of lines and what they say stay readable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penaltybox.producers.adapters.reading import Reading
from tests.producers.adapters.reading_of import said

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Read


def brief(found: Read) -> str:
    """``deny over_limit ip:zone | ip=203.0.113.7 | 429 | POST /login``; more fields follow; else ``unmatched: why``."""
    if not isinstance(found, Reading):
        if type(found) is tuple:
            return " & ".join(brief(one) for one in found)
        return f"{type(found).__name__.lower()}: {found.why}"
    verdict = [found.action, found.reason or "", *found.violated, "" if found.enforced else "(dry run)"]
    subjects = ",".join(f"{name}={value}" for name, value in found.subjects.items())
    told = [" ".join(part for part in verdict if part), subjects, str(found.status or "-"), found.route or "-"]
    for name in ("limit", "window_s", "remaining", "retry_after_s"):
        value = getattr(found, name)
        told += [f"{name}={value}"] if value is not None else []
    told += [f"{name}={value}" for name, value in found.attrs.items()]
    return " | ".join(told)


def told(name: str, line: str | bytes, **changes: Any) -> str:
    """What the first line of a log says, in brief."""
    return brief(said(name, line.encode() if isinstance(line, str) else line, **changes))
