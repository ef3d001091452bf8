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
NUMBERS: Final = {
    "status": (100, 599),
    "limit": (0, 1 << 31),
    "window_s": (0, 1 << 31),
    "remaining": (0, 1 << 31),
    "retry_after_s": (0, 1 << 31),
    "count": (1, 1_000_000),
}
"""What a constant may be."""
_ROUTE_KEYS: Final = ("method", "path", "line")
_KEYS: Final = (
    *("match", "time", "subjects", "action", "reason", "violated", "scenario", "route", "enforced", "attrs", "id"),
    *NUMBERS,
)
_MOST_RULES: Final = 50
_MOST_VIOLATED: Final = 16
_MOST_ATTRS: Final = 8
_LONGEST: Final = 128
_JUDGED: Final = ("deny", "challenge")
NOBODY: Final = "shared"
"""The dimension of limits that all requests share: nobody is charged."""
_SPELT: Final = {"True": "true", "False": "false"}
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
        violated = self._violated(subjects)
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
            attrs=self._attrs(),
            id=self._field(node.child("id", None)) if node.has("id") else None,
            numbers={name: self._value(name, None, _whole(*of)) for name, of in NUMBERS.items() if node.has(name)},
        )

    def _check_grounds(self, action: Value, reason: Value, violated: tuple[str, ...]) -> None:
        actions = {action.constant} if action.table is None else set(action.table.values())
        reasons = {reason.constant} if reason.table is None else set(reason.table.values())
        for key, value, wanted in (("action", action, "deny"), ("reason", reason, "over_limit")):
            if value.field is not None and not value.table:
                raise self._node.child(key, None).error("a field without values", f"values: {{…: {wanted}, …: …}}")
        if actions & set(_JUDGED) and "over_limit" in reasons and not violated:
            raise self._node.error("over_limit without violated", "violated: [ip:NAME], the limit and whom it counts")

    def _violated(self, subjects: Mapping[str, Field]) -> tuple[str, ...]:
        found = []
        for at in self._node.child("violated", []).items():
            dimension, colon, name = at.text().partition(":")
            if not colon or not name or DIMENSION.fullmatch(dimension) is None or len(at.value) > _LONGEST:
                raise at.error(at.value, f"dimension:limit, such as ip:login, of at most {_LONGEST} characters")
            if dimension not in subjects and dimension != NOBODY:
                raise at.error(at.value, f"a dimension of the subjects: {', '.join(subjects)}; or {NOBODY}")
            found.append(at.value)
        if len(found) > _MOST_VIOLATED:
            raise self._node.child("violated", None).error(f"{len(found)} limits", f"at most {_MOST_VIOLATED}")
        return tuple(found)

    def _attrs(self) -> dict[str, Field]:
        node = self._node.child("attrs", {})
        found = {name: self._field(at) for name, at in node.pairs()}
        if len(found) > _MOST_ATTRS:
            raise node.error(f"{len(found)} names", f"at most {_MOST_ATTRS}")
        if any(not 0 < len(name) <= _LONGEST for name in found):
            raise node.error("a name that is empty or too long", f"names of 1 to {_LONGEST} characters")
        return found

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
        return Value(field=field, table=_table(node.child("values", None), read))

    @staticmethod
    def _one_of(choices: tuple[str, ...]) -> Callable[[Node], str]:
        return lambda at: at.one_of(choices)

    def _field(self, node: Node) -> Field:
        """``client``, ``request.client.0``, or a list of keys where a key has a dot in it."""
        if isinstance(node.value, list):
            keys = tuple(at.text() for at in node.items())
            if not keys:
                raise node.error("an empty list", "the keys of a field, from the outside in")
        elif isinstance(node.value, str) and node.value:
            keys = (node.value,) if self._groups else tuple(node.text().split("."))
            if not all(keys):
                raise node.error(node.value, "keys with one dot between two: client.address")
        else:
            raise node.error(node.value, "the name of a field")
        if self._groups and keys[0] not in self._groups:
            raise node.error(keys[0], f"a group of the pattern: {', '.join(sorted(self._groups))}")
        return keys


def _flag(node: Node) -> bool:
    if not isinstance(node.value, bool):
        raise node.error(node.value, "true or false")
    return node.value


def _table(node: Node, read: Callable[[Node], Any]) -> dict[str, Any]:
    """The values of a field, as text: YAML's true and false are those of JSON."""
    return {_SPELT.get(name, name): read(at) for name, at in node.pairs()}


def _whole(least: int, most: int) -> Callable[[Node], int]:
    return lambda node: node.whole(least=least, most=most)
