"""Replay of topics on a real broker: exactly up to where they ended, by time, and what is wrong told in sentences."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from penaltybox.cli import replay_parts
from penaltybox.cli.replay_job import Job, run_job
from penaltybox.cli.replay_parts import run_shared
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Control, Outcome, encode
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.links.kafka import Connection
from penaltybox.processors.broker import TopicPlan, ensure_topics
from tests.processors.replay.traffic import GENTLE, HOUSEHOLDS, Recorder, households, plainly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.events import Decision
    from penaltybox.processors.replay.loop import Result

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
PARTITIONS = 3


async def made(broker: Any, prefix: str) -> Settings:
    """Settings of a prefix of this test's own, with its topics."""
    settings = Settings(kafka=broker.bootstrap, kafka_partitions=PARTITIONS, topic_prefix=prefix)
    await ensure_topics(Connection.of(settings), Topics.named(prefix), TopicPlan.of(settings))
    return settings


async def publish(settings: Settings, events: Sequence[Decision | Outcome | bytes], partition: int | None = 0) -> None:
    """Publish to a partition, or (None) each household's events to one of its own."""
    topics = Topics.named(settings.topic_prefix)
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka, acks="all", linger_ms=5)
    await producer.start()
    try:
        for event in events:
            where = partition
            if where is None:
                assert not isinstance(event, bytes)
                where = int(event.id.partition("-")[0]) % PARTITIONS
            topic = topics.outcomes if isinstance(event, Outcome) else topics.decisions
            await producer.send(topic, event if isinstance(event, bytes) else encode(event), partition=where)
        await producer.flush()
    finally:
        await producer.stop()


async def replayed(settings: Settings, observer: Any = None, **options: Any) -> Result:
    return await run_job(Job(settings, HOUSEHOLDS, **options), observer=observer)


async def test_topics_give_what_the_engine_gives(broker: Any, fresh_prefix: str) -> None:
    """Decisions in three partitions lead to the penalties that the engine alone gives, twice the same."""
    settings = await made(broker, fresh_prefix)
    events = households()
    await publish(settings, events, None)
    recorder = Recorder()
    result = await replayed(settings, recorder)
    assert result.decisions == len(events)
    assert (await replayed(settings)).result_hash == result.result_hash
    expected = plainly(events, HOUSEHOLDS, now_ms())
    assert sorted(one.id for one in recorder.penalties["candidate"]) == sorted(one.id for one in expected)


async def test_a_single_record(broker: Any, fresh_prefix: str) -> None:
    """A topic with one record is replayed to its end; partitions without any do not hold it up."""
    settings = await made(broker, fresh_prefix)
    await publish(settings, households(60)[:1])
    assert (await replayed(settings)).decisions == 1


async def test_what_comes_meanwhile_is_not_in_it(broker: Any, fresh_prefix: str) -> None:
    """The end is where the topics ended at the start, to the record."""
    settings = await made(broker, fresh_prefix)
    events = households(900)
    await publish(settings, events[:500])

    class Meddler(Recorder):
        publishing: asyncio.Task[None] | None = None

        def decision(self, *given: Any) -> None:
            super().decision(*given)
            if self.publishing is None:
                self.publishing = asyncio.create_task(publish(settings, events[500:]))

    meddler = Meddler()
    result = await replayed(settings, meddler)
    assert meddler.publishing is not None
    await meddler.publishing
    assert result.decisions == 500
    assert (await replayed(settings)).decisions == 900


async def test_from_a_time(broker: Any, fresh_prefix: str) -> None:
    """--from counts from the broker's time on, with what came before as the warm-up; --to ends before its time."""
    settings = await made(broker, fresh_prefix)
    events = households(900)
    await publish(settings, events[:400])
    between = now_ms() + 2  # the millisecond before it, the shortest warm-up, is empty
    await asyncio.to_thread(_wait_until_ms, between)
    await publish(settings, events[400:])
    recorder = Recorder()
    later = await replayed(settings, recorder, from_ms=between)
    assert (later.warm_up_decisions, later.decisions) == (400, 500)
    assert [one[1] for one in recorder.told if one[0] == "decision"] == [event.id for event in events]
    cold = await replayed(settings, from_ms=between, warm_up_ms=1)
    assert (cold.warm_up_decisions, cold.decisions) == (0, 500)
    earlier = await replayed(settings, to_ms=between)
    assert earlier.decisions == 400


