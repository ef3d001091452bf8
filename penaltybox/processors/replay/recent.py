"""The last decisions about each subject: what a penalty is explained with. Bounded, however many subjects there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.contracts.subjects import decode_value, leading_part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.events import Decision
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.subjects import Names

DEPTH: Final = 5
_SUBJECTS: Final = 5_000

_NONE: Final[tuple[Decision, ...]] = ()


class Recent:
    """Remembers `DEPTH` decisions each of the subjects that were seen last, at least `_SUBJECTS` of them.

    Decisions without a reason are remembered only about dimensions on which a rule may see them.

    Args:
        policies: those that are compared; without any, every decision is remembered.
    """

    def __init__(self, policies: Iterable[Policy]) -> None:
        rules = [rule for policy in policies for rule in policy.rules]
        self._plain = frozenset(
            leading_part(rule.on) for rule in rules if rule.kind == "distinct" or rule.when.action or rule.when.reason
        )
        self._all = not rules
        self._young: dict[str, tuple[Decision, ...]] = {}
        self._old: dict[str, tuple[Decision, ...]] = {}

    def see(self, decision: Decision, names: Names) -> None:
        """Remember a decision."""
        plain = decision.reason is None and not self._all
        if plain and self._plain.isdisjoint(decision.subjects):
            return
        young = self._young
        for name, dimension in zip(names, decision.subjects, strict=True):
            if plain and dimension not in self._plain:
                continue
            text = name.text
            before = young.get(text)
            if before is None:
                before = self._old.get(text, _NONE)
            young[text] = (*before[1 - DEPTH :], decision)
        if len(young) > _SUBJECTS:
            self._old, self._young = young, {}

    def of(self, subject: str) -> tuple[Decision, ...]:
        """The last decisions about a subject, or about the leading part of a combination; oldest first."""
        name = leading_subject(subject)
        return self._young.get(name) or self._old.get(name, _NONE)


def leading_subject(subject: str) -> str:
    """The subject itself; of ``device+scenario:d1+login``, a combination, its most specific part ``device:d1``."""
    dimension, _, value = subject.partition(":")
    if "+" not in dimension:
        return subject
    parts = dict(zip(dimension.split("+"), value.split("+"), strict=True))
    leading = leading_part(dimension)
    return f"{leading}:{decode_value(parts[leading]) if leading == 'ip' else parts[leading]}"
