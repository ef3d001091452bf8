"""nginx error logs for tests: lines whose address and second are their number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penaltybox.producers.adapters.registry import load
from penaltybox.producers.logs.checkpoint import Checkpoint
from penaltybox.producers.logs.passage import Common
from penaltybox.producers.logs.progress import Progress
from tests.producers.adapters.reading_of import options

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penaltybox.contracts.events import Decision

FORM = "nginx-error"


def line(number: int, note: str = "") -> bytes:
    """A line with its newline; the number is the second of a day, and the address."""
    clock = f"{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}"
    return (
        f'2026/05/17 {clock} [error] 31#31: *{number} limiting requests, excess: 5.123 by zone "perip", '
        f'client: 10.0.{number // 256}.{number % 256}, server: s, request: "GET /{note} HTTP/1.1", host: "s"\n'
    ).encode()


def lines(numbers: Iterable[int]) -> bytes:
    """Lines of several."""
    return b"".join(map(line, numbers))


def number_of(decision: Decision) -> int:
    """Which line it is of."""
    _, _, high, low = map(int, decision.subjects["ip"].split("."))
    return high * 256 + low


def common(**changes: Any) -> Common:
    """What a run shares."""
    return Common(load(FORM), options(), f"{FORM}/1", Progress(), **changes)


def checkpoint(path: Path | None = None, **changes: Any) -> Checkpoint:
    """A checkpoint of these logs."""
    return Checkpoint(path, FORM, f"{FORM}/1", **changes)


def zstd() -> Any:
    """The module that packs and unpacks zstd."""
    try:
        from compression import zstd as found  # noqa: PLC0415 - of newer Pythons
    except ModuleNotFoundError:
        from backports import zstd as found  # noqa: PLC0415
    return found
