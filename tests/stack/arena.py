"""Workers as processes on real servers, and what they left behind set against the oracle."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
from aiokafka import AIOKafkaProducer

from penaltybox.cli.fleet import group_lag
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import Ladder, Penalty, encode
from penaltybox.contracts.policy_file import load_policy
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.embedded.process import GuardedProcess
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.links.kafka import Connection
from penaltybox.processors.broker import TopicPlan, ensure_topics
from penaltybox.processors.state import SubjectState, decode_state, ladder_record
from penaltybox.processors.topic_log import read_topic
from penaltybox.sinks.redis_store import RedisSubjectStore
from tests.oracle.judge import Oracle
from tests.stack.households import POLICY
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence

    from tests.oracle.person import Person
    from tests.stack.households import Placed

PARTITIONS = 8
PATIENCE_S = 120


class Found(NamedTuple):
    """What the workers left: per subject the state, the block, the penalties' ids (first occurrence of each)."""

    states: dict[str, SubjectState]
    blocks: dict[str, dict[str, Any]]
    penalties: dict[str, list[Penalty]]
    told_twice: int


class Arena:
    """Topics, a key space and worker processes of one test. Use as an async context manager."""

    def __init__(self, broker: Any, redis: Any, prefix: str, folder: Path) -> None:
        policy = folder / "policy.yaml"
        policy.write_text(POLICY, encoding="utf-8")
        self.policy = load_policy(policy)
        self.settings = Settings(
            kafka=broker.bootstrap,
            kafka_partitions=PARTITIONS,
            kafka_session_timeout_ms=2000,
            redis_url=redis.url,
            redis_prefix=prefix,
            topic_prefix=prefix,
            policy=str(policy),
            stop_timeout_s=6,
        )
        self.topics = Topics.named(prefix)
        self.folder = folder
        self.workers: list[GuardedProcess] = []
        self.journals: list[Path] = []
        self.store = RedisSubjectStore(open_link(endpoint_of(self.settings)), prefix)
        self._names = 0
        self.left = (0, 0)

    async def __aenter__(self) -> Self:
        await ensure_topics(Connection.of(self.settings), self.topics, TopicPlan.of(self.settings))
        self.producer = AIOKafkaProducer(bootstrap_servers=self.settings.kafka, linger_ms=2)
        await self.producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(asyncio.to_thread(worker.kill) for worker in self.workers))
        await self.producer.stop()
        await self.store.close()

    # --- workers

    async def start_worker(self, death: str = "-", *, journal: bool = False, wait: bool = True) -> GuardedProcess:
        """One more worker, when (with `wait`) it has got partitions; `death` is SEAM:N."""
        self._names += 1
        sign = self.folder / f"sign-{self._names}"
        script = Path(__file__).with_name("penalties_process.py")
        command = [sys.executable, str(script), msgspec.json.encode(self.settings).decode(), death, str(sign)]
        if journal:
            self.journals.append(self.folder / f"journal-{self._names}")
            command.append(str(self.journals[-1]))
        worker = GuardedProcess(
            command,
            log_path=self.folder / f"worker-{self._names}.log",
            environment={"PYTHONPATH": str(Path(__file__).parents[2])},
            grace_s=15,
        )
        await asyncio.to_thread(worker.start)
        self.workers.append(worker)

        def at_work() -> bool:
            assert worker.running or death != "-", self.log_of(worker)
            return sign.exists() or not worker.running

        if wait:
            await wait_until(at_work, PATIENCE_S, "partitions for the new worker")
        return worker

    async def kill(self, worker: GuardedProcess) -> None:
        await asyncio.to_thread(worker.kill)
        self.workers.remove(worker)

    async def stop(self, worker: GuardedProcess) -> None:
        """End it in good order."""
        await asyncio.to_thread(worker.stop)
        self.workers.remove(worker)
        assert worker.exit_code == 0, self.log_of(worker)

    async def alive_until(self, worker: GuardedProcess, deadline_s: float) -> None:
        """Wait until the worker has died, or for so long."""
        until = time.monotonic() + deadline_s
        await wait_until(lambda: not worker.running or time.monotonic() > until, deadline_s + 5)

    async def died(self, worker: GuardedProcess) -> None:
        """Wait until the worker has killed itself at its seam."""
        await wait_until(lambda: not worker.running, PATIENCE_S, "the worker's death at its seam")
        self.workers.remove(worker)
        assert worker.exit_code == -9, self.log_of(worker)

    def log_of(self, worker: GuardedProcess) -> str:
        return worker.log_path.read_text(encoding="utf-8", errors="replace")[-3000:]

    # --- records

    async def publish(self, placed: Iterable[Placed], *, copies: int = 1, spread: bool = False) -> None:
        """Publish decisions: by household, or `spread` over partitions by something else than any subject."""
        sends = []
        for number, (household, decision) in enumerate(placed):
            partition = number % PARTITIONS if spread else household % PARTITIONS
            value = encode(decision)
            sends += [
                await self.producer.send(self.topics.decisions, value, partition=partition) for _ in range(copies)
            ]
        await asyncio.gather(*sends)

    async def lag(self) -> int:
        """Records that no worker has committed yet."""
        async with group_lag(self.settings, "penalties", [self.topics.decisions]) as group:
            return await group.records()

    async def finished(self) -> None:
        """Wait until all is committed and no outbox has anything left."""
        async with group_lag(self.settings, "penalties", [self.topics.decisions]) as group:

            async def done() -> bool:
                for worker in self.workers:
                    assert worker.running, self.log_of(worker)
                self.left = (await group.records(), len(await self.store.pending(0)))
                return self.left == (0, 0)

            try:
                await wait_until(done, PATIENCE_S, "everything committed, every outbox told")
            except AssertionError as error:
                logs = "\n".join(self.log_of(worker) for worker in self.workers)
                raise AssertionError(f"{error} (records, outboxes) left: {self.left}\n{logs}") from error

    async def records(self, topic: str) -> AsyncIterator[tuple[int, bytes]]:
        """All records of a topic: (timestamp, value), those of each partition in order."""
        async for record in read_topic(self.settings, topic):
            yield record.timestamp, record.value or b""

    # --- what is left, and what should be

    async def oracle(self) -> Oracle:
        """The oracle after all that is on the topic, in the order in which it is there."""
        oracle = Oracle(self.policy)
        async for broker_ms, raw in self.records(self.topics.decisions):
            with suppress(BadEvent):
                oracle.judge(decode_decision(raw, broker_ms, oracle.canonicaliser), broker_ms)
        return oracle

    async def keys(self) -> list[bytes]:
        """All keys under the prefix."""
        found: list[bytes] = []
        cursor = b"0"
        while True:
            ((cursor, keys),) = await self.store.link.exchange(
                [("SCAN", cursor, "MATCH", f"{self.settings.redis_prefix}:{{*", "COUNT", "1000")]
            )
            found += keys
            if cursor == b"0":
                return found

    async def found(self, subjects: Sequence[str]) -> Found:
        """What the workers left of these subjects."""
        states, blocks = {}, {}
        for start in range(0, len(subjects), 2000):
            chunk = subjects[start : start + 2000]
            blobs = await self.store.read(chunk)
            keys = [("GET", f"{self.settings.redis_prefix}:{{{subject}}}:block") for subject in chunk]
            values = await self.store.link.exchange(keys)
            states |= {one: decode_state(blob) for one, blob in zip(chunk, blobs, strict=True) if blob}
            blocks |= {one: msgspec.json.decode(value) for one, value in zip(chunk, values, strict=True) if value}
        penalties: dict[str, list[Penalty]] = defaultdict(list)
        seen: set[tuple[str, str]] = set()
        told_twice = 0
        async for _, raw in self.records(self.topics.penalties):
            penalty = msgspec.json.decode(raw, type=Penalty)
            if (penalty.subject, penalty.id) in seen:
                told_twice += 1
            else:
                seen.add((penalty.subject, penalty.id))
                penalties[penalty.subject].append(penalty)
        return Found(states, blocks, dict(penalties), told_twice)

    async def ladders(self) -> dict[str, Ladder]:
        """Of each subject the ladder record with the highest version."""
        newest: dict[str, Ladder] = {}
        async for _, raw in self.records(self.topics.ladders):
            if raw:
                ladder = msgspec.json.decode(raw, type=Ladder)
                if ladder.subject not in newest or ladder.seq >= newest[ladder.subject].seq:
                    newest[ladder.subject] = ladder
        return newest

    async def check(self, oracle: Oracle, leave_out: Collection[str] = ()) -> Found:
        """States, blocks and penalties are the oracle's; every stored ladder was told."""
        found = await self.found([subject for subject in oracle.people if subject not in leave_out])
        differences = list(compare(oracle, found, now_ms(), leave_out))
        newest = await self.ladders()
        for subject, state in found.states.items():
            record = ladder_record(state)
            if record is not None and record.at:
                told = newest.get(subject)
                if told is None or (told.at, told.rung, told.end) != (record.at, record.rung, record.end):
                    differences.append(f"{subject}: ladder {record} was told as {told}")
        assert not differences, f"{len(differences)} differences, the first:\n" + "\n".join(differences[:10])
        return found


