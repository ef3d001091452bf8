"""Topic names and record keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.subjects import most_specific

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.contracts.subjects import Canonicaliser


class Topics(NamedTuple):
    """Names of the six topics; the prefix is a setting."""

    decisions: str
    outcomes: str
    penalties: str
    ladders: str
    control: str
    dead_letters: str

    @classmethod
    def named(cls, prefix: str = "penaltybox") -> Topics:
        """The six names under a prefix."""
        return cls(
            decisions=f"{prefix}.decisions",
            outcomes=f"{prefix}.outcomes",
            penalties=f"{prefix}.penalties",
            ladders=f"{prefix}.ladders",
            control=f"{prefix}.control",
            dead_letters=f"{prefix}.dead-letters",
        )


TOPICS: Final = Topics.named()


def record_key(subjects: Mapping[str, str], canonicaliser: Canonicaliser) -> bytes:
    """Kafka key of a decision or outcome: the canonical form of its most specific subject.

    Partition by murmur2 as the Java client does (librdkafka: ``partitioner=murmur2_random``; Sarama: its own hash
    must be replaced), so that a subject's events share a partition whoever sends them.
    """
    dimension = most_specific(subjects)
    return canonicaliser.subject(dimension, subjects[dimension]).encode()
