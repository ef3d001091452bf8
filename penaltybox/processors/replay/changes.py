"""Who is newly penalised, who no longer, who earlier, later, longer or shorter: counted by group of penalties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.processors.replay.observer import BASELINE, CANDIDATE
from penaltybox.processors.replay.report import Change, Pair, Row, Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penaltybox.contracts.labels import Standing
    from penaltybox.processors.replay.histories import Cell, Course, History, Stay
    from penaltybox.processors.replay.observer import Side

Group = tuple[str, ...]
"""(kind of group, its name...): ``("rule", "device_farm")``, ``("total",)``."""
TOTAL: Final[Group] = ("total",)
PERMANENT: Final[Group] = ("permanent",)
SHADOW: Final[Group] = ("shadow",)


class Met(NamedTuple):
    """What a subject met on one side within a group: how many penalties, from when, and how long (ms)."""

    penalties: int
    first_ms: int
    held_ms: tuple[int, int, int]
    """Denied, challenged, warned: compared in this order."""


def met(course: Course | None, dimension: str) -> dict[Group, Met]:
    """What a subject met on a side, by group."""
    stays: dict[Group, list[tuple[Cell, Stay]]] = {}
    for cell, stay in course.stays.items() if course is not None else ():
        for group in _groups(cell, stay, dimension):
            stays.setdefault(group, []).append((cell, stay))
    return {group: _met(list(mine)) for group, mine in stays.items()}


def _groups(cell: Cell, stay: Stay, dimension: str) -> Iterator[Group]:
    yield ("row", dimension, cell.rule, cell.rung, cell.action, "shadow" if cell.shadow else "")
    if cell.shadow:
        yield SHADOW
        yield ("shadow_rule", cell.rule)
        return
    yield TOTAL
    yield ("dimension", dimension)
    yield ("rule", cell.rule)
    yield ("rung", cell.rung)
    yield ("action", cell.action)
    if stay.endless:
        yield PERMANENT


def _met(mine: list[tuple[Cell, Stay]]) -> Met:
    held = {"deny": 0, "challenge": 0, "warn": 0}
    for cell, stay in mine:
        held[cell.action] += stay.held_ms
    return Met(
        penalties=sum(stay.count for _, stay in mine),
        first_ms=min(stay.first_ms for _, stay in mine),
        held_ms=(held["deny"], held["challenge"], held["warn"]),
    )


def differences(baseline: Met | None, candidate: Met | None) -> list[str]:
    """In what two sides differ: ``new``, ``gone``; or of ``earlier``, ``later``, ``longer``, ``shorter`` what holds."""
    if baseline is None or candidate is None:
        return ["gone"] if candidate is None and baseline is not None else ["new"] if candidate is not None else []
    found = []
    if candidate.first_ms != baseline.first_ms:
        found.append("earlier" if candidate.first_ms < baseline.first_ms else "later")
    if candidate.held_ms != baseline.held_ms:
        found.append("longer" if candidate.held_ms > baseline.held_ms else "shorter")
    return found


class Changes:
    """Changes by group, counted subject by subject."""

    def __init__(self) -> None:
        self._by_group: dict[Group, Change] = {}

    def add(self, subject: str, history: History) -> None:
        """Count one subject."""
        dimension = subject.partition(":")[0]
        sides: Mapping[Side, dict[Group, Met]] = {
            side: met(history.courses.get(side), dimension) for side in (BASELINE, CANDIDATE)
        }
        standing = history.standing
        for group in sides[BASELINE].keys() | sides[CANDIDATE].keys():
            change = self._by_group.get(group)
            if change is None:
                change = self._by_group[group] = empty()
            baseline, candidate = sides[BASELINE].get(group), sides[CANDIDATE].get(group)
            if baseline is not None:
                change.penalties.baseline += baseline.penalties
                _count(change.baseline, standing)
            if candidate is not None:
                change.penalties.candidate += candidate.penalties
                _count(change.candidate, standing)
            for name in differences(baseline, candidate):
                _count(getattr(change, name), standing)

    def of(self, group: Group) -> Change:
        """The change of one group."""
        return self._by_group.get(group) or empty()

    def named(self, kind: str, names: Iterable[str] = ()) -> dict[str, Change]:
        """Name -> change of all groups of a kind, and of `names`, those that changed most first."""
        found = {name: empty() for name in names}
        found |= {group[1]: change for group, change in self._by_group.items() if group[0] == kind}
        return dict(sorted(found.items(), key=lambda item: (*_order(item[1]), item[0])))

    def rows(self) -> list[Row]:
        """By dimension, rule, rung and action; shadow rules last."""
        rows = [
            Row(dimension=group[1], rule=group[2], rung=group[3], action=group[4], shadow=bool(group[5]), change=change)
            for group, change in self._by_group.items()
            if group[0] == "row"
        ]
        return sorted(
            rows, key=lambda row: (row.shadow, *_order(row.change), row.dimension, row.rule, row.rung, row.action)
        )


def empty() -> Change:
    """No change."""
    return Change(
        penalties=Pair(),
        baseline=Split(),
        candidate=Split(),
        new=Split(),
        gone=Split(),
        earlier=Split(),
        later=Split(),
        longer=Split(),
        shorter=Split(),
    )


def _count(split: Split, standing: Standing) -> None:
    split.total += 1
    setattr(split, standing, getattr(split, standing) + 1)


def _order(change: Change) -> tuple[int, int]:
    return -(change.new.total + change.gone.total), -(change.baseline.total + change.candidate.total)
