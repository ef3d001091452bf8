"""Changes by hand and their records, on every kind of Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import Control, encode
from penaltybox.contracts.topics import TOPICS
from penaltybox.processors.untold import tell_untold
from penaltybox.sinks.untold import Untold
from tests.processors.worker_driver import RecordingSender

if TYPE_CHECKING:
    from tests.sinks.stores.conftest import RedisRig


def record(number: int) -> Control:
    return Control(id=f"id-{number:04}", ts=1, key="allow:user:1", kind="allow", actor="alice", reason="why")


def ids(sender: RecordingSender) -> list[str]:
    return [msgspec.json.decode(message.value or b"", type=Control).id for message in sender.messages]


async def test_a_change_and_its_record_are_one(redis_rig: RedisRig) -> None:
    """What was changed is in force, said on the channel, and its record goes to Kafka once."""
    untold = Untold(redis_rig.store().link, redis_rig.prefix)
    await redis_rig.announced()
    await untold.commit(
        [("HSET", untold.keys.allow, "user:1", "{}"), ("HSET", untold.keys.cidr, "192.0.2.0/24", "{}")],
        [record(1), record(2)],
        say="#lists",
    )
    assert await redis_rig.call("HGET", untold.keys.allow, "user:1") == b"{}"
    assert await redis_rig.call("HGET", untold.keys.cidr, "192.0.2.0/24") == b"{}"
    assert await redis_rig.announced() == ["#lists"]
    sender = RecordingSender()
    assert await tell_untold(untold, sender, TOPICS) == 2
    assert [(message.topic, message.key) for message in sender.messages] == [(TOPICS.control, b"allow:user:1")] * 2
    assert ids(sender) == ["id-0001", "id-0002"]
    assert await untold.size() == 0
    assert await tell_untold(untold, sender, TOPICS) == 0


async def test_what_kafka_did_not_take_is_told_later(redis_rig: RedisRig) -> None:
    """A broker that is away costs no record, and many of them come in their order."""
    untold, sender = Untold(redis_rig.store().link, redis_rig.prefix), RecordingSender()
    await untold.commit([], [record(number) for number in range(1200)])
    sender.away = True
    with pytest.raises(StoreUnavailable):
        await tell_untold(untold, sender, TOPICS)
    assert await untold.size() == 1200
    sender.away = False
    assert await tell_untold(untold, sender, TOPICS) == 1200
    assert ids(sender) == [f"id-{number:04}" for number in range(1200)]


async def test_one_tells_at_a_time(redis_rig: RedisRig) -> None:
    """While one has the list, another one leaves it alone; what it did not finish is the other's afterwards."""
    first, second = (Untold(redis_rig.store().link, redis_rig.prefix) for _ in range(2))
    await first.commit([], [record(1)])
    chunks = first.chunks()
    assert await anext(chunks) == [encode(record(1))]
    sender = RecordingSender()
    assert await tell_untold(second, sender, TOPICS) == 0
    await chunks.aclose()
    assert await tell_untold(second, sender, TOPICS) == 1


async def test_junk_in_the_list_costs_only_itself(redis_rig: RedisRig) -> None:
    """Somebody else's entry is dropped with a line in the log, and the records behind it are told."""
    untold, sender = Untold(redis_rig.store().link, redis_rig.prefix), RecordingSender()
    await redis_rig.call("RPUSH", untold.keys.untold, b"junk")
    await untold.commit([], [record(1)])
    assert await tell_untold(untold, sender, TOPICS) == 1
    assert await untold.size() == 0
