"""`forget`: nothing of the subject is left in Redis, ClickHouse and the compacted topics, and nothing else goes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.processors.put_back import newest_controls
from penaltybox.processors.restore import newest_ladders
from penaltybox.processors.topic_log import read_topic
from penaltybox.sinks.clickhouse.client import ClickHouse
from penaltybox.sinks.clickhouse.erasure import conditions
from penaltybox.sinks.redis_store import RedisSubjectStore
from tests.stack.test_by_hand import WHY, command
from tests.stack.test_command_line import settings
from tests.stack.test_restore import block, deny, running
from tests.waiting import wait_until

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings

pytestmark = pytest.mark.stack
__all__ = ["settings"]
KEYS = {
    "pbx:{user:u1}:l:claim:daily": "1",
    "pbx:{user:u1}:r:order-7": "1",
    "pbx:{device+user:d1+u1}:l:claim:burst": "1",
    "pbx:{user:u10}:l:claim:daily": "1",
    "pbx:{device+user:u1+d1}:l:claim:burst": "1",
    "pbx:{device:u1}:l:claim:daily": "1",
}
ROWS = """
INSERT INTO decisions (ts, id, user, device, subject, others) VALUES
 (now64(3), 'a', 'u1', 'd1', 'user:u1', map()), (now64(3), 'b', 'u10', 'd1', 'device:d1', map()),
 (now64(3), 'c', 'u2', 'u1', 'device+user:d1+u1', map()), (now64(3), 'd', 'u2', 'u1', 'user+device:u2+u1', map())
"""


async def store_all(values: Settings) -> RedisSubjectStore:
    """A plan, an allowlist entry, counters, rows of this and other subjects."""
    store = RedisSubjectStore(open_link(endpoint_of(values)))
    await store.link.exchange([("SET", key, value) for key, value in KEYS.items()])
    clickhouse = ClickHouse.of(values)
    clickhouse.command(ROWS)
    clickhouse.command("INSERT INTO outcomes (ts, id, subjects) VALUES (now64(3), 'a', ['user:u1', 'device:d1'])")
    clickhouse.command("INSERT INTO penalties (ts, id, subject) VALUES (now64(3), 'a', 'user:u1'), "
                       "(now64(3), 'b', 'user:u2')")  # fmt: skip
    clickhouse.command("""INSERT INTO dead_letters (ts, id, raw) VALUES (now64(3), 'a', '{"user":"u1"}'), """
                       """(now64(3), 'b', '{"user":"u10"}')""")  # fmt: skip
    clickhouse.close()
    await command(values, "allow", "add", "user:u1", *WHY)
    return store


def ids(values: Settings) -> dict[str, list[str]]:
    """Table -> ids that it has."""
    clickhouse = ClickHouse.of(values)
    found = {}
    for table in ("decisions", "outcomes", "penalties", "dead_letters"):
        assert table in conditions("a:b")
        rows = clickhouse.rows(f"SELECT id FROM {table}")  # noqa: S608 - our own tables
        found[table] = sorted(row["id"] for row in rows)
    clickhouse.close()
    return found


async def test_a_person_is_forgotten_everywhere(settings: Settings) -> None:
    """State, keys, list, rows and compacted records go, others' stay; the worker that remembers it starts anew."""
    async with running(settings):
        await deny(settings, "u1")
        store = RedisSubjectStore(open_link(endpoint_of(settings)))
        try:
            await command(settings, "ban", "user:u1", "--level", "permanent", *WHY)
            assert await block(store, "u1")
            topics = Topics.named(settings.topic_prefix)

            async def ladders() -> bool:
                return "user:u1" in await newest_ladders(read_topic(settings, topics.ladders))

            await wait_until(ladders, deadline_s=30)
            filled = await store_all(settings)
            await filled.close()
            planned = json.loads(await command(settings, "forget", "user:u1", "--dry-run", "--json", *WHY))
            assert (planned["erased"], planned["allowlisted"], planned["left"]) == (False, True, [])
            assert planned["keys"] == 3
            rows = {"decisions": 2, "outcomes": 1, "penalties": 1, "dead_letters": 1}
            assert planned["rows"] == rows | {"denials_10m": 0, "sightings_10m": 0, "challenges_10m": 0}
            told = " ".join((await command(settings, "forget", "user:u1", "--yes", *WHY)).split())
            assert "penalties 90d; penalties and control are the audit trail" in told
            assert ids(settings) == {"decisions": ["b", "d"], "outcomes": [], "penalties": ["b"], "dead_letters": ["b"]}
            ((_, keys),) = await store.link.exchange([("SCAN", "0", "MATCH", "pbx:{*u1*", "COUNT", "10000")])
            assert sorted(keys) == sorted(
                [key.encode() for key in KEYS if "user:u1}" not in key and "d1+u1" not in key]
                + [b"pbx:{user:u1}:state"]
            )
            assert await store.link.exchange([("HEXISTS", "pbx:allow", "user:u1")]) == [0]
            assert not await ladders()
            controls = await newest_controls(read_topic(settings, topics.control))
            assert "allow:user:u1" not in controls
            (record,) = [one for one in controls.values() if one.kind == "forget"]
            assert (record.value, record.actor) == ("user", "alice")
            explained = json.loads(await command(settings, "explain", "user:u1", "--json"))["now"]
            assert (explained["in_force"], explained["last_rung"]) == ([], "none")
        finally:
            await store.close()


async def test_what_could_not_be_erased_is_told(settings: Settings) -> None:
    """ClickHouse and Kafka away: the command says so and ends with 1, and Redis is clean all the same.

    Again with Kafka there: what waited in Redis and names the person goes before the tombstones, and nothing stays.
    """
    import msgspec  # noqa: PLC0415 - beside its only use

    store = RedisSubjectStore(open_link(endpoint_of(settings)))
    await store.join_generation()
    await command(settings, "ban", "user:u1", *WHY)
    away = msgspec.structs.replace(settings, clickhouse_url="http://127.0.0.1:1", kafka="127.0.0.1:1")
    await command(away, "allow", "add", "user:u1", *WHY)
    with pytest.raises(AssertionError) as told:
        await command(away, "forget", "user:u1", "--yes", *WHY)
    said = " ".join(str(told.value).split())
    assert "Not erased: ClickHouse" in said
    assert "Not erased: its records in the compacted topics" in said
    assert await block(store, "u1") is None
    await command(settings, "forget", "user:u1", "--yes", *WHY)
    controls = await newest_controls(read_topic(settings, Topics.named(settings.topic_prefix).control))
    assert "allow:user:u1" not in controls
    assert len([one for one in controls.values() if one.kind == "forget"]) == 2  # the first one's came with the second
    await store.close()
