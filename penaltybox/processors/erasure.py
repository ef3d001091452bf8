"""Everything that is stored of one subject, found and erased; what cannot be is for the command to say.

A state is not deleted but overwritten by an empty one with a higher version, which ends by itself a day later: a worker
that still had the old one in memory would otherwise write it again, as after a failover that lost the last writes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.keyspace import LISTS_CHANGED, slot_of
from penaltybox.processors.announcements import Message
from penaltybox.processors.hand import ATTEMPTS
from penaltybox.processors.put_back import ALLOW_KEY, PLAN_KEY
from penaltybox.processors.state import SubjectState, decode_state, encode_state
from penaltybox.processors.writer import next_nonce
from penaltybox.sinks.key_walk import literally, walk
from penaltybox.sinks.subject_store import Lost, Mark, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penaltybox.contracts.topics import Topics
    from penaltybox.sinks.redis_store import RedisSubjectStore

ERASED_MS: Final = 86_400_000
"""How long the empty state stays: longer than any worker trusts what it has in memory (`residents.TRUSTED_S`)."""
_STORED: Final = frozenset({"state", "block", "challenge", "trust", "pass"})
_CHUNK: Final = 500


class Traces(NamedTuple):
    """What Redis has of a subject, and of combinations that it is a part of.

    Attributes:
        subjects: with a state, or keys beside it.
        keys: others: plans, counters of limits, records of what a request took.
        listed: whether the allowlist names it.
    """

    subjects: list[str]
    keys: list[str]
    listed: bool


def is_about(name: str, subject: str) -> bool:
    """Whether a canonical subject is this one, or a combination that it is a part of."""
    if name == subject:
        return True
    dimensions, _, values = name.partition(":")
    if "+" not in dimensions:
        return False
    dimension, _, value = subject.partition(":")
    return (dimension, value) in zip(dimensions.split("+"), values.split("+"), strict=False)


async def find_traces(
    store: RedisSubjectStore, subject: str, progress: Callable[[int, int], object] = lambda _, __: None
) -> Traces:
    """Walks all keys, by SCAN.

    Raises:
        StoreUnavailable: a server did not answer; nothing was changed.
    """
    keys = store.keys
    value = subject.partition(":")[2]
    form = re.compile(re.escape(keys.prefix) + r":\{([^{}]+)\}:(.+)", re.DOTALL)
    subjects: set[str] = set()
    others: list[str] = []
    async for step in walk(store.link, f"{literally(keys.prefix)}:{{*{literally(value)}*}}:*"):
        for key in step.keys:
            match = form.fullmatch(key.decode("utf-8", "replace"))
            if match is not None and is_about(match[1], subject):
                if match[2] in _STORED:
                    subjects.add(match[1])
                else:
                    others.append(match[0])
        progress(step.examined, step.total)
    (listed,) = await store.link.exchange([("HEXISTS", keys.allow, subject)], [slot_of(keys.allow)])
    return Traces(sorted(subjects), sorted(others), bool(listed))


async def erase_traces(store: RedisSubjectStore, traces: Traces, subject: str, now_ms: int) -> None:
    """Erases what was found. Penalties that Kafka has not got yet stay in the outbox until it has.

    Raises:
        StoreUnavailable: Redis did not answer; erasing again takes the rest.
        GenerationMismatch: the store was wiped or swapped.
    """
    for start in range(0, len(traces.subjects), _CHUNK):
        await _empty(store, traces.subjects[start : start + _CHUNK], now_ms)
    for start in range(0, len(traces.keys), _CHUNK):
        part = traces.keys[start : start + _CHUNK]
        slots = [slot_of(key.partition("{")[2].partition("}")[0]) for key in part]
        await store.link.exchange([("UNLINK", key) for key in part], slots)
    events = store.keys.events
    said = [("PUBLISH", events, subject)]
    if traces.listed:
        await store.link.exchange([("HDEL", store.keys.allow, subject)], [slot_of(store.keys.allow)])
        said.append(("PUBLISH", events, LISTS_CHANGED))
    await store.link.exchange(said, [slot_of(events)] * len(said))


async def _empty(store: RedisSubjectStore, subjects: Sequence[str], now_ms: int) -> None:
    todo = list(subjects)
    for _ in range(ATTEMPTS):
        writes = []
        for subject, blob in zip(todo, await store.read(todo), strict=True):
            old = SubjectState.fresh(subject) if blob is None else decode_state(blob, subject)
            new = SubjectState.fresh(subject)
            new.outbox = old.outbox
            number, nonce = old.read_number, old.nonce if old.read_number else 0
            marks = tuple(Mark(name, None, None) for name in ("block", "challenge", "trust", "pass"))
            blob_ = encode_state(new, next_nonce())
            writes.append(Write(subject, number, nonce, blob_, now_ms + ERASED_MS, marks, bool(new.outbox)))
        results = await store.write(writes)
        todo = [one.subject for one, result in zip(writes, results, strict=True) if isinstance(result, Lost)]
        if not todo:
            return
    raise StoreUnavailable(f"{todo[0]} is written too often by others: tried {ATTEMPTS} times; try again")


def tombstones(topics: Topics, traces: Traces, subject: str) -> list[Message]:
    """Records that take the subject out of the compacted topics, so that no restore brings it back."""
    ladders = [Message(topics.ladders, name.encode(), None) for name in dict.fromkeys([subject, *traces.subjects])]
    controls = [Message(topics.control, f"{stem}{subject}".encode(), None) for stem in (PLAN_KEY, ALLOW_KEY)]
    return ladders + controls
