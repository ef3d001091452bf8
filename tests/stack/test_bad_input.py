"""The corpus of malformed records through a real worker: each becomes a dead letter, and the worker goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import DeadLetter, encode
from penaltybox.processors.announcements import MAX_LETTER_BYTES
from tests.contracts.test_decoding import BAD, raw_of
from tests.stack.arena import Arena
from tests.stack.households import decisions

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.stack


async def test_every_malformed_record_becomes_a_dead_letter(
    broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path
) -> None:
    """Between good decisions nothing is dropped without a trace: raw bytes, reason and place are told."""
    entries = [entry for entry in BAD if entry["why"] != "5 minutes and 1 ms ahead"]  # of a clock that stood then
    good = decisions(600, now_ms())
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        await arena.publish(good[:300])
        for number, entry in enumerate(entries):
            await arena.producer.send(arena.topics.decisions, raw_of(entry), partition=number % 8)
        await arena.publish(good[300:])
        await arena.finished()
        letters = [
            msgspec.json.decode(raw, type=DeadLetter) async for _, raw in arena.records(arena.topics.dead_letters)
        ]
        told = sorted((letter.reason, letter.raw) for letter in letters)
        assert told == sorted((entry["reason"], raw_of(entry)) for entry in entries)
        assert all(letter.detail and letter.topic == arena.topics.decisions for letter in letters)
        assert len({(letter.partition, letter.offset) for letter in letters}) == len(letters)
        bad = {raw_of(entry) for entry in entries}
        values = [value async for _, value in arena.records(arena.topics.decisions) if value not in bad]
        assert sorted(values) == sorted(encode(decision) for _, decision in good)
        await arena.check(await arena.oracle())


async def test_a_record_as_large_as_brokers_take_stops_nobody(
    broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path
) -> None:
    """Its letter, half as long again in base64, would be larger than any broker takes: it keeps the beginning."""
    good = decisions(100, now_ms())
    huge = b"\xff" * 1_000_000
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        await arena.producer.send(arena.topics.decisions, huge, partition=0)
        await arena.publish(good)
        await arena.finished()
        (letter,) = [
            msgspec.json.decode(raw, type=DeadLetter) async for _, raw in arena.records(arena.topics.dead_letters)
        ]
        assert letter.reason == "too_large"
        assert letter.raw == huge[:MAX_LETTER_BYTES]
