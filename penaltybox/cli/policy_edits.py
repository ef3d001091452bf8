"""Steps written into the text of a policy file: only the values change, so its comments and its order stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import yaml

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.policy_form import document
from penaltybox.processors.softening import softened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.softening import Finding, Step

_WIDTH = 110
_HEAD = "# Written anew: what changes stands behind an alias or a merge key of the original, whose comments are lost.\n"


class Candidate(NamedTuple):
    """A policy, its text, and whether the text is the original's with its comments."""

    policy: Policy
    text: str
    kept: bool


class _Splice(NamedTuple):
    start: int
    end: int
    text: str


def candidate(policy: Policy, text: str, findings: Sequence[Finding]) -> Candidate:
    """The policy after its steps, as a file.

    Args:
        policy: as it is.
        text: its file.
        findings: those with a step change it.
    """
    made = softened(policy, findings)
    edited = _edited(text, findings)
    if edited is not None and _means(edited, made):
        return Candidate(made, edited, kept=True)
    return Candidate(made, _HEAD + yaml.safe_dump(document(made), sort_keys=False, width=_WIDTH), kept=False)


def _means(text: str, policy: Policy) -> bool:
    try:
        return parse_policy(text) == policy
    except ConfigurationError:
        return False


def _edited(text: str, findings: Sequence[Finding]) -> str | None:
    """The text with the steps in it; None where a value does not stand where it is expected."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    splices: list[_Splice] = []
    for one in findings:
        if one.step is None:
            continue
        thing = _rule(root, one.figure.name) if one.figure.kind == "rule" else _limit(root, one.figure.name)
        made = _splices(thing, one.step)
        if not made:
            return None
        splices += made
    for splice in sorted(splices, reverse=True):
        text = text[: splice.start] + splice.text + text[splice.end :]
    return text


def _splices(thing: yaml.Node | None, step: Step) -> list[_Splice]:
    if not isinstance(thing, yaml.MappingNode):
        return []
    if step.field == "then":
        return _level_to_challenge(_child(thing, "then"), str(step.after))
    names = ("count", "n") if step.field == "n" else (step.field,)
    value = next((found for name in names if (found := _child(thing, name)) is not None), None)
    if value is not None:
        return [_over(value, str(step.after))]
    beside = next((key for key, _ in thing.value if key.value == "limit"), None)
    if step.field != "answer" or beside is None:
        return []
    start = beside.start_mark
    gap = ", " if thing.flow_style else "\n" + " " * start.column
    return [_Splice(start.index, start.index, f"answer: {step.after}{gap}")]


def _level_to_challenge(then: yaml.Node | None, after: str) -> list[_Splice]:
    if not isinstance(then, yaml.MappingNode) or len(then.value) != 1:
        return []
    key, value = then.value[0]
    return [_over(key, "challenge"), _over(value, after.removeprefix("{challenge: ").removesuffix("}"))]


def _over(node: yaml.Node, text: str) -> _Splice:
    return _Splice(node.start_mark.index, node.end_mark.index, text)


def _rule(root: yaml.Node | None, name: str) -> yaml.Node | None:
    return _child(_child(root, "rules"), name)


def _limit(root: yaml.Node | None, path: str) -> yaml.Node | None:
    for scenario, dimensions in _pairs(_child(root, "limits")):
        for on, listed in _pairs(dimensions):
            entries: list[yaml.Node] = listed.value if isinstance(listed, yaml.SequenceNode) else []
            for entry in entries:
                name = _child(entry, "name")
                if name is not None and f"{scenario}/{on}:{name.value}" == path:
                    return entry
    return None


def _pairs(node: yaml.Node | None) -> list[tuple[str, yaml.Node]]:
    return [(key.value, value) for key, value in node.value] if isinstance(node, yaml.MappingNode) else []


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    found: yaml.Node | None = next((value for name, value in _pairs(node) if name == key), None)
    return found
