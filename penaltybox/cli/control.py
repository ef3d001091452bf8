"""Changes by hand, and their records for the control topic: in force at once, told as soon as Kafka is there.

The one way in which commands change what is no subject's ladder: pause, plans, lists, policy. A ladder's steps go
through `hand.execute` and are told by its outbox.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from penaltybox.cli.console import err
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import Control
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.topics import Topics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import Literal

    from penaltybox.contracts.settings import Settings
    from penaltybox.links.exchange import Command, Link
    from penaltybox.sinks.untold import Untold

    Kind = Literal["policy", "allow", "cidr", "pause", "resume", "override", "retry", "forget"]
KAFKA_S: Final = 5.0
"""A command does not wait longer for Kafka: a worker tells it."""


def control(kind: Kind, key: str, value: str = "", *, actor: str, reason: str) -> Control:
    """A record of what somebody does now."""
    at_ms = now_ms()
    return Control(id=ulid(at_ms), ts=at_ms, key=key, kind=kind, value=value, actor=actor, reason=reason)


@asynccontextmanager
async def opened(values: Settings) -> AsyncIterator[tuple[Link, Untold]]:
    """A way to Redis, and the list of what is untold, for as long as a command needs them."""
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.sinks.untold import Untold

    link = open_link(endpoint_of(values))
    try:
        yield link, Untold(link, values.redis_prefix)
    finally:
        await link.close()


async def commit(values: Settings, changes: Sequence[Command], records: Sequence[Control], *, say: str = "") -> None:
    """Change something in Redis and keep the records of it in the same step, then tell Kafka if it is there.

    See `Untold.commit` for the arguments.

    Raises:
        StoreUnavailable: Redis did not answer.
    """
    async with opened(values) as (_, untold):
        await untold.commit(changes, records, say=say)
        await tell(values, untold)


async def tell(values: Settings, untold: Untold) -> bool:
    """Tell the control topic what is untold, this command's records and older ones; False, and said, if it is away."""
    try:
        async with asyncio.timeout(KAFKA_S):
            await _tell(values, untold)
    except (StoreUnavailable, TimeoutError) as error:
        says = str(error) or f"Kafka at {values.kafka} did not answer within {KAFKA_S:g} s"
        err.print(
            f"In force, but the control topic does not know of it yet: {says}. The record is kept in Redis; a worker "
            "sends it when Kafka is back.",
            markup=False,
        )
        return False
    return True


async def _tell(values: Settings, untold: Untold) -> None:
    from aiokafka.errors import KafkaError

    from penaltybox.links.kafka import why_not
    from penaltybox.processors.announcements import kafka_sender
    from penaltybox.processors.untold import tell_untold

    sender = kafka_sender(values)
    try:
        await sender.start()
        await tell_untold(untold, sender, Topics.named(values.topic_prefix))
    except (KafkaError, OSError) as error:
        raise StoreUnavailable(f"Kafka at {values.kafka} {why_not(error)}") from error
    finally:
        await sender.stop()
