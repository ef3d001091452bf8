"""What workers noted of their successful writes: of each subject, which events they stepped, in which order, how."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Written(NamedTuple):
    """A successful write: one line of a journal.

    Attributes:
        subject: of the state.
        number: the version that the store gave it.
        ids: of the events that were stepped into it, in order.
        policy: version of the policy that stepped them.
    """

    subject: str
    number: int
    ids: list[str]
    policy: str


def lines_of(journal: Path) -> Iterator[Written]:
    """What one worker wrote, in its order."""
    return (msgspec.json.decode(line, type=Written) for line in journal.read_bytes().splitlines())


def write_order(journals: Iterable[Path]) -> dict[str, list[Written]]:
    """Of each subject its writes by all workers, in the order in which they succeeded: that of their versions."""
    writes: dict[str, list[Written]] = defaultdict(list)
    for journal in journals:
        for line in lines_of(journal):
            writes[line.subject].append(line)
    for lines in writes.values():
        lines.sort(key=lambda line: line.number)
        assert len({line.number for line in lines}) == len(lines), f"{lines[0].subject}: two writes of one version"
    return dict(writes)


def contested(journals: Iterable[Path]) -> int:
    """How many subjects were written by more than one worker."""
    writers: dict[str, set[Path]] = defaultdict(set)
    for journal in journals:
        for line in lines_of(journal):
            writers[line.subject].add(journal)
    return sum(len(names) > 1 for names in writers.values())
