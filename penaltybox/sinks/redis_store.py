"""The subject store in Redis: versioned writes by one Lua script, on one server, behind Sentinel, or in a cluster.

On one server a script call carries many subjects (`CHUNK` bounds its time) and several calls share a round trip. In a
cluster all keys of a call must share a slot, so there each subject is a call of its own, pipelined per node; the
generation and the pending index exist once per slot, in keys whose hash tag belongs to that slot, so that the same
script checks the shard it writes to and nothing breaks when slots move.
"""

from __future__ import annotations

import struct
from importlib.resources import files
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from penaltybox.contracts.errors import GenerationMismatch
from penaltybox.contracts.keyspace import SLOTS, Keyspace, slot_of
from penaltybox.links.exchange import Script
from penaltybox.sinks.subject_store import Lost, Rewound, Write, WriteResult, Written, check_joinable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penaltybox.links.exchange import Command, Link

CHUNK = 128
"""Work units per script call: a subject is one, a mark another.

Measured by benchmarks/store_writes.py: a subject costs 4 µs of server time, 8 µs with an append-only file, so a call
takes 0.5 to 1 ms, for which other clients wait. Smaller chunks write fewer subjects, larger ones don't write more.
"""
READ_CHUNK = 512
_VERSION = struct.Struct(">BQBQ")
_UINT64 = 0xCF
_SETTLE_CHUNK = 500


def _script(name: str) -> Script:
    return Script((files("penaltybox.sinks") / "lua" / name).read_text(encoding="utf-8"))


class _Pause(msgspec.Struct, frozen=True):
    reason: str
    actor: str
    at: int


