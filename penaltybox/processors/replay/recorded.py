"""What live workers did, as the topics tell: which policy was in force where, what was done by hand, what was late.

The control topic has each version (kind ``policy``) and, for every partition, from which offset on a worker used which
(kind ``policy_in_use``, value ``{"version","topic","partition","offset"}``). Steps by hand are penalties with the
origin ``hand``: each is made a command again.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Command, Control, Penalty
from penaltybox.contracts.policy import Policy
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.policy_versions import SWITCH_KEY, VERSION_KEY
from penaltybox.contracts.topics import Topics
from penaltybox.processors.remedies import COMMANDED, command_of
from penaltybox.processors.topic_log import read_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penaltybox.contracts.policy import AllowEntry
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.replay.records import Entry


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """From this offset of this partition on a worker used this version."""

    version: str
    topic: str
    partition: int
    offset: int


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A version as `penaltybox policy apply` stores it: the file's text, among other things."""

    text: str


class Recorded(NamedTuple):
    """What the topics tell.

    Attributes:
        policies: version -> policy, of all versions that were in use.
        markers: as they were recorded.
        commands: (ms, command), by time.
        late: ids of events that were handled late, as far as they led to a penalty.
        remarks: sentences about what is missing.
        last: the policy that was in force in the end; its limits decide requests now.
    """

    policies: Mapping[str, Policy]
    markers: Sequence[Marker]
    commands: Sequence[tuple[int, Command]]
    late: frozenset[str]
    remarks: Sequence[str]
    last: Policy


async def read_recorded(settings: Settings) -> Recorded:
    """What the control and penalties topics of these settings tell.

    Raises:
        ConfigurationError: they do not tell which policy was in use, or no longer have it.
        KafkaError: the broker cannot be reached, or refuses.
    """
    topics = Topics.named(settings.topic_prefix)
    controls = [record.value async for record in read_topic(settings, topics.control) if record.value is not None]
    markers, stored = read_controls(controls)
    if not markers:
        raise ConfigurationError(
            f"--baseline recorded: {topics.control} does not tell which policy the workers used (no policy_in_use). "
            "Workers record it since policies are applied with `penaltybox policy apply`; name a file: --baseline FILE."
        )
    policies = {version: _policy(version, stored.get(version)) for version in {one.version for one in markers}}
    last = last_version(controls, markers, stored)
    penalties = [record.value async for record in read_topic(settings, topics.penalties) if record.value is not None]
    commands, late, remarks = read_penalties(penalties)
    in_the_end = policies[last] if last in policies else _policy(last, stored.get(last))
    return Recorded(policies, markers, commands, late, remarks, in_the_end)


def read_controls(raws: Iterable[bytes]) -> tuple[list[Marker], dict[str, str]]:
    """(markers in the order of their recording, version -> value of its record); other records are passed over."""
    markers: list[Marker] = []
    stored: dict[str, str] = {}
    for raw in raws:
        try:
            control = msgspec.json.decode(raw, type=Control)
            if control.kind == "policy_in_use":
                markers.append(msgspec.json.decode(control.value, type=Marker))
            elif control.kind == "policy" and control.key.startswith(VERSION_KEY):
                stored[control.key.removeprefix(VERSION_KEY)] = control.value
        except (msgspec.MsgspecError, RecursionError):
            continue  # a newer release's, or somebody else's
    return markers, stored


def last_version(raws: Iterable[bytes], markers: Sequence[Marker], stored: Mapping[str, str]) -> str:
    """The version that was in force in the end: that of the last switch to one that is stored, else of the last marker.

    The last marker may be an older version's: where no record has come since, no worker tells that it has switched.
    """
    last = markers[-1].version
    for raw in raws:
        try:
            control = msgspec.json.decode(raw, type=Control)
            if control.kind == "policy" and control.key == SWITCH_KEY:
                last = control.value if control.value in stored else last
        except (msgspec.MsgspecError, RecursionError):
            continue  # as above
    return last


