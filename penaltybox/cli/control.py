"""Records for the control topic: what was changed by hand, by whom and why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penaltybox.cli.console import err
from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import Control, encode
from penaltybox.contracts.topics import Topics

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings


def record(values: Settings, control: Control) -> None:
    """Tells the control topic. The change is in force without that too; that it is not recorded is said."""
    try:
        asyncio.run(_send(values, control))
    except StoreUnavailable as error:
        err.print(f"Not recorded in the control topic: {error}", markup=False)


async def _send(values: Settings, control: Control) -> None:
    from aiokafka.errors import KafkaError

    from penaltybox.processors.announcements import Message, kafka_sender

    sender = kafka_sender(values)
    try:
        await sender.start()
        message = Message(Topics.named(values.topic_prefix).control, control.key.encode(), encode(control))
        await sender.send([message])
    except (KafkaError, OSError) as error:
        raise StoreUnavailable(f"Kafka at {values.kafka} does not answer: {error}") from error
    finally:
        await sender.stop()
