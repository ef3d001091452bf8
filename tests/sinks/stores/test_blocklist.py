"""Reading the blocklist back, from every kind of Redis."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.sinks.blocklist import Block, Blocklist, Progress
from penaltybox.sinks.subject_store import Mark, Written
from tests.sinks.stores.blobs import HOUR, block, write

if TYPE_CHECKING:
    from tests.sinks.stores.conftest import RedisRig


def value(until: int | None, rung: str = "5m", penalty: str = "p1") -> bytes:
    return json.dumps({"until": until, "rung": rung, "rule": "device_farm", "penalty": penalty}).encode()


async def test_every_block_is_listed_once(redis_rig: RedisRig) -> None:
    """500 blocks and challenges among other keys are each listed once, with end, rung and TTL."""
    store = redis_rig.store()
    now = await redis_rig.now()
    end = now + HOUR
    writes = []
    for i in range(500):
        blocked = (block(value(end), end),) if i % 2 else (Mark("challenge", value(end), end), Mark("pass", b"1", None))
        writes.append(write(f"device:d{i}", nonce=1, end=end, marks=blocked))
    await store.write(writes)
    steps: list[Progress] = []
    found = [block async for block in Blocklist(store.link, redis_rig.prefix).blocks(progress=steps.append)]
    assert sorted(block.subject for block in found) == sorted(f"device:d{i}" for i in range(500))
    assert {(block.kind, int(block.subject[8:]) % 2) for block in found} == {("deny", 1), ("challenge", 0)}
    assert {block[2:6] for block in found} == {(end, "5m", "device_farm", "p1")}
    assert all(block.ttl_ms is not None and HOUR - 60_000 < block.ttl_ms <= HOUR for block in found)
    assert steps[-1].examined == steps[-1].total
    assert steps[-1].found == 500


async def test_one_dimension_is_listed(redis_rig: RedisRig) -> None:
    """A listing of one dimension holds no other, whatever the values look like."""
    store = redis_rig.store()
    subjects = ["ip:203.0.113.7", "ip:2001:db8::/64", "user:ip%3A1", "device+ip:d1+203.0.113.7"]
    await store.write([write(subject, nonce=1, marks=(block(value(None)),)) for subject in subjects])
    found = [block.subject async for block in Blocklist(store.link, redis_rig.prefix).blocks("ip")]
    assert sorted(found) == sorted(subjects[:2])


async def test_lookup_takes_the_severe_one(redis_rig: RedisRig) -> None:
    """A deny comes before a challenge, a permanent block has neither end nor TTL, nobody else is blocked."""
    store = redis_rig.store()
    end = await redis_rig.now() + HOUR
    await store.write(
        [
            write("user:both", nonce=1, marks=(block(value(None, "permanent")), Mark("challenge", value(end), end))),
            write("user:challenged", nonce=1, marks=(Mark("challenge", value(end, "warn"), end),)),
            write("user:clean", nonce=1, marks=()),
        ]
    )
    both, clean, challenged, unknown = await Blocklist(store.link, redis_rig.prefix).lookup(
        ["user:both", "user:clean", "user:challenged", "user:unknown"]
    )
    assert both == Block("user:both", "deny", None, "permanent", "device_farm", "p1", None)
    assert clean is unknown is None
    assert challenged is not None
    assert (challenged.kind, challenged.until, challenged.rung) == ("challenge", end, "warn")
    assert await Blocklist(store.link, redis_rig.prefix).lookup([]) == []


async def test_an_unreadable_value_still_blocks(redis_rig: RedisRig) -> None:
    """The key's presence denies, so a listing shows it even if another program wrote nonsense into it."""
    await redis_rig.call("SET", redis_rig.key("user:odd", "block"), b"\xff{")
    blocklist = Blocklist(redis_rig.store().link, redis_rig.prefix)
    assert await blocklist.lookup(["user:odd"]) == [Block("user:odd", "deny", None, "", "", "", None)]
    assert [block.subject async for block in blocklist.blocks()] == ["user:odd"]


async def test_other_keys_are_not_listed(redis_rig: RedisRig) -> None:
    """Keys that merely look alike, and those of another prefix, are nobody's block."""
    for key in ("{1}:block", "{user:a}:block:x", "{user:a}:breaker"):
        await redis_rig.call("SET", f"{redis_rig.prefix}:{key}", b"{}")
    await redis_rig.call("SET", f"x{redis_rig.prefix}:{{user:a}}:block", b"{}")
    blocklist = Blocklist(redis_rig.store().link, redis_rig.prefix)
    assert [block.subject async for block in blocklist.blocks()] == []


async def test_a_hostile_subject_is_refused(redis_rig: RedisRig) -> None:
    """A lookup of a subject that isn't canonical is an error, not somebody else's block."""
    with pytest.raises(PenaltyboxError, match="canonical"):
        await Blocklist(redis_rig.store().link, redis_rig.prefix).lookup(["user:a}:block"])


async def test_a_key_of_another_type_hides_nobody(redis_rig: RedisRig, caplog: pytest.LogCaptureFixture) -> None:
    """A list where a block should be is left out with a warning that names the key; all others are listed."""
    store = redis_rig.store()
    await store.write([write(f"user:u{i}", nonce=1, marks=(block(value(None)),)) for i in range(20)])
    odd = redis_rig.key("user:odd", "block")
    await redis_rig.call("RPUSH", odd, "x")
    await redis_rig.call("SET", redis_rig.key("user:odd", "challenge"), value(None))
    blocklist = Blocklist(store.link, redis_rig.prefix)
    found = [(one.subject, one.kind) async for one in blocklist.blocks()]
    assert sorted(found) == sorted([("user:odd", "challenge"), *((f"user:u{i}", "deny") for i in range(20))])
    assert odd in caplog.text
    assert blocklist.odd == [odd]
    both, other, nobody = await blocklist.all_of(["user:odd", "user:u1", "user:nobody"])
    assert [one.kind for one in both] == ["challenge"]
    assert [one.kind for one in other] == ["deny"]
    assert nobody == []


async def test_a_key_of_another_type_keeps_no_block_away(redis_rig: RedisRig) -> None:
    """A block comes where another program's list was, permanent or not, and with its state; a lift takes it away."""
    store, end = redis_rig.store(), await redis_rig.now() + HOUR
    for number, (until, name) in enumerate(((end, "block"), (None, "challenge")), 1):
        subject = f"user:odd{number}"
        await redis_rig.call("RPUSH", redis_rig.key(subject, name), "x")
        (written,) = await store.write([write(subject, nonce=1, marks=(Mark(name, value(until), until),))])
        assert isinstance(written, Written)
        (found,) = await Blocklist(store.link, redis_rig.prefix).all_of([subject])
        assert [(one.until, one.penalty) for one in found] == [(until, "p1")]
        await redis_rig.call("DEL", redis_rig.key(subject, name))
        await redis_rig.call("RPUSH", redis_rig.key(subject, name), "x")
        read = (written.number, 1)
        (again,) = await store.write([write(subject, read, nonce=2, marks=(Mark(name, None, None),))])
        assert isinstance(again, Written)
        assert await redis_rig.call("EXISTS", redis_rig.key(subject, name)) == 0
