"""Any log of text, by the patterns of a mapping."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from penaltybox.producers.adapters.linear import LONGEST, Refused, linear
from penaltybox.producers.adapters.mapped import Mapped
from penaltybox.producers.adapters.mapping import read_mapping
from penaltybox.producers.adapters.reading import Adapter, Format, Unmatched, decoded

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping

    from penaltybox.contracts.policy_yaml import Node
    from penaltybox.producers.adapters.mapping import Field, Rule
    from penaltybox.producers.adapters.reading import Options, Read

_NO_RULE: Final = Unmatched("no rule of the mapping has a pattern that matches the whole line")
_TOO_LONG: Final = Unmatched(f"longer than {LONGEST} characters")


class Regex(Adapter):
    """Reads lines by the first rule whose pattern matches all of it."""

    longest: ClassVar[int] = LONGEST

    def __init__(self, options: Options) -> None:
        self._rules = read_mapping(options.values.get("mapping", ""), _pattern, _groups)
        self._mapped = Mapped(options)

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        text = decoded(line)
        if len(text) > LONGEST:
            return _TOO_LONG
        fits = self._fitting(text)
        return _NO_RULE if fits is None else self._mapped.reading(*fits)

    def _fitting(self, text: str) -> tuple[Rule, Callable[[Field], str | None]] | None:
        for rule in self._rules:
            match: re.Match[str] | None = rule.match.fullmatch(text)
            if match is not None:
                return rule, partial(_group, match.groupdict())
        return None

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        text = decoded(line)
        fits = self._fitting(text) if len(text) <= LONGEST else None
        if fits is not None:
            return self._mapped.explain(*fits)
        return "patterns: " + "; ".join(rule.match.pattern for rule in self._rules)


def _group(groups: Mapping[str, str | None], at: Field) -> str | None:
    return groups[at[0]]


def _pattern(node: Node) -> re.Pattern[str]:
    if not isinstance(node.value, str) or not node.value:
        raise node.error(node.value, "a pattern with named groups, such as '(?P<ip>\\S+) denied'")
    try:
        return linear(node.value)
    except Refused as error:
        raise node.error(node.value, f"a pattern that no line can make slow, but: {error}") from error


def _groups(pattern: re.Pattern[str]) -> frozenset[str]:
    return frozenset(pattern.groupindex) or frozenset({"(none: name them (?P<name>…))"})


FORMAT: Final = Format(
    "regex",
    Regex,
    (
        b"May 17 10:05:03 shop sshd[811]: Failed password for invalid user admin from 203.0.113.7 port 51022 ssh2",
        b"May 17 10:05:04 shop sshd[812]: Accepted publickey for ann from 2001:db8::7 port 51023 ssh2",
    ),
    {"mapping": "the YAML file with the rules, or the name of one that comes with penaltybox: sshd"},
    {"mapping": "sshd"},
)
