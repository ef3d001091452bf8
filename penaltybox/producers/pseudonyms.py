"""Values that must not leave as they are: per dimension, an HMAC stands for them in what is published."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from penaltybox.contracts.subjects import hash_value

if TYPE_CHECKING:
    from penaltybox.contracts.events import Decision, Outcome
    from penaltybox.contracts.settings import Settings

Record = TypeVar("Record", bound="Decision | Outcome")


class Pseudonyms:
    """Replaces the values of the dimensions that the settings name (`hashed_dimensions`, `hash_key`)."""

    def __init__(self, settings: Settings) -> None:
        self._dimensions = frozenset(settings.hashed_dimensions)
        self._key = settings.hash_key.encode()
        self._ipv6_prefix = settings.ipv6_prefix

    def applied(self, record: Record) -> Record:
        """The record as it may leave.

        Raises:
            BadEvent: an `ip` that is no address (it must be normalised before it is hashed).
        """
        if not self._dimensions or self._dimensions.isdisjoint(record.subjects):
            return record
        return msgspec.structs.replace(record, subjects=self.of_subjects(record.subjects))

    def of_subjects(self, subjects: dict[str, str]) -> dict[str, str]:
        """Dimension -> value, as they may be stored; raises as `applied` does."""
        return {
            dimension: hash_value(self._key, dimension, value, self._ipv6_prefix)
            if dimension in self._dimensions
            else value
            for dimension, value in subjects.items()
        }
