"""Rules of a mapping applied to the fields of a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penaltybox.contracts.errors import shown
from penaltybox.producers.adapters.choices import UNSET, number, status_of
from penaltybox.producers.adapters.mapping import Value
from penaltybox.producers.adapters.reading import Passed, Reading, Unmatched, label
from penaltybox.producers.adapters.targets import Target
from penaltybox.producers.adapters.times import Times

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.events import Reason
    from penaltybox.producers.adapters.mapping import Field, Rule
    from penaltybox.producers.adapters.reading import Options

_JUDGED: Final = ("deny", "challenge")
_LONGEST_ID: Final = 128
_MOST_COUNT: Final = 1_000_000
_LONGEST_TIME: Final = 30
_LATEST: Final = 1e20
_UNITS: Final = {"unix": 1.0, "unix_ms": 1e3, "unix_us": 1e6, "unix_ns": 1e9}
_NO_TIME: Final = Unmatched("no time, or not in the format that the mapping names")
_NO_SUBJECT: Final = Unmatched("no subject, or one that cannot be true")
_LEFT_OUT: Final = Passed("a value that the mapping leaves out")


class _Fixed(NamedTuple):
    """What a rule says of every line alike; None: what it says depends on the line."""

    target: Target | None
    scenario: str | None
    enforced: bool | None
    reason: Reason | None
    """Of a refusal that has no reason of its own."""


class Mapped:
    """Makes readings by rules."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._fixed: dict[int, _Fixed] = {}
        """By the rule's identity: rules live as long as their adapter."""
        self._times = times = Times(options.zone, options.now_ms)
        self._written = {
            "rfc3339": times.rfc3339,
            "apache": times.apache,
            "nginx": times.nginx,
            "syslog": times.syslog,
        }

    def reading(self, rule: Rule, fields: Callable[[Field], Any]) -> Reading | Passed | Unmatched:
        """What a line says by the rule that fits it; `fields` gives the value of a field, None if there is none."""
        action = _of(rule.action, fields)
        if action is None:
            return _LEFT_OUT
        ts_ms = self._time(rule, fields)
        if ts_ms is None:
            return _NO_TIME
        subjects = self._subjects(rule, fields)
        if not subjects:
            return _NO_SUBJECT
        fixed = self._fixed.get(id(rule)) or self._fix(rule)
        reason = _of(rule.reason, fields)
        if reason is None and action in _JUDGED:
            reason = fixed.reason
        enforced = _enforced(_of(rule.enforced, fields)) if fixed.enforced is None else fixed.enforced
        target = self._target(rule, fields, fixed) if fixed.target is None else fixed.target
        numbers = {name: number(_of(value, fields)) for name, value in rule.numbers.items()} if rule.numbers else {}
        return Reading(
            ts_ms=ts_ms,
            action=action,
            reason=reason,
            violated=rule.violated if action != "allow" else (),
            subjects=subjects,
            scenario=target.scenario,
            route=target.route,
            enforced=enforced,
            attrs=_attrs(rule, fields) if rule.attrs else {},
            id="" if rule.id is None else _id(rule.id, fields),
            **_numbers(numbers) if numbers else {},
        )

    def _fix(self, rule: Rule) -> _Fixed:
        scenario = None if rule.scenario.field else label(_text(rule.scenario.constant))
        template = rule.route.get("template", Value()).constant or ""
        asked = "line" in rule.route or "path" in rule.route
        always = scenario is not None and not asked
        found = self._fixed[id(rule)] = _Fixed(
            Target(template, scenario or self._options.targets.unknown.scenario) if always else None,
            scenario,
            None if rule.enforced.field else _enforced(rule.enforced.constant),
            "over_limit" if rule.violated and rule.reason.table is None else "unknown",
        )
        return found

    def explain(self, rule: Rule, fields: Callable[[Field], Any]) -> str:
        """What a rule that fits has found for time and subjects, and what it wanted."""
        told = [_found("time", rule.time, fields, rule.time_format)]
        told += [_found(f"subject {name}", field, fields) for name, field in rule.subjects.items()]
        return "; ".join(told)

    def _time(self, rule: Rule, fields: Callable[[Field], Any]) -> int | None:
        value = fields(rule.time)
        unit = _UNITS.get(rule.time_format)
        if unit is None:
            return self._written[rule.time_format](value) if isinstance(value, str) else None
        if isinstance(value, str) and len(value) <= _LONGEST_TIME and value.replace(".", "", 1).isdecimal():
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LATEST:
            return None
        return self._times.seconds(value / unit)

    def _subjects(self, rule: Rule, fields: Callable[[Field], Any]) -> dict[str, str]:
        """Those that there are and can be: an impossible one hides none beside it. None if `ip` is none."""
        found: dict[str, str] = {}
        for dimension, field in rule.subjects.items():
            text = _text(fields(field))
            if text in UNSET:
                continue
            made = self._options.subject(dimension, text)
            if made is not None:
                found[dimension] = made
            elif dimension == "ip":  # which servers write: the line is another than the rule means
                return {}
        return found

    def _target(self, rule: Rule, fields: Callable[[Field], Any], fixed: _Fixed) -> Target:
        targets, route = self._options.targets, {name: _text(_of(value, fields)) for name, value in rule.route.items()}
        if "line" in route:
            target = targets.of_line(route["line"])
        elif route.get("path"):
            target = targets.of(route.get("method", "GET"), route["path"])
        else:
            target = Target(route.get("template", ""), targets.unknown.scenario)
        scenario = label(_text(_of(rule.scenario, fields))) if fixed.scenario is None else fixed.scenario
        return Target(target.route, scenario) if scenario else target


def _found(name: str, field: Field, fields: Callable[[Field], Any], wanted: str = "") -> str:
    return f"{name}: got {shown(fields(field))} in {'.'.join(field)}{f', wanted {wanted}' if wanted else ''}"


def _of(value: Value, fields: Callable[[Field], Any]) -> Any:
    if value.field is None:
        return value.constant
    found = fields(value.field)
    return found if value.table is None else value.table.get(_text(found))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else ""


def _enforced(value: Any) -> bool:
    return value is None or str(value).lower() not in ("false", "0", "no")


def _numbers(found: dict[str, int | None]) -> dict[str, Any]:
    """The numbers of a reading; a count is at least one."""
    return {
        **found,
        "status": status_of(found.get("status")),
        "count": min(max(found.get("count") or 1, 1), _MOST_COUNT),
    }


def _attrs(rule: Rule, fields: Callable[[Field], Any]) -> dict[str, str]:
    found = {name: label(_text(fields(field))) for name, field in rule.attrs.items()}
    return {name: text for name, text in found.items() if text and len(text.encode("utf-8", "replace")) <= _LONGEST_ID}


def _id(at: Field, fields: Callable[[Field], Any]) -> str:
    text = _text(fields(at))
    return text if text.isprintable() and len(text) <= _LONGEST_ID else ""