def _policy(version: str, value: str | None) -> Policy:
    """A version's policy from the value of its record: the text in a JSON object, or the policy's canonical form."""
    if value is None:
        raise ConfigurationError(
            f"--baseline recorded: policy {version} was in use, but the control topic does not have it. Name a file: "
            "--baseline FILE."
        )
    try:
        return parse_policy(msgspec.json.decode(value, type=_Stored).text, f"policy {version}")
    except msgspec.MsgspecError:
        pass
    try:
        return msgspec.json.decode(value, type=Policy)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigurationError(
            f"--baseline recorded: policy {version} in the control topic cannot be read: {error}. Name a file: "
            "--baseline FILE."
        ) from error


def read_penalties(raws: Iterable[bytes]) -> tuple[list[tuple[int, Command]], frozenset[str], list[str]]:
    """(commands by time, ids of events that were handled late, remarks) from the records of the penalties topic."""
    commands: dict[tuple[str, str], Command] = {}
    late: set[str] = set()
    unknown = 0
    for raw in raws:
        try:
            penalty = msgspec.json.decode(raw, type=Penalty)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if penalty.late:
            late.add(penalty.trigger_id)
        if penalty.origin == COMMANDED:
            command = command_of(penalty)
            if command is None:
                unknown += 1
            else:
                commands[penalty.subject, penalty.trigger_id] = command
    remarks = (
        [f"{unknown:,} steps by hand are of a kind that cannot be repeated; they are left out."] if unknown else []
    )
    found = sorted(((one.ts, one) for one in commands.values()), key=lambda pair: (pair[0], pair[1].id))
    return found, frozenset(late), remarks


class Switching:
    """A course that switches policies where live workers did, partition by partition.

    Before a partition's first marker its first version is taken; where there is none (a partition of which nothing was
    recorded, a step by hand), what was in force just before.

    Args:
        engines: version -> engine.
        markers: as they were recorded; a later one that goes back overrides what it goes back behind.
        places: (topic, partition) by rank; asked when the first slice comes.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        markers: Iterable[Marker],
        places: Callable[[], Sequence[tuple[str, int]]],
    ) -> None:
        self.policies = [engine.policy for engine in engines.values()]
        self._engines = engines
        self._markers = list(markers)
        self._places = places
        self._switches: dict[int, tuple[list[int], list[str]]] | None = None
        self._now = self._markers[0].version
        self.versions = list(dict.fromkeys(one.version for one in self._markers))

    def runs(self, entries: Sequence[Entry]) -> Iterable[tuple[Engine, Sequence[Entry]]]:
        """See `Course.runs`."""
        if len(self._engines) == 1:
            return ((self._engines[self._now], entries),)
        return [(self._engines[version], list(run)) for version, run in groupby(entries, self._version)]

    def list_also(self, entries: tuple[AllowEntry, ...]) -> None:
        """See `Course.list_also`."""
        for engine in self._engines.values():
            engine.list_also(entries)

    def _version(self, entry: Entry) -> str:
        if self._switches is None:
            self._switches = self._sorted()
        _, rank, offset, *_ = entry
        found = self._switches.get(rank)
        if found is not None:
            offsets, versions = found
            self._now = versions[max(0, bisect_right(offsets, offset) - 1)]
        return self._now

    def _sorted(self) -> dict[int, tuple[list[int], list[str]]]:
        ranks = {place: rank for rank, place in enumerate(self._places())}
        found: dict[int, tuple[list[int], list[str]]] = {}
        for one in self._markers:
            rank = ranks.get((one.topic, one.partition))
            if rank is None:
                continue
            offsets, versions = found.setdefault(rank, ([], []))
            while offsets and offsets[-1] >= one.offset:
                offsets.pop()
                versions.pop()
            offsets.append(one.offset)
            versions.append(one.version)
        return found
