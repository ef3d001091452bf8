"""Who is blocked or challenged right now, read back from Redis: all of them by SCAN, or some by name."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from penaltybox.contracts.errors import WrongType
from penaltybox.contracts.keyspace import Keyspace, slot_of
from penaltybox.sinks.key_walk import literally, walk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from penaltybox.links.exchange import Command, Link

_log = logging.getLogger(__name__)

Kind: TypeAlias = Literal["deny", "challenge"]
_KINDS: dict[str, Kind] = {"block": "deny", "challenge": "challenge"}
_NAMES = ("block", "challenge")  # severity first
# PTTL's two special answers.
_PERMANENT, _GONE = -1, -2


class Block(NamedTuple):
    """One block or challenge that is in force.

    Attributes:
        subject: canonical ``dimension:value``.
        kind: ``deny`` or ``challenge``.
        until: absolute wall ms; None is permanent.
        rung: name of the ladder's rung; ``""`` if another program wrote a value that cannot be read.
        rule: the rule that led to it.
        penalty: id of the penalty in the audit trail.
        ttl_ms: what Redis says is left; None is permanent.
    """

    subject: str
    kind: Kind
    until: int | None
    rung: str
    rule: str
    penalty: str
    ttl_ms: int | None


class Progress(NamedTuple):
    """How far a listing is: keys looked at (SCAN tells it roughly), keys there are, blocks found."""

    examined: int
    total: int
    found: int


class _Value(msgspec.Struct, frozen=True):
    until: int | None = None
    rung: str = ""
    rule: str = ""
    penalty: str = ""


class Blocklist:
    """Reads marks; writes nothing. In a cluster it reads all primaries.

    Args:
        link: from `connections.open_link`; closed by whoever opened it.
        prefix: of all keys.

    Attributes:
        odd: keys that were left out so far: they hold another type than a block does.
    """

    def __init__(self, link: Link, prefix: str = "pbx") -> None:
        self._link = link
        self._keys = Keyspace(prefix)
        self.odd: list[str] = []

    async def blocks(
        self, dimension: str | None = None, progress: Callable[[Progress], None] | None = None
    ) -> AsyncIterator[Block]:
        """Every block and challenge once, in no order, while others write on.

        What is there from start to end is listed; what comes or goes meanwhile may be. A listing walks the whole key
        space in steps of `SCAN_COUNT`, never by KEYS.

        Args:
            dimension: only its subjects, e.g. ``ip``.
            progress: called after every step.

        Raises:
            StoreUnavailable: a server did not answer; the listing is incomplete.
        """
        found = 0
        async for node, keys, examined, total in walk(self._link, self._pattern(dimension, "[bc]*")):
            for block in await self._values(node, keys):
                found += 1
                yield block
            if progress is not None:
                progress(Progress(examined, total, found))

    async def subjects(self, dimension: str | None = None) -> AsyncIterator[str]:
        """Every subject of which a state is stored, in no order. Like `blocks` it walks the whole key space."""
        async for step in walk(self._link, self._pattern(dimension, "state")):
            for key in step.keys:
                parts = self._keys.subject_and_name(key)
                if parts is not None and parts[1] == "state":
                    yield parts[0]

    def _pattern(self, dimension: str | None, name: str) -> str:
        """Keys of a dimension's subjects, by a pattern of their name."""
        return f"{literally(self._keys.prefix)}:{{{literally(dimension) + ':' if dimension else ''}*}}:{name}"

    async def _values(self, node: Link, keys: Sequence[bytes]) -> list[Block]:
        named = [(key, *parts) for key in keys if (parts := self._keys.subject_and_name(key)) and parts[1] in _KINDS]
        if not named:
            return []
        commands: list[Command] = [(command, key) for key, _, _ in named for command in ("GET", "PTTL")]
        replies = await self._readable(node, commands)
        found = (
            _block(subject, _KINDS[name], value, ttl)
            for (_, subject, name), value, ttl in zip(named, replies[::2], replies[1::2], strict=True)
        )
        return [block for block in found if block is not None]

    async def lookup(self, subjects: Sequence[str]) -> list[Block | None]:
        """What is in force against each subject, in order: a deny before a challenge, None if nothing.

        One round trip; this is what an enforcer does, plus the TTLs.
        """
        return [next(iter(found), None) for found in await self.all_of(subjects)]

    async def all_of(self, subjects: Sequence[str]) -> list[list[Block]]:
        """Everything that is in force against each subject, in order; severity first. One round trip.

        Raises:
            StoreUnavailable: a server did not answer.
        """
        if not subjects:
            return []
        commands: list[Command] = []
        for keys in zip(*(self._keys.subject_keys(subjects, name) for name in _NAMES), strict=True):
            commands += [(command, key) for key in keys for command in ("GET", "PTTL")]
        width = 2 * len(_NAMES)
        slots = [slot for subject in subjects for slot in [slot_of(subject)] * width]
        replies = await self._readable(self._link, commands, slots)
        results: list[list[Block]] = []
        for at, subject in enumerate(subjects):
            mine = replies[at * width : (at + 1) * width]
            candidates = (_block(subject, _KINDS[name], mine[2 * i], mine[2 * i + 1]) for i, name in enumerate(_NAMES))
            results.append([block for block in candidates if block is not None])
        return results

    async def _readable(self, link: Link, commands: list[Command], slots: Sequence[int] | None = None) -> list[Any]:
        """The replies; None for a key that holds no string: another program uses its name, and no `GET` finds a block.

        One such key must not hide all others, so those near it are asked again, fewer and fewer at a time.

        Raises:
            StoreUnavailable: a server did not answer.
        """
        try:
            return await link.exchange(commands, slots)
        except WrongType as error:
            if len(commands) == 1:
                key = str(commands[0][1], "utf-8", "replace") if isinstance(commands[0][1], bytes) else commands[0][1]
                _log.warning("key %r is left out, and blocks nobody: another program wrote it. %s", key, error)
                self.odd.append(str(key))
                return [None]
        half = len(commands) // 2
        return [
            *await self._readable(link, commands[:half], slots and slots[:half]),
            *await self._readable(link, commands[half:], slots and slots[half:]),
        ]


def _block(subject: str, kind: Kind, value: Any, ttl_ms: int) -> Block | None:
    """None if the key is gone. A value that cannot be read blocks too: the key's presence is what denies."""
    if value is None or ttl_ms == _GONE:
        return None
    try:
        read = msgspec.json.decode(value, type=_Value)
    except msgspec.MsgspecError:
        read = _Value()
    return Block(
        subject, kind, read.until, read.rung, read.rule, read.penalty, None if ttl_ms == _PERMANENT else ttl_ms
    )
