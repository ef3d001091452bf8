"""What one side of a replay did, in numbers, and a hash that says whether two replays did the same."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from penaltybox.contracts.events import Penalty

_MODULUS: Final = 1 << 256
_encode = msgspec.json.Encoder(order="deterministic").encode


class SideResult(msgspec.Struct, kw_only=True):
    """What one policy did. `penalties` counts all records: shadow rules', lifts, and those by hand, too."""

    policy_versions: list[str]
    penalties: int
    shadow: int
    subjects_penalised: int
    by_rung: dict[str, int]
    by_rule: dict[str, int]
    by_dimension: dict[str, int]
    stopped: int
    """Decisions that met a deny in force; counted when somebody watches the replay."""
    result_hash: str
    limits: dict[str, int] | None = None
    """What the limiter answered when it was asked again; None where the recorded answers were taken."""


class Tally:
    """Counts the penalties of one side and sums their hashes.

    The sum of the SHA-256 of every record, modulo 2^256, does not depend on the order of the records nor on how they
    were shared out between processes, so nothing has to be kept or sorted.
    """

    def __init__(self) -> None:
        self.penalties = self.shadow = self.stopped = 0
        self.by_rung: Counter[str] = Counter()
        self.by_rule: Counter[str] = Counter()
        self.by_dimension: Counter[str] = Counter()
        self.versions: dict[str, None] = {}
        self._subjects: set[str] = set()
        self._sum = 0

    def add(self, penalty: Penalty) -> None:
        """Count a penalty. Shadow ones are in the hash and in `shadow` only."""
        self.penalties += 1
        self._sum = (self._sum + int.from_bytes(hashlib.sha256(_encode(penalty)).digest(), "big")) % _MODULUS
        self.versions[penalty.policy_version] = None
        if penalty.shadow:
            self.shadow += 1
            return
        self.by_rung[rung_label(penalty)] += 1
        self.by_rule[penalty.rule] += 1
        self.by_dimension[penalty.subject.partition(":")[0]] += 1
        self._subjects.add(penalty.subject)

    def result(self, versions: list[str], limits: Counter[str] | None = None) -> SideResult:
        """The numbers so far; `versions` are those of the policies in force, if no penalty names more."""
        return SideResult(
            policy_versions=list(dict.fromkeys([*versions, *self.versions])),
            penalties=self.penalties,
            shadow=self.shadow,
            subjects_penalised=len(self._subjects),
            by_rung=_sorted(self.by_rung),
            by_rule=_sorted(self.by_rule),
            by_dimension=_sorted(self.by_dimension),
            stopped=self.stopped,
            result_hash=f"{self._sum:064x}",
            limits=None if limits is None else _sorted(+limits),
        )


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def merged(parts: list[SideResult]) -> SideResult:
    """The result of a side whose partitions were shared out between processes."""
    sums = [int(part.result_hash, 16) for part in parts]
    return SideResult(
        policy_versions=list(dict.fromkeys(version for part in parts for version in part.policy_versions)),
        penalties=sum(part.penalties for part in parts),
        shadow=sum(part.shadow for part in parts),
        subjects_penalised=sum(part.subjects_penalised for part in parts),
        by_rung=_sorted(sum((Counter(part.by_rung) for part in parts), Counter())),
        by_rule=_sorted(sum((Counter(part.by_rule) for part in parts), Counter())),
        by_dimension=_sorted(sum((Counter(part.by_dimension) for part in parts), Counter())),
        stopped=sum(part.stopped for part in parts),
        result_hash=f"{sum(sums) % _MODULUS:064x}",
    )


def rung_label(penalty: Penalty) -> str:
    """A penalty's rung as a listing shows it: ``5m``, ``challenge``, ``5m as a challenge``, ``lift``, ``note``."""
    if penalty.action == "challenge":
        return "challenge" if penalty.to == penalty.from_ else f"{penalty.to} as a challenge"
    return penalty.action if penalty.action in ("lift", "note") else penalty.to
