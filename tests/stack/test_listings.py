"""The allowlist hides blocks that run already, and brings them back when a listing ends: on a real Redis."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Hold
from penaltybox.contracts.policy import AllowEntry
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.processors.engine import Engine
from penaltybox.processors.listings import Listings
from penaltybox.processors.state import SubjectState, encode_state, state_expiry
from penaltybox.processors.writer import next_nonce
from penaltybox.sinks.blocklist import Blocklist
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.subject_store import Write
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.stack
POLICY = parse_policy("rules: {}")
HOUR = 3_600_000
ADDRESSES = ("203.0.113.7", "203.0.114.7")


class Rig:
    """A Redis with three blocked subjects: an office's address, another address, a device."""

    def __init__(self, url: str, prefix: str) -> None:
        self.now = now_ms()
        self.link = open_link(parse_endpoint(url))
        self.store = RedisSubjectStore(self.link, prefix)
        self.blocklist = Blocklist(self.link, prefix)

    async def fill(self) -> None:
        await self.store.join_generation()
        for subject in (*(f"ip:{address}" for address in ADDRESSES), "device:d1"):
            state = SubjectState.fresh(subject)
            track = state.real
            track.rung, track.rung_ms, track.at, track.end = "1h", HOUR, self.now, self.now + HOUR
            track.deny = Hold(self.now + HOUR, "1h", "flood", "p1")
            state.settle()
            engine = Engine(POLICY)
            blob = encode_state(state, next_nonce())
            await self.store.write(
                [
                    Write(
                        subject, 0, 0, blob, state_expiry(state, POLICY, self.now), engine.marks(state, self.now), False
                    )
                ]
            )

    def listings(self, *entries: AllowEntry) -> Listings:
        engine = Engine(msgspec.structs.replace(POLICY, allow=entries))
        return Listings(engine, self.store, self.blocklist, lambda: self.now)

    async def blocked(self) -> set[str]:
        return {block.subject async for block in self.blocklist.blocks()}


@pytest.fixture
async def rig(redis_server: Any, fresh_prefix: str) -> AsyncIterator[Rig]:
    rig = Rig(redis_server.url, fresh_prefix)
    await rig.fill()
    yield rig
    await rig.store.close()


@asynccontextmanager
async def watching(listings: Listings) -> AsyncIterator[None]:
    task = asyncio.create_task(listings.watch(every_s=0.01))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_listed_subject_is_unblocked_at_once(rig: Rig) -> None:
    """Listed by name or by range, the bare key is gone as soon as a worker has the policy; others stay blocked."""
    entries = (AllowEntry(subject="device:d1"), AllowEntry(cidr="203.0.113.0/24"))
    async with watching(rig.listings(*entries)):

        async def hidden() -> bool:
            return await rig.blocked() == {"ip:203.0.114.7"}

        await wait_until(hidden)
    assert await rig.listings(*entries).set_right(entries) == 0


async def test_a_block_that_still_runs_is_back_when_the_listing_ends(rig: Rig) -> None:
    """The state keeps the block, so the end of a listing brings it back with its old end."""
    entries = (
        AllowEntry(subject="device:d1", until=rig.now + HOUR // 2),
        AllowEntry(cidr="203.0.113.0/24", until=rig.now + HOUR // 2),
    )
    async with watching(rig.listings(*entries)):

        async def hidden() -> bool:
            return await rig.blocked() == {"ip:203.0.114.7"}

        await wait_until(hidden)
        rig.now += HOUR // 2

        async def back() -> bool:
            return len(await rig.blocked()) == 3

        await wait_until(back)
    found = (await rig.blocklist.lookup(["device:d1"]))[0]
    assert found is not None
    assert found.until == rig.now + HOUR // 2


async def test_a_listing_that_ended_while_no_worker_ran_gives_the_block_back(rig: Rig) -> None:
    """The next worker that starts looks at ended entries too."""
    entries = (
        AllowEntry(subject="device:d1", until=rig.now + 1000),
        AllowEntry(cidr="203.0.113.7", until=rig.now + 1000),
    )
    await rig.listings(*entries).set_right(entries)
    assert await rig.blocked() == {"ip:203.0.114.7"}
    rig.now += 2000
    async with watching(rig.listings(*entries)):

        async def back() -> bool:
            return len(await rig.blocked()) == 3

        await wait_until(back)


async def test_another_policy_hides_and_shows_at_once(rig: Rig) -> None:
    """What only the last policy listed is blocked again, what the new one lists is hidden, without a restart."""
    listings = rig.listings(AllowEntry(subject="device:d1"))
    async with watching(listings):

        async def shows(*subjects: str) -> bool:
            return await rig.blocked() == set(subjects)

        await wait_until(lambda: shows("ip:203.0.113.7", "ip:203.0.114.7"))
        entry = AllowEntry(cidr="203.0.113.0/24")
        listings.replace_engine(Engine(msgspec.structs.replace(POLICY, allow=(entry,))))
        await wait_until(lambda: shows("device:d1", "ip:203.0.114.7"))