class RedisSubjectStore:
    """Implements `SubjectStore`.

    Args:
        link: from `connections.open_link`; closed by `close`.
        prefix: of all keys.
        chunk: work units per script call on one server.
    """

    SWEEP_SLOTS = SLOTS // 64

    def __init__(self, link: Link, prefix: str = "pbx", chunk: int = CHUNK) -> None:
        self.link = link
        self.keys = Keyspace(prefix)
        self._chunk = chunk
        self._write_script = _script("write_subjects.lua")
        self._settle_script = _script("settle_subjects.lua")
        self._generation: str | None = None
        self._indexed_slots: set[int] = set()
        self._next_slot: int | None = None

    async def read(self, subjects: Sequence[str]) -> list[bytes | None]:
        """Blobs in the order of `subjects`: MGET on one server, GET per subject in a cluster."""
        if not subjects:
            return []
        keys = self.keys.subject_keys(subjects)
        if self.link.clustered:
            return await self.link.exchange([("GET", key) for key in keys], _slots(subjects))
        chunks = (("MGET", *keys[at : at + READ_CHUNK]) for at in range(0, len(keys), READ_CHUNK))
        return [blob for reply in await self.link.exchange(chunks) for blob in reply]

    async def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Write states and marks; see `SubjectStore.write`."""
        if not writes:
            return []
        if self._generation is None:
            await self.join_generation()
        if self.link.clustered:
            slots = _slots([write.subject for write in writes])
            self._indexed_slots.update(slot for slot, write in zip(slots, writes, strict=True) if write.pending)
            replies = await self._write_script.run(self.link, self._calls(writes, slots), slots)
        else:
            replies = await self._write_script.run(self.link, self._calls(writes, None))
        results: list[WriteResult] = []
        for reply in replies:
            if isinstance(reply, Exception):
                raise GenerationMismatch(
                    f"Redis has another generation than {self._generation!r}, which this writer joined: it was wiped "
                    "or swapped. Nothing was written. Run `penaltybox restore`."
                ) from reply
            results += _results(reply)
        return results

    def _calls(self, writes: Sequence[Write], slots: Sequence[int] | None) -> Iterator[Command]:
        """Arguments of EVALSHA: one call per chunk, or per write when `slots` are given."""
        keys = self.keys.subject_keys([write.subject for write in writes])
        generation, pending = self.keys.generation, self.keys.pending
        head: tuple[str, str] = (str(self._generation), self.keys.events)
        pack = _VERSION.pack
        arguments: list[Any] = []
        first = units = 0
        for at, (_, number, nonce, blob, expire_at_ms, marks, is_pending) in enumerate(writes):
            if marks is None:
                arguments += (pack(_UINT64, number, _UINT64, nonce), blob, expire_at_ms or 0, is_pending + 0)
                units += 1
            else:
                code = 2 * len(marks) + 2 + is_pending
                arguments += (pack(_UINT64, number, _UINT64, nonce), blob, expire_at_ms or 0, code)
                for mark in marks:
                    arguments += (mark.name, mark.value or b"", mark.expire_at_ms or 0)
                units += 1 + len(marks)
            if slots is not None:
                generation = self.keys.slot_key(slots[at], "generation")
                pending = self.keys.slot_key(slots[at], "pending")
            elif units < self._chunk:
                continue
            yield (at - first + 3, generation, pending, *keys[first : at + 1], *head, *arguments)
            arguments, first, units = [], at + 1, 0
        if arguments:
            yield (len(keys) - first + 2, generation, pending, *keys[first:], *head, *arguments)

    async def pending(self, older_than_ms: int, limit: int = 1000) -> list[str]:
        """Indexed subjects whose last write is at least `older_than_ms` old, oldest first.

        In a cluster the index is one sorted set per slot. A call looks at the slots that this store has indexed
        something in, and at a 64th of all others; the first call looks at all. So what a worker that died left
        behind is found within 64 calls.
        """
        ((seconds, micros),) = await self.link.exchange([("TIME",)])
        newest = int(seconds) * 1000 + int(micros) // 1000 - older_than_ms
        tail = ("-inf", newest, "BYSCORE", "LIMIT", 0, limit, "WITHSCORES")
        if not self.link.clustered:
            (found,) = await self.link.exchange([("ZRANGE", self.keys.pending, *tail)])
            return [subject.decode() for subject in found[::2]]
        slots = self._slots_to_sweep()
        replies = await self.link.exchange(
            [("ZRANGE", self.keys.slot_key(slot, "pending"), *tail) for slot in slots], slots
        )
        self._indexed_slots -= {slot for slot, reply in zip(slots, replies, strict=True) if not reply}
        old = sorted(
            (float(score), name.decode())
            for reply in replies
            for name, score in zip(reply[::2], reply[1::2], strict=True)
        )
        return [name for _, name in old[:limit]]

    def _slots_to_sweep(self) -> list[int]:
        if self._next_slot is None:
            self._next_slot = 0
            return list(range(SLOTS))
        first = self._next_slot
        self._next_slot = (first + self.SWEEP_SLOTS) % SLOTS
        return sorted(self._indexed_slots | set(range(first, first + self.SWEEP_SLOTS)))

    async def settle(self, subjects: Sequence[str]) -> None:
        """Un-index subjects of which nothing is stored any more; checked in the same call."""
        if not subjects:
            return
        keys = self.keys.subject_keys(subjects)
        if self.link.clustered:
            slots = _slots(subjects)
            calls: list[Command] = [
                (2, self.keys.slot_key(slot, "pending"), key) for slot, key in zip(slots, keys, strict=True)
            ]
            await self._settle_script.run(self.link, calls, slots)
            return
        chunks = [keys[at : at + _SETTLE_CHUNK] for at in range(0, len(keys), _SETTLE_CHUNK)]
        await self._settle_script.run(self.link, [(len(some) + 1, self.keys.pending, *some) for some in chunks])

    async def generation(self) -> str | None:
        """The stored generation; in a cluster that of every slot.

        Raises:
            GenerationMismatch: the slots of a cluster differ: a shard was wiped, or nobody finished a start.
        """
        if not self.link.clustered:
            return _text((await self.link.exchange([("GET", self.keys.generation)]))[0])
        stored = await self._slot_generations()
        if len(stored) > 1:
            raise GenerationMismatch(
                f"The shards of the Redis cluster have different generations ({sorted(map(str, stored))}): one was "
                "wiped or swapped. Run `penaltybox restore`."
            )
        return stored.pop()

    async def _slot_generations(self) -> set[str | None]:
        keys = [self.keys.slot_key(slot, "generation") for slot in range(SLOTS)]
        return {_text(reply) for reply in await self.link.exchange([("GET", key) for key in keys], range(SLOTS))}

    async def begin_generation(self, value: str) -> None:
        """Store a new generation on every shard and write under it."""
        await self._set_generation(value, only_missing=False)
        self._generation = value

    async def _set_generation(self, value: str, *, only_missing: bool) -> None:
        tail = ("NX",) if only_missing else ()
        if not self.link.clustered:
            await self.link.exchange([("SET", self.keys.generation, value, *tail)])
            return
        keys = [self.keys.slot_key(slot, "generation") for slot in range(SLOTS)]
        await self.link.exchange([("SET", key, value, *tail) for key in keys], range(SLOTS))
        await self._central([("SET", self.keys.generation, value)])

    async def _central(self, commands: Sequence[Command]) -> list[Any]:
        """Commands on a key that exists once in a cluster too."""
        slots = [slot_of(str(command[1])) for command in commands]
        return await self.link.exchange(commands, slots)

    async def join_generation(self, known: str | None = None) -> str:
        """Join the stored generation or start one; see `SubjectStore.join_generation`."""
        stored = await self._started() if known is None else await self.generation()
        check_joinable(stored, known, "Redis")
        self._generation = stored
        return str(stored)

    async def _started(self) -> str | None:
        """The stored generation; where there is none, that of whoever starts one first."""
        fresh = token_hex(8)
        if not self.link.clustered:
            await self._set_generation(fresh, only_missing=True)
            return await self.generation()
        stored = await self._slot_generations()
        # The key without a slot of its own arbitrates: "starting:<value>" until every slot has the value.
        central = self.keys.generation
        if stored == {None}:
            await self._central([("SET", central, f"starting:{fresh}", "NX")])
        claimed = _text((await self._central([("GET", central)]))[0]) or ""
        if claimed.startswith("starting:") and stored <= {None, claimed.removeprefix("starting:")}:
            await self._set_generation(claimed.removeprefix("starting:"), only_missing=True)
        return await self.generation()

    async def pause_reason(self) -> str | None:
        """Why new blocks are paused."""
        (stored,) = await self._central([("GET", self.keys.pause)])
        if stored is None:
            return None
        try:
            return msgspec.json.decode(stored, type=_Pause).reason
        except msgspec.MsgspecError:
            return f"unreadable pause in {self.keys.pause}"

    async def pause(self, reason: str, actor: str, at_ms: int) -> None:
        """Pause new blocks; the key has no TTL, a pause ends by `resume` only."""
        await self._central([pausing(self.keys, reason, actor, at_ms)])

    async def resume(self) -> None:
        """End the pause."""
        await self._central([resuming(self.keys)])

    async def close(self) -> None:
        """Close all connections."""
        await self.link.close()


def pausing(keys: Keyspace, reason: str, actor: str, at_ms: int) -> Command:
    """The command that pauses new blocks."""
    return ("SET", keys.pause, msgspec.json.encode(_Pause(reason, actor, at_ms)))


def resuming(keys: Keyspace) -> Command:
    """The command that ends a pause."""
    return ("DEL", keys.pause)


def _slots(subjects: Sequence[str]) -> list[int]:
    return [slot_of(subject) for subject in subjects]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _results(replies: Sequence[int | bytes]) -> list[WriteResult]:
    """Replies of the script, in its own notation (see the Lua file)."""
    new = tuple.__new__  # a third of the cost of calling the class, on the path of every write
    return [
        Lost(reply) if isinstance(reply, bytes) else new(Written, (reply,)) if reply > 0 else Rewound(-reply)
        for reply in replies
    ]