def compare(oracle: Oracle, found: Found, at_ms: int, leave_out: Collection[str] = ()) -> Iterator[str]:
    """Sentences about everything in which they differ."""
    expected: dict[str, list[Penalty]] = defaultdict(list)
    for penalty in oracle.penalties:
        expected[penalty.subject].append(penalty)
    for subject in sorted((expected.keys() | found.penalties.keys()) - set(leave_out)):
        theirs = [brief(one) for one in found.penalties.get(subject, [])]
        ours = [brief(one) for one in expected.get(subject, [])]
        if ladders_of(theirs) != ladders_of(ours):
            yield f"{subject}: penalties {theirs}, wanted {ours}"
    for subject, person in oracle.people.items():
        if subject not in leave_out:
            state = found.states.get(subject, SubjectState.fresh(subject))
            yield from compare_ladder(person, state)
            here, there = counted_by_engine(state), counted_by_oracle(oracle, subject)
            if here != there:
                yield f"{subject}: counts {here}, wanted {there}"
            yield from compare_block(person, found.blocks.get(subject), at_ms)


def compare_ladder(person: Person, state: SubjectState) -> Iterator[str]:
    real, wanted = state.real, person.real
    here = (real.rung or None, real.rung_ms, real.at, real.end, real.deny, real.challenge)
    there = (wanted.rung, wanted.rung_ms, wanted.at, wanted.end, wanted.deny, wanted.challenge)
    if here != there:
        yield f"{person.subject}: state {here}, wanted {there}"
    if state.outbox:
        yield f"{person.subject}: outbox {state.outbox}"


