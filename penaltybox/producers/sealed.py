"""A record as it leaves: pseudonyms in place, keyed, encoded, and small enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.decoding import decode_decision, decode_outcome
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import MAX_RECORD_BYTES, Decision, Outcome, encode
from penaltybox.contracts.subjects import Canonicaliser, most_specific
from penaltybox.contracts.topics import Topics
from penaltybox.producers.pseudonyms import Pseudonyms

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings

_ANY_TIME: Final = 1 << 52
MAX_SETS: Final = 1000
MAX_KEYS: Final = 20_000


class Sealed(NamedTuple):
    """What Kafka gets.

    Attributes:
        topic: decisions or outcomes.
        key: canonical text of the most specific subject.
        value: the record's wire form, one line of JSON.
        kept: it must survive an outage: a refusal or an outcome. Allowed requests may be lost.
    """

    topic: str
    key: bytes
    value: bytes
    kept: bool


class Sealer:
    """Seals records as the settings say. Not for several threads at once: it remembers subjects."""

    def __init__(self, settings: Settings) -> None:
        self.topics: Final = Topics.named(settings.topic_prefix)
        self._settings = settings
        self._forget()
        self._pseudonyms = Pseudonyms(settings)
        self._leading: dict[tuple[str, ...], str] = {}
        """Dimensions that came together -> the most specific one: a program has few sets of them."""

    def _forget(self) -> None:
        self._canonicaliser = Canonicaliser(self._settings.ipv6_prefix, self._settings.hashed_dimensions)
        self._keys: dict[tuple[str, str], bytes] = {}

    def seal(self, record: Decision | Outcome) -> Sealed:
        """The record as it may leave.

        Raises:
            BadEvent: a subject that is not allowed, or a record over 4 KiB: it would be a dead letter.
        """
        record = self._pseudonyms.applied(record)
        key = self._key(record.subjects)
        value = encode(record)
        if len(value) > MAX_RECORD_BYTES:
            raise BadEvent("too_large", f"record {record.id}: {len(value)} bytes, the limit is {MAX_RECORD_BYTES}")
        if isinstance(record, Decision):
            return Sealed(self.topics.decisions, key, value, record.action != "allow")
        return Sealed(self.topics.outcomes, key, value, kept=True)

    def resealed(self, value: bytes) -> Sealed:
        """From the wire form, which was sealed before (pseudonyms are not applied again).

        Raises:
            BadEvent: it is no record of ours (any more).
        """
        try:
            decision = decode_decision(value, _ANY_TIME, self._canonicaliser)
        except BadEvent:
            outcome = decode_outcome(value, _ANY_TIME, self._canonicaliser)
            return Sealed(self.topics.outcomes, self._key(outcome.subjects), value, kept=True)
        key = self._key(decision.subjects)
        return Sealed(self.topics.decisions, key, value, decision.action != "allow")

    def _key(self, subjects: dict[str, str]) -> bytes:
        """As `record_key` makes it."""
        dimensions = tuple(subjects)
        leading = self._leading.get(dimensions)
        if leading is None:
            if len(self._leading) >= MAX_SETS:
                self._leading.clear()
            leading = self._leading[dimensions] = most_specific(dimensions)
        subject = (leading, subjects[leading])
        key = self._keys.get(subject)
        if key is None:
            if len(self._keys) >= MAX_KEYS:
                self._forget()
            key = self._keys[subject] = self._canonicaliser.subject(*subject).encode()
        return key
