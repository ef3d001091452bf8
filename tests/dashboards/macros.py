"""What Grafana and its ClickHouse data source make of a query before ClickHouse sees it; anything unknown is an error.

By the documentation of the plugin, version 4: $__conditionalAll and variables are the browser's, the others are its
back end's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ALL = "$__all"


class UnknownMacroError(Exception):
    """Grafana would send it on as it is, and ClickHouse would not understand it."""


class View(NamedTuple):
    """What a dashboard shows: a period, the width of a pixel, what is chosen.

    `variables`: name -> value; a list is a multi-value choice, `ALL` every value.
    """

    from_s: int
    to_s: int
    interval_s: int
    variables: Mapping[str, str | list[str]]

    def expanded(self, sql: str) -> str:
        """The SQL that ClickHouse gets from a panel."""
        text = _calls(sql, "$__conditionalAll", self._conditional)
        text = re.sub(r"\$\{(\w+)(?::([\w:]+))?\}", lambda found: self._value(found[1], found[2] or ""), text)
        return self.server_side(text)

    def server_side(self, sql: str) -> str:
        """The SQL that ClickHouse gets from an alert rule: no variables there."""
        period = f"toDateTime({self.from_s})", f"toDateTime({self.to_s})"
        text = _calls(sql, "$__timeFilter", lambda column: f"{column} >= {period[0]} AND {column} <= {period[1]}")
        step = max(1, self.interval_s)
        text = _calls(
            text,
            "$__timeInterval",
            lambda column: f"toStartOfInterval(toDateTime({column}), INTERVAL {step} second)",
        )
        for name, value in (
            ("$__interval_s", str(step)),
            ("$__fromTime", period[0]),
            ("$__toTime", period[1]),
        ):
            text = re.sub(rf"{re.escape(name)}\b", value, text)
        if "$" in text:
            raise UnknownMacroError(text[text.index("$") :][:60])
        return text

    def _conditional(self, inside: str) -> str:
        condition, comma, variable = (part.strip() for part in inside.partition(", $"))
        if not comma or "," in variable:
            raise UnknownMacroError(f"$__conditionalAll({inside})")
        return "1=1" if self.variables[variable] in (ALL, "", []) else condition

    def _value(self, name: str, form: str) -> str:
        if name in ("__from", "__to") and form == "date:seconds":
            return str(self.from_s if name == "__from" else self.to_s)
        if name not in self.variables:
            raise UnknownMacroError(f"${{{name}}}")
        value = self.variables[name]
        values = value if isinstance(value, list) else [value]
        if form == "singlequote":
            return ",".join("'" + one.replace("'", "\\'") + "'" for one in values)
        if form == "sqlstring":
            return ",".join("'" + one.replace("'", "''") + "'" for one in values)
        if form or len(values) > 1:
            raise UnknownMacroError(f"${{{name}:{form}}}")
        return values[0]


def _calls(text: str, name: str, expand: Callable[[str], str]) -> str:
    """Every call of a macro, replaced; its argument ends at the parenthesis that closes it."""
    while True:
        found = re.search(rf"{re.escape(name)}\(", text)
        if found is None:
            return text
        depth, at = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        text = text[: found.start()] + expand(text[found.end() : at - 1]) + text[at:]
