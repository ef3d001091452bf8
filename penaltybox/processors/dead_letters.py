"""Dead letters read back, and put on their topics again once whatever was wrong is corrected.

Ids make a retry harmless: a decision that was judged meanwhile is known within its window, and history after it.
"""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penaltybox.contracts.decoding import decode_decision, decode_outcome
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import DeadLetter
from penaltybox.contracts.topics import Topics, record_key
from penaltybox.processors.announcements import MAX_LETTER_BYTES, Message
from penaltybox.processors.topic_log import read_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from penaltybox.contracts.settings import Settings
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.processors.announcements import Sender

log = logging.getLogger(__name__)
CHUNK: Final = 500


class Placed(NamedTuple):
    """A dead letter and where it lies."""

    partition: int
    offset: int
    letter: DeadLetter


class Verdict(NamedTuple):
    """What a retry of a letter would do: a message to send, or why not."""

    message: Message | None
    says: str


async def letters(settings: Settings, newest: int | None = None) -> AsyncIterator[Placed]:
    """Dead letters in the order of each partition; with `newest` only so many from the end of each.

    Raises:
        KafkaError: the broker cannot be reached.
    """
    async for record in read_topic(settings, Topics.named(settings.topic_prefix).dead_letters, newest):
        try:
            letter = msgspec.json.decode(record.value or b"", type=DeadLetter)
        except (msgspec.MsgspecError, RecursionError) as error:
            log.warning("Partition %d, offset %d: no dead letter, left out: %s", record.partition, record.offset, error)
            continue
        yield Placed(record.partition, record.offset, letter)


async def newest_letters(
    settings: Settings, limit: int, wanted: Callable[[Placed], bool] | None = None
) -> list[Placed]:
    """The newest letters that are wanted, newest first; raises as `letters` does."""
    found: list[tuple[tuple[int, int, int], Placed]] = []
    async for one in letters(settings, None if wanted else limit):
        if wanted is None or wanted(one):
            entry = ((one.letter.ts, one.partition, one.offset), one)
            if len(found) < limit:
                heapq.heappush(found, entry)
            else:
                heapq.heappushpop(found, entry)
    return [one for _, one in sorted(found, reverse=True)]


def verdict(letter: DeadLetter, topics: Topics, canonicaliser: Canonicaliser, now_ms: int, *, force: bool) -> Verdict:
    """Whether the record can be judged now, by the code and settings of today.

    Args:
        letter: the letter; its topic is believed only if it is one that workers read.
        topics: names.
        canonicaliser: how subjects count.
        now_ms: when it would be sent.
        force: send it although it could not be judged.
    """
    if letter.topic not in (topics.decisions, topics.outcomes):
        return Verdict(None, f"it came from {letter.topic[:80]!r}, which is none of the topics of these settings")
    if len(letter.raw) >= MAX_LETTER_BYTES:
        return Verdict(None, "only its beginning was kept")
    decode: Any = decode_decision if letter.topic == topics.decisions else decode_outcome
    try:
        event = decode(letter.raw, now_ms, canonicaliser)
    except BadEvent as error:
        if not force:
            return Verdict(None, f"it still cannot be judged: {error}")
        return Verdict(Message(letter.topic, None, letter.raw), "sent as it is")
    return Verdict(Message(letter.topic, record_key(event.subjects, canonicaliser), letter.raw), "it can be judged now")


async def resend(sender: Sender, messages: Iterable[Message], progress: Callable[[int], object]) -> int:
    """Send them; how many.

    Raises:
        StoreUnavailable: Kafka did not take all; sending them again is harmless.
    """
    todo = list(messages)
    for start in range(0, len(todo), CHUNK):
        await sender.send(todo[start : start + CHUNK])
        progress(min(start + CHUNK, len(todo)))
    return len(todo)
