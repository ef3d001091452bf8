"""Tells the control topic what was changed by hand: the records that commands keep in Redis (`sinks.untold`)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import Control
from penaltybox.processors.announcements import Message

if TYPE_CHECKING:
    from penaltybox.contracts.topics import Topics
    from penaltybox.processors.announcements import Sender
    from penaltybox.sinks.untold import Untold

log = logging.getLogger(__name__)
EVERY_S: Final = 1.0
_SEND_S: Final = 10.0
"""Well below the time for which whoever tells has the list for itself."""


async def tell_untold(untold: Untold, sender: Sender, topics: Topics) -> int:
    """Send what waits, oldest first; how many records that were. None while another one sends.

    Raises:
        StoreUnavailable: Redis or Kafka did not answer; what was not sent stays.
    """
    count = 0
    async with aclosing(untold.chunks()) as chunks:
        async for records in chunks:
            messages = [one for one in (_message(topics, record) for record in records) if one is not None]
            try:
                async with asyncio.timeout(_SEND_S):
                    await sender.send(messages)
            except TimeoutError as error:
                raise StoreUnavailable(f"Kafka did not take {len(messages)} records within {_SEND_S:g} s") from error
            count += len(messages)
    return count


def _message(topics: Topics, record: bytes) -> Message | None:
    try:
        key = msgspec.json.decode(record, type=Control).key
    except msgspec.MsgspecError as error:
        log.warning("A record in the list of what is to be told is no control record, left out: %s", error)
        return None
    return Message(topics.control, key.encode(), record)


async def keep_telling(untold: Untold, sender: Sender, topics: Topics, every_s: float = EVERY_S) -> None:
    """Look every second, for ever: a command that found Kafka away has left its record."""
    while True:
        await asyncio.sleep(every_s)
        try:
            count = await tell_untold(untold, sender, topics)
        except StoreUnavailable as error:
            log.debug("What was changed by hand is told later: %s", error)
            continue
        if count:
            log.info("Told the control topic of %d changes by hand", count)
