"""The limiter's Lua scripts, put together from their files: the algorithms that are used, and a main part."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Literal, get_args

from penaltybox.contracts.policy import Algorithm
from penaltybox.links.exchange import Script

if TYPE_CHECKING:
    from collections.abc import Iterable

Main = Literal["decide", "decide_group", "refund"]
ALGORITHMS: Final[tuple[str, ...]] = get_args(Algorithm)
_INSERTED: Final = re.compile(r"^ *--> (\w+)$", re.MULTILINE)
_AT_ONCE: Final = frozenset({"sliding_window"})
"""Algorithms whose limits can be decided by lua/at_once.lua."""
_DRAINING: Final = frozenset({"token_bucket", "leaky_bucket"})


@cache
def script_text(*names: str) -> str:
    """All algorithms, then the named files of `producers/lua` (without ``.lua``), as one script.

    The first thing a named file sees is the local table `algorithms`, by the names that a policy uses.
    """
    return _joined(ALGORITHMS, names, gives=True)


def script(main: Main, algorithms: Iterable[str] = ALGORITHMS) -> Script:
    """The script `main` for limits of these algorithms only: what is not used need not be set up at every call."""
    return _assembled(main, tuple(sorted(algorithms)))


@cache
def _assembled(main: Main, algorithms: tuple[str, ...]) -> Script:
    # The rest would decide the same as what stands first, but has more to set up at every call.
    first = ("asked", *(("at_once",) if _AT_ONCE.issuperset(algorithms) else ())) if main == "decide" else ()
    text = _joined(algorithms, ("limits", main), gives=main == "refund", first=first)
    # Scripts are sent and kept whole: without comments and indents they are half as long.
    lines = (line.strip() for line in text.splitlines())
    return Script("\n".join(line for line in lines if line and not line.startswith("--")))


def _joined(algorithms: tuple[str, ...], names: tuple[str, ...], *, gives: bool, first: tuple[str, ...] = ()) -> str:
    shared = () if _DRAINING.isdisjoint(algorithms) else ("draining",)
    wanted = ("names", *first, "prelude", *shared, *algorithms, *names)
    return "\n".join([f"local GIVES = {str(gives).lower()}", *map(_file, wanted)])


@cache
def _file(name: str) -> str:
    """A file of `producers/lua`, with others in the place of their names (``--> name``)."""
    text = (files("penaltybox.producers") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    return _INSERTED.sub(lambda found: _file(found[1]), text)