def compare_block(person: Person, block: dict[str, Any] | None, at_ms: int) -> Iterator[str]:
    """A block is there exactly while the oracle's denial runs; within a minute of its end either will do."""
    deny = person.real.deny
    runs = deny is not None and (deny.until is None or deny.until > at_ms + 30_000)
    over = deny is None or (deny.until is not None and deny.until < at_ms - 30_000)
    here = None if block is None else (block["until"], block["rung"], block["rule"], block["penalty"])
    if (runs and here != tuple(msgspec.to_builtins(deny))) or (over and block is not None):
        yield f"{person.subject}: block {block}, wanted {deny}"


def brief(penalty: Penalty) -> tuple[bool, str, str, str]:
    return penalty.shadow, penalty.id, penalty.action, penalty.to


def ladders_of(penalties: list[tuple[bool, str, str, str]]) -> tuple[list[Any], list[Any]]:
    """Real and shadow penalties, each in their order."""
    return [one for one in penalties if not one[0]], [one for one in penalties if one[0]]


def counted_by_engine(state: SubjectState) -> dict[int, Any]:
    real = state.real
    found: dict[int, Any] = {key: dict(values) for key, values in real.sets.items() if values}
    for key, counter in real.counters.items():
        if counter.ids:
            found[key] = sorted(zip(counter.times, counter.ids, counter.weights, strict=True))
    return found


def counted_by_oracle(oracle: Oracle, subject: str) -> dict[int, Any]:
    """What the lists of the oracle come to when only what can still matter is kept, as the engine does."""
    rules = {rule.key: rule for rule in oracle.policy.rules}
    found: dict[int, Any] = {}
    for key, entries in oracle.people[subject].real.counted.items():
        rule = rules[key]
        if rule.kind == "distinct":
            values: dict[int, int] = {}
            for entry in entries:
                granule = entry.t // entry.granule_ms * entry.granule_ms
                values[entry.value or 0] = max(granule, values.get(entry.value or 0, 0))
            horizon = max(values.values()) - rule.window_ms
            newest = sorted(((g, value) for value, g in values.items() if g > horizon), reverse=True)[: rule.n]
            found[key] = {value: granule for granule, value in newest}
        else:
            latest = max(entry.t for entry in entries)
            kept = sorted((one.t, one.id, one.weight) for one in entries if one.t > latest - rule.window_ms)
            while sum(weight for _, _, weight in kept[1:]) >= rule.n:
                del kept[0]
            found[key] = kept
    return found