def _wait_until_ms(ms: int) -> None:
    while now_ms() <= ms:
        pass


async def test_outcomes_and_bad_records(broker: Any, fresh_prefix: str) -> None:
    """Outcomes come from their topic; records that cannot be judged are counted, with the place of the first."""
    settings = await made(broker, fresh_prefix)
    await publish(settings, [*households(300), b"nonsense"])
    outcome = Outcome(v=1, id="o1", ts=now_ms(), label="payment_ok", subjects={"user": "u0-0"})
    await publish(settings, [outcome], 1)
    recorder = Recorder()
    result = await replayed(settings, recorder)
    assert (result.decisions, result.outcomes, result.refused) == (300, 1, {"not_json": 1})
    assert recorder.told[-1] == ("outcome", "o1", True)


async def test_who_was_listed_by_hand(broker: Any, fresh_prefix: str) -> None:
    """The control topic tells who was on the allowlist in Redis: the report has them neither penalised nor counted."""
    settings = await made(broker, fresh_prefix)
    await publish(settings, households())
    recorder = Recorder()
    before = await replayed(settings, recorder)
    subject = recorder.penalties["candidate"][0].subject
    control = Control(id="1", ts=1, key=f"allow:{subject}", kind="allow", value="{}", actor="ann", reason="office")
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka, acks="all")
    await producer.start()
    try:
        topic = Topics.named(settings.topic_prefix).control
        await producer.send_and_wait(topic, encode(control), key=control.key.encode())
    finally:
        await producer.stop()
    listed = Recorder()
    after = await replayed(settings, listed)
    assert (after.decisions, after.first_ms, after.commands) == (before.decisions, before.first_ms, 0)
    wanted = sorted(one.id for one in recorder.penalties["candidate"] if one.subject != subject)
    assert sorted(one.id for one in listed.penalties["candidate"]) == wanted


async def test_outcomes_after_the_range_label_it(broker: Any, fresh_prefix: str) -> None:
    """Labels come later than what they are about: behind --to they are told to the report, and step nothing."""
    settings = await made(broker, fresh_prefix)
    events = households(900)
    await publish(settings, events)
    await asyncio.to_thread(_wait_until_ms, now_ms() + 2)
    to_ms = now_ms()
    await asyncio.to_thread(_wait_until_ms, to_ms + 2)
    late = Outcome(v=1, id="o1", ts=now_ms(), label="payment_ok", subjects=dict(events[0].subjects))
    await publish(settings, [late, events[1]])
    recorder = Recorder()
    result = await replayed(settings, recorder, to_ms=to_ms)
    assert (result.decisions, result.outcomes) == (900, 0)
    assert [one for one in recorder.told if one[0] == "outcome"] == [("outcome", "o1", True)]
    assert any("1 outcomes after --to" in remark for remark in result.remarks)
    assert result.result_hash == (await replayed(settings, to_ms=to_ms)).result_hash


async def test_topics_that_are_not_there(broker: Any, fresh_prefix: str) -> None:
    """A prefix without topics, and topics without records, are sentences; nothing is created."""
    settings = Settings(kafka=broker.bootstrap, topic_prefix=f"{fresh_prefix}-none")
    for _ in range(2):  # the first must not have created it
        with pytest.raises(ConfigurationError, match=r"has no topic .*-none.decisions.* `penaltybox setup` creates"):
            await replayed(settings)
    empty = await made(broker, fresh_prefix)
    with pytest.raises(ConfigurationError, match="there is nothing to replay"):
        await replayed(empty)


async def test_a_range_without_records(broker: Any, fresh_prefix: str) -> None:
    """Whoever mistakes a date reads in the sentence when there are records, before the range and after it."""
    settings = await made(broker, fresh_prefix)
    await publish(settings, households(50), None)
    for from_ms, to_ms in ((now_ms() + 3_600_000, None), (86_400_000, 2 * 86_400_000)):
        with pytest.raises(ConfigurationError, match=r"nothing to replay.* Its records are from 20\d\d-.* to 20"):
            await replayed(settings, from_ms=from_ms, to_ms=to_ms, warm_up_ms=1000)


