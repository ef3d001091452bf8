"""Any log of JSON objects, one a line, by the rules of a mapping."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penaltybox.contracts.errors import shown
from penaltybox.producers.adapters.mapped import Mapped
from penaltybox.producers.adapters.mapping import read_mapping
from penaltybox.producers.adapters.plain_json import object_of
from penaltybox.producers.adapters.reading import Adapter, Format, Unmatched

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.contracts.policy_yaml import Node
    from penaltybox.producers.adapters.mapping import Field, Rule
    from penaltybox.producers.adapters.reading import Options, Read

_NO_JSON: Final = Unmatched("not a JSON object, or one in which a key stands twice")
_NO_RULE: Final = Unmatched("no rule of the mapping fits")
_ANY: Final = "*"


class Json(Adapter):
    """Reads objects by the first rule whose conditions hold."""

    def __init__(self, options: Options) -> None:
        self._rules = read_rules(options)
        self._mapped = Mapped(options)

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        found = object_of(line)
        return _NO_JSON if found is None else read_document(found, self._rules, self._mapped)

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        found = object_of(line)
        return "" if found is None else explain_document(found, self._rules, self._mapped)


def read_rules(options: Options) -> tuple[Rule, ...]:
    """The rules of the mapping that the options name."""
    return read_mapping(options.values.get("mapping", ""), _conditions, lambda _: frozenset())


def read_document(document: Mapping[str, Any], rules: tuple[Rule, ...], mapped: Mapped) -> Read:
    """What a document says by the first rule that fits."""
    field = partial(_field, document)
    for rule in rules:
        for at, values in rule.match:
            if not _holds(_field(document, at), values):
                break
        else:
            return mapped.reading(rule, field)
    return _NO_RULE


def explain_document(document: Mapping[str, Any], rules: tuple[Rule, ...], mapped: Mapped) -> str:
    """What the rule that fits has found; or, rule by rule, the first condition that does not hold."""
    field, told = partial(_field, document), []
    for number, rule in enumerate(rules):
        failed = next(((at, values) for at, values in rule.match if not _holds(field(at), values)), None)
        if failed is None:
            return mapped.explain(rule, field)
        at, values = failed
        told.append(f"rules[{number}]: got {shown(field(at))} in {'.'.join(at)}, wanted {', '.join(sorted(values))}")
    return "; ".join(told)


def _field(document: Mapping[str, Any], at: Field) -> Any:
    if len(at) == 1:
        return document.get(at[0])
    value: Any = document
    for key in at:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _holds(value: Any, wanted: frozenset[str]) -> bool:
    if isinstance(value, str):
        return value in wanted or _ANY in wanted
    if value is None:
        return False
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return _ANY in wanted or text in wanted


def _conditions(node: Node) -> tuple[tuple[Field, frozenset[str]], ...]:
    """``{event: login, outcome: [failed, locked], client: "*"}``; nothing: every object."""
    if node.value is None:
        return ()
    found = []
    for name, at in node.pairs():
        values = list(at.items()) if isinstance(at.value, list) else [at]
        texts = frozenset(str(one.value).lower() if isinstance(one.value, bool) else str(one.value) for one in values)
        if not texts or any(isinstance(one.value, dict | list) or one.value is None for one in values):
            raise at.error(at.value, 'a value, a list of values, or "*" for any')
        found.append((tuple(name.split(".")), texts))
    return tuple(found)


FORMAT: Final = Format(
    "json",
    Json,
    (
        (
            b'{"time":"2026-05-17T10:05:03.120Z","event":"login","outcome":"failed","client_ip":"203.0.113.7",'
            b'"login":"ann@example.com","user_agent":"Mozilla/5.0"}'
        ),
        b'{"time":"2026-05-17T10:05:04Z","event":"login","outcome":"ok","client_ip":"2001:db8::7","user_id":10086}',
    ),
    {"mapping": "the YAML file with the rules, or the name of one that comes with penaltybox: login-events"},
    {"mapping": "login-events"},
)
