"""What differs between two policies, by what a limit, a rule, a rung means; not by lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penaltybox.contracts.policy_form import document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.policy_form import Document

_OF_MANY = ("scenarios", "plans", "rules")
_ABSENT = object()


class FieldChange(msgspec.Struct, frozen=True):
    """One value that differs; None where one side does not have it."""

    field: str
    before: Any
    after: Any


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was added, is gone, or differs.

    Attributes:
        section: of the file: limits, scenarios, plans, rules, ladder, …
        name: of the thing, e.g. ``coupon_claim/user:daily``; the section itself where there is only one.
        kind: what became of it.
        fields: what differs; of something added or gone all that it says.
        note: what follows from it, in a sentence.
    """

    section: str
    name: str
    kind: Literal["added", "gone", "changed"]
    fields: tuple[FieldChange, ...]
    note: str = ""


def changes(before: Policy, after: Policy) -> list[Change]:
    """Everything that differs, in the order of the file."""
    old, new = _things(document(before)), _things(document(after))
    keys = {rule.name: rule.key for rule in before.rules}
    fresh = {rule.name for rule in after.rules if keys.get(rule.name, rule.key) != rule.key}
    found = []
    for place in dict.fromkeys([*old, *new]):
        one, other = old.get(place), new.get(place)
        if one == other:
            continue
        section, name = place
        kind: Literal["added", "gone", "changed"] = "added" if one is None else "gone" if other is None else "changed"
        fields = tuple(_fields(one or {}, other or {}))
        note = "its counters start afresh" if section == "rules" and name in fresh and kind == "changed" else ""
        found.append(Change(section=section, name=name, kind=kind, fields=fields, note=note))
    order = list(document(after))
    return sorted(found, key=lambda change: order.index(change.section))


def _things(form: Document) -> dict[tuple[str, str], Document]:
    """(section, name) -> fields."""
    found: dict[tuple[str, str], Document] = {}
    for scenario, dimensions in form["limits"].items():
        for on, thresholds in dimensions.items():
            for one in thresholds:
                fields = {key: value for key, value in one.items() if key != "name"}
                found["limits", f"{scenario}/{on}:{one['name']}"] = fields
    for section in _OF_MANY:
        for name, fields in form[section].items():
            found[section, name] = _flat(fields)
    for entry in form["allow"]:
        name = entry.get("cidr") or entry["subject"]
        found["allow", name] = {key: value for key, value in entry.items() if key not in ("cidr", "subject")}
    for section, value in form.items():
        if section not in ("limits", "allow", *_OF_MANY):
            found[section, section] = _flat(value) if isinstance(value, dict) else {"": value}
    return found


def _flat(fields: Document, stem: str = "") -> Document:
    """Mappings within mappings as dotted names: ``when.reason``; what `then` asks for stays one value."""
    flat: Document = {}
    for key, value in fields.items():
        name = f"{stem}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) and key != "then" else {name: value}
    return flat


def _fields(before: Document, after: Document) -> Iterator[FieldChange]:
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name, _ABSENT), after.get(name, _ABSENT)
        if one != other:
            yield FieldChange(name, None if one is _ABSENT else one, None if other is _ABSENT else other)