async def test_several_processes(broker: Any, fresh_prefix: str) -> None:
    """Where every subject's events are in one partition, two processes find what one finds; the hash is the same."""
    settings = await made(broker, fresh_prefix)
    await publish(settings, households(), None)
    one = await replayed(settings, baseline=GENTLE)
    two = await run_shared(Job(settings, HOUSEHOLDS, GENTLE, processes=2))
    assert (two.processes, two.remarks) == (2, ["Shared out by partition between 2 processes."])
    assert two.result_hash == one.result_hash
    assert two.baseline is not None
    assert one.baseline is not None
    assert two.baseline == one.baseline
    assert (two.decisions, two.first_ms, two.last_ms) == (one.decisions, one.first_ms, one.last_ms)
    with pytest.raises(ConfigurationError, match=r"nothing lies between|nothing to replay"):
        await run_shared(Job(settings, HOUSEHOLDS, processes=2, from_ms=now_ms() + 60_000))


async def test_subjects_in_several_partitions(broker: Any, fresh_prefix: str) -> None:
    """Where they are not, the subjects are shared out instead, and it says why; the hash is that of one process."""
    settings = await made(broker, fresh_prefix)
    events = households(900)
    await publish(settings, events[:450], 0)
    await publish(settings, events[450:], 1)
    result = await run_shared(Job(settings, HOUSEHOLDS, processes=2))
    assert (result.processes, result.decisions) == (2, 900)
    assert any("by subject" in remark and "Not by partition: events of" in remark for remark in result.remarks)
    assert result.candidate == (await replayed(settings)).candidate


async def test_subjects_that_meet_late(
    broker: Any, fresh_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """That subjects are in several partitions may show at the end: then all is done again, by subject."""
    monkeypatch.setattr(replay_parts, "LOOKED_AT", 1)
    settings = await made(broker, fresh_prefix)
    events = households(3000)
    await publish(settings, events[:2900], 0)
    await publish(settings, events[2900:], 1)
    result = await run_shared(Job(settings, HOUSEHOLDS, processes=2))
    assert (result.processes, result.decisions) == (2, 3000)
    assert result.candidate == (await replayed(settings)).candidate
    assert any("met in several partitions, so all was done again" in remark for remark in result.remarks)


@pytest.mark.apache_kafka
async def test_transactions_and_deleted_records(broker: Any, fresh_prefix: str) -> None:
    """The marker of a transaction may stand at the end, and the beginning may be deleted: both are told and handled."""
    settings = await made(broker, fresh_prefix)
    topic = Topics.named(fresh_prefix).decisions
    events = households(900)
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka, transactional_id=fresh_prefix)
    await producer.start()
    try:
        for start in range(0, 900, 300):
            async with producer.transaction():
                for event in events[start : start + 300]:
                    await producer.send(topic, encode(event), partition=0)
    finally:
        await producer.stop()
    result = await replayed(settings)
    assert (result.decisions, result.remarks) == (900, [])
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(500)})
    finally:
        await admin.close()
    rest = await replayed(settings)
    assert rest.decisions == 401  # one offset of those before was a marker
    assert any("first 500 offsets" in remark and "deleted already" in remark for remark in rest.remarks)
    later = await replayed(settings, from_ms=now_ms() - 60_000)
    assert later.decisions == 401
    assert any("Records before" in remark and "deleted already" in remark for remark in later.remarks)


@pytest.mark.apache_kafka
async def test_an_emptied_topic(broker: Any, fresh_prefix: str) -> None:
    """A topic whose records are all deleted has nothing to replay, and the sentence says that they were deleted."""
    settings = await made(broker, fresh_prefix)
    await publish(settings, households(300))
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(Topics.named(fresh_prefix).decisions, 0): RecordsToDelete(300)})
    finally:
        await admin.close()
    with pytest.raises(ConfigurationError, match=r"nothing to replay\. .*300 offsets .* deleted already"):
        await replayed(settings)
