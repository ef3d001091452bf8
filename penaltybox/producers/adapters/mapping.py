"""Mappings: YAML files that say how lines of a log that no format knows become decisions.

A mapping is a list of rules; the first whose `match` fits a line makes the decision.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Action, Reason
from penaltybox.contracts.policy_yaml import Node, read_policy_text, read_yaml
from penaltybox.contracts.subjects import DIMENSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Field = tuple[str, ...]
"""Where a value is: a group's name, or the keys of a JSON document from the outside in."""

ACTIONS: Final = get_args(Action)
REASONS: Final = get_args(Reason)
TIME_FORMATS: Final = ("rfc3339", "apache", "nginx", "syslog", "unix", "unix_ms", "unix_us", "unix_ns")
NUMBERS: Final = ("status", "limit", "window_s", "remaining", "retry_after_s", "count")
_ROUTE_KEYS: Final = ("method", "path", "line")
_KEYS: Final = (
    *("match", "time", "subjects", "action", "reason", "violated", "scenario", "route", "enforced", "attrs", "id"),
    *NUMBERS,
)
_MOST_RULES: Final = 50
_JUDGED: Final = ("deny", "challenge")
_HERE: Final = "penaltybox.producers.adapters"


class Value(NamedTuple):
    """A constant, or what stands in a field, by way of a table if there is one."""

    constant: Any = None
    field: Field | None = None
    table: Mapping[str, Any] | None = None


class Rule(NamedTuple):
    """What one kind of line says. `match` is the format's own: a compiled pattern, or conditions on fields."""

    match: Any
    time: Field
    time_format: str
    subjects: Mapping[str, Field]
    action: Value
    reason: Value
    violated: tuple[str, ...]
    scenario: Value
    route: Mapping[str, Value]
    enforced: Value
    attrs: Mapping[str, Field]
    id: Field | None
    numbers: Mapping[str, Value]


def read_mapping(name: str, match: Callable[[Node], Any], groups: Callable[[Any], frozenset[str]]) -> tuple[Rule, ...]:
    """The rules of a file, or of a mapping that comes with penaltybox.

    Args:
        name: a path, or the name of one of `mappings/`.
        match: reads the `match` of a rule.
        groups: the fields that a match has; empty: any.

    Raises:
        ConfigurationError: says where, what was found and what was wanted.
    """
    if not name:
        raise ConfigurationError(
            f"--option mapping=FILE is missing: a YAML file of rules, or one of {', '.join(shipped())}"
        )
    text = _text(name)
    root = Node(read_yaml(text, name), name).mapping(("rules",))
    rules = list(root.child("rules", None).items())
    if not 0 < len(rules) <= _MOST_RULES:
        raise root.error(f"{len(rules)} rules", f"from 1 to {_MOST_RULES}")
    return tuple(_Rule(node.mapping(_KEYS), match, groups).made() for node in rules)


def shipped() -> list[str]:
    """The mappings that come with penaltybox."""
    return sorted(one.name.removesuffix(".yaml") for one in resources.files(_HERE).joinpath("mappings").iterdir())


def _text(name: str) -> str:
    if name in shipped():
        return resources.files(_HERE).joinpath("mappings", f"{name}.yaml").read_text(encoding="utf-8")
    return read_policy_text(Path(name), name)


class _Rule:
    """Reads one rule."""

    def __init__(self, node: Node, match: Callable[[Node], Any], groups: Callable[[Any], frozenset[str]]) -> None:
        self._node = node
        self._match = match(node.child("match", None))
        self._groups = groups(self._match)

    def made(self) -> Rule:
        """The rule, checked."""
        node = self._node
        time = node.child("time", None).mapping(("from", "format"))
        subjects = {name: self._field(at) for name, at in node.child("subjects", None).pairs()}
        for name in subjects:
            if DIMENSION.fullmatch(name) is None:
                raise node.child("subjects", None).error(name, "dimensions such as ip, user, login_name, device")
        if not subjects:
            raise node.error("no subjects", "at least one, such as subjects: {ip: client}")
        action = self._value("action", "allow", self._one_of(ACTIONS))
        violated = self._violated()
        reason = self._value("reason", None, self._one_of(REASONS))
        self._check_grounds(action, reason, violated)
        return Rule(
            match=self._match,
            time=self._field(time.child("from", None)),
            time_format=time.child("format", "rfc3339").one_of(TIME_FORMATS),
            subjects=subjects,
            action=action,
            reason=reason,
            violated=violated,
            scenario=self._value("scenario", None, lambda at: at.text()),
            route=self._route(),
            enforced=self._value("enforced", None, _flag),
            attrs={name: self._field(at) for name, at in node.child("attrs", {}).pairs()},
            id=self._field(node.child("id", None)) if node.has("id") else None,
            numbers={name: self._value(name, None, _whole) for name in NUMBERS if node.has(name)},
        )

    def _check_grounds(self, action: Value, reason: Value, violated: tuple[str, ...]) -> None:
        actions = {action.constant} if action.table is None else set(action.table.values())
        reasons = {reason.constant} if reason.table is None else set(reason.table.values())
        if action.field is not None and action.table is None:
            raise self._node.child("action", None).error("a field without values", "values: {…: deny, …: allow}")
        if actions & set(_JUDGED) and "over_limit" in reasons and not violated:
            raise self._node.error("over_limit without violated", "violated: [ip:NAME], the limit and whom it counts")

    def _violated(self) -> tuple[str, ...]:
        found = []
        for at in self._node.child("violated", []).items():
            dimension, colon, name = at.text().partition(":")
            if not colon or not name or DIMENSION.fullmatch(dimension) is None or len(at.value) > 128:  # noqa: PLR2004 - as events have it
                raise at.error(at.value, "dimension:limit, such as ip:login")
            found.append(at.value)
        return tuple(found)

    def _route(self) -> dict[str, Value]:
        node = self._node.child("route", {})
        if isinstance(node.value, str):
            return {"template": Value(node.text()[:256])}
        return {name: Value(field=self._field(at)) for name, at in node.mapping(_ROUTE_KEYS).pairs()}

    def _value(self, key: str, default: Any, read: Callable[[Node], Any]) -> Value:
        if not self._node.has(key):
            return Value(default)
        node = self._node.child(key, None)
        if not isinstance(node.value, dict):
            return Value(read(node))
        node.mapping(("from", "values"))
        field = self._field(node.child("from", None))
        if not node.has("values"):
            return Value(field=field)
        return Value(field=field, table={name: read(at) for name, at in node.child("values", None).pairs()})

    @staticmethod
    def _one_of(choices: tuple[str, ...]) -> Callable[[Node], str]:
        return lambda at: at.one_of(choices)

    def _field(self, node: Node) -> Field:
        """``client``, ``request.client.0``, or a list of keys where a key has a dot in it."""
        if isinstance(node.value, list):
            keys = tuple(at.text() for at in node.items())
        elif isinstance(node.value, str) and node.value:
            keys = (node.value,) if self._groups else tuple(node.text().split("."))
        else:
            raise node.error(node.value, "the name of a field")
        if self._groups and keys[0] not in self._groups:
            raise node.error(keys[0], f"a group of the pattern: {', '.join(sorted(self._groups))}")
        return keys


def _flag(node: Node) -> bool:
    if not isinstance(node.value, bool):
        raise node.error(node.value, "true or false")
    return node.value


def _whole(node: Node) -> int:
    return node.whole(least=0, most=1 << 31)
