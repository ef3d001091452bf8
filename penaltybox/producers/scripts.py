"""The inline limiter's Lua: one text of the algorithms and a script that uses them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_ALGORITHMS = (
    "prelude",
    "draining",
    "fixed_window",
    "sliding_window",
    "sliding_window_counter",
    "token_bucket",
    "leaky_bucket",
    "gcra",
)


@cache
def script_text(*names: str) -> str:
    """All algorithms, then the named files of `producers/lua` (without ``.lua``), as one script.

    The first thing a named file sees is the local table `algorithms`, by the names that a policy uses.
    """
    folder = files("penaltybox.producers") / "lua"
    return "\n".join((folder / f"{name}.lua").read_text(encoding="utf-8") for name in (*_ALGORITHMS, *names))
