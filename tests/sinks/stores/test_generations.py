"""Generations of a store: one is begun, joined, and noticed when it is another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import GenerationMismatch
from penaltybox.sinks.subject_store import Written
from tests.sinks.stores.blobs import block, put_first, write

if TYPE_CHECKING:
    from tests.sinks.stores.conftest import Rig

A = "ip:203.0.113.7"
B = "user:10086"
NONCE = 1 << 40


async def test_workers_join_one_generation(rig: Rig) -> None:
    """The first worker starts a generation, the others join it."""
    one, two = rig.store(), rig.store()
    assert await one.generation() is None
    started, joined = await asyncio.gather(one.join_generation(), two.join_generation())
    assert started == joined == await rig.store().generation()
    assert await rig.store().join_generation(known=started) == started


async def test_a_wiped_store_is_noticed(rig: Rig) -> None:
    """After a wipe nothing is written, not even as if for the first time."""
    store = rig.store()
    await put_first(store)
    await rig.wipe()
    with pytest.raises(GenerationMismatch):
        await store.write([write(B, nonce=NONCE, marks=(block(b"x"),))])
    assert await store.read([A, B]) == [None, None]
    assert await rig.get(B, "block") is None


async def test_a_swapped_store_is_noticed(rig: Rig) -> None:
    """A store with another generation takes no write until the worker joins it knowingly."""
    store = rig.store()
    await put_first(store)
    await rig.store().begin_generation("another")
    with pytest.raises(GenerationMismatch):
        await store.write([write(B, nonce=NONCE)])
    assert await store.join_generation() == "another"
    (written,) = await store.write([write(B, nonce=NONCE)])
    assert isinstance(written, Written)


async def test_an_unknown_generation_is_not_joined(rig: Rig) -> None:
    """A worker that remembers its generation joins no other one, and starts none on an empty store."""
    store = rig.store()
    with pytest.raises(GenerationMismatch, match="wanted 'mine'"):
        await store.join_generation(known="mine")
    assert await store.generation() is None
    await rig.store().begin_generation("other")
    with pytest.raises(GenerationMismatch, match="'other', wanted 'mine'"):
        await store.join_generation(known="mine")


async def test_nobody_joins_in_mid_restore(rig: Rig) -> None:
    """While a restore runs, only who knows its generation may write; afterwards everybody."""
    restorer, worker = rig.store(), rig.store()
    await restorer.begin_generation("restoring:1")
    with pytest.raises(GenerationMismatch, match="being restored"):
        await worker.join_generation()
    await put_first(restorer)
    await restorer.begin_generation("two")
    assert await worker.join_generation() == "two"
