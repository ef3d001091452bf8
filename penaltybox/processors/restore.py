"""`penaltybox restore`: a wiped or swapped store gets its ladders back from Kafka, and a new generation.

Control first (`put_back`: a pause must hold before anything can be blocked again), then ladders: of each subject the
record with the highest `seq`, so compacted and uncompacted topics restore alike.  Of ladders, what the store has
already, and newer, stays.
Until the end the store is marked as being restored: no worker writes into it.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penaltybox.contracts.errors import BadEvent, shown
from penaltybox.contracts.events import Ladder
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.topics import Topics
from penaltybox.processors.engine import Engine
from penaltybox.processors.generations import record_generation
from penaltybox.processors.patience import RESTORED
from penaltybox.processors.put_back import newest_controls, put_back
from penaltybox.processors.state import NEVER, encode_state, state_expiry, state_from_ladder
from penaltybox.processors.topic_log import read_topic
from penaltybox.processors.untold import tell_untold
from penaltybox.processors.writer import next_nonce
from penaltybox.sinks.lists import HandLists
from penaltybox.sinks.subject_store import RESTORING, Lost, Write
from penaltybox.sinks.untold import Untold

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable
    from typing import Any

    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.announcements import Sender
    from penaltybox.sinks.redis_store import RedisSubjectStore
    from penaltybox.sinks.subject_store import SubjectStore

log = logging.getLogger(__name__)
CHUNK = 2000
_LATEST: Final = 1 << 53
"""The latest time, and the highest version: a script's numbers are exact up to here."""
_SUBJECT: Final = re.compile(r"[a-z][a-z0-9_+]*:[A-Za-z0-9\-._~%:/+]+")


class Restored(NamedTuple):
    """What a restore did.

    Attributes:
        generation: the new one.
        ladders: subjects written back.
        kept: subjects of which the store had something newer.
        blocked: how many of the subjects written back are blocked now.
        paused: the pause that was put back, if any.
        policy: version of the policy in force that was put back, if any.
        plans: customers whose plan or own limits were put back.
        allowed: entries of the allowlist that were put back.
        banned: ranges of addresses whose ban was put back.
    """

    generation: str
    ladders: int
    kept: int
    blocked: int
    paused: str | None
    policy: str | None = None
    plans: int = 0
    allowed: int = 0
    banned: int = 0


async def restore(
    settings: Settings,
    store: RedisSubjectStore,
    sender: Sender,
    engine: Engine,
    now_ms: int,
    *,
    actor: str,
    reason: str,
    progress: Callable[[int, int], object] = lambda _done, _total: None,
) -> Restored:
    """Restore the store of these settings from its topics.

    Args:
        settings: where the topics are.
        store: restored in place.
        sender: names the new generation in the control topic.
        engine: the file's policy, if the control topic names none (it decides what a ladder blocks, and for how long
            it is kept).
        now_ms: wall time; blocks that ended before it are not written.
        actor: who restores.
        reason: why.
        progress: called with ladders done and ladders in all, now and then.

    Raises:
        StoreUnavailable: nothing is lost, restore again.
    """
    topics = Topics.named(settings.topic_prefix)
    await store.begin_generation(f"{RESTORING}{ulid(now_ms)}")
    untold = Untold(store.link, settings.redis_prefix)
    await tell_untold(untold, sender, topics)
    done = await put_back(await newest_controls(read_topic(settings, topics.control)), untold)
    if done.policy is not None:
        engine = Engine(done.policy, engine.canonicaliser)
    engine.list_also(await HandLists(store.link, settings.redis_prefix, engine.canonicaliser).entries())
    ladders = await newest_ladders(read_topic(settings, topics.ladders))
    written, kept, blocked = await write_ladders(store, engine, ladders.values(), now_ms, progress)
    generation = f"{RESTORED}{ulid(now_ms)}"
    await store.begin_generation(generation)
    await record_generation(sender, topics, generation, now_ms, actor=actor, reason=reason)
    version = done.policy.version if done.policy is not None else None
    return Restored(generation, written, kept, blocked, done.paused, version, done.plans, done.allowed, done.banned)


async def newest_ladders(records: AsyncIterable[Any]) -> dict[str, Ladder]:
    """Of each subject the ladder with the highest `seq`; a tombstone takes away what came before it."""
    newest: dict[str, Ladder] = {}
    async for record in records:
        if record.value is None:
            newest.pop((record.key or b"").decode("utf-8", "replace"), None)
            continue
        try:
            ladder = msgspec.json.decode(record.value, type=Ladder)
            _check(ladder)
        except (msgspec.MsgspecError, RecursionError, BadEvent, OverflowError) as error:
            # Others may write there too; one record that is no ladder must not cost all the ladders.
            log.warning("Partition %d, offset %d: no ladder, left out: %s", record.partition, record.offset, error)
            continue
        known = newest.get(ladder.subject)
        if known is None or ladder.seq >= known.seq:
            newest[ladder.subject] = ladder
    return newest


def _check(ladder: Ladder) -> None:
    """Refuses what has the form of a ladder and would make a key, a version or an end that nobody could use.

    Raises:
        BadEvent: and says why.
        OverflowError: a number that no state can hold.
    """
    if _SUBJECT.fullmatch(ladder.subject) is None:
        raise BadEvent("bad_subject", f"subject {shown(ladder.subject)}")
    if not NEVER < ladder.seq <= _LATEST:
        raise BadEvent("bad_version", f"seq {shown(ladder.seq)}")
    holds = [hold.until for hold in (ladder.deny, ladder.challenge) if hold is not None]
    for at in (ladder.at, ladder.end, ladder.grace_until, ladder.pass_until, *holds):
        if at is not None and not 0 <= at <= _LATEST:
            raise BadEvent("bad_time", f"a time of {shown(at)} ms")
    encode_state(state_from_ladder(ladder), NEVER)


async def write_ladders(
    store: SubjectStore,
    engine: Engine,
    ladders: Iterable[Ladder],
    now_ms: int,
    progress: Callable[[int, int], object] = lambda _done, _total: None,
) -> tuple[int, int, int]:
    """Write ladders back as states with their marks; (written, kept because newer was there, blocked now)."""
    written = kept = blocked = 0
    chunk: list[Write] = []
    pending = list(ladders)
    for start in range(0, len(pending), CHUNK):
        chunk = [_write(engine, ladder, now_ms) for ladder in pending[start : start + CHUNK]]
        for write, result in zip(chunk, await store.write(chunk), strict=True):
            if isinstance(result, Lost):
                kept += 1
                continue
            written += 1
            blocked += any(mark.name == "block" and mark.value is not None for mark in write.marks or ())
        progress(start + len(chunk), len(pending))
    return written, kept, blocked


def _write(engine: Engine, ladder: Ladder, now_ms: int) -> Write:
    """A write that a store with less than this ladder's version takes, and one with more refuses."""
    state = state_from_ladder(ladder)
    state.number = ladder.seq
    return Write(
        state.subject,
        ladder.seq,
        0,
        encode_state(state, next_nonce()),
        state_expiry(state, engine.policy, now_ms),
        engine.marks(state, now_ms),
        pending=False,
    )
