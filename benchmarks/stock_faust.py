"""`stock_faust`: decisions/s of the better of two plain Faust agents that do the pipeline's job.

Stock transport, one message an event: `async for` over single events, and `take(1000)`. Same decoding, engine, state
codec and store; states cached without a bound, missing ones read for a whole batch, changed ones written 1,000 events
at a time in one pipelined call (the `async for` agent too, so it is faster than one that writes event by event).
Left out in their favour: outboxes, penalties and ladders to Kafka, verification, lost races.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import TYPE_CHECKING, Any, cast

import faust
import msgspec
from faust.app.base import BootStrategy

from benchmarks.stack import publish, report, stack
from benchmarks.workload import encoded
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.decoding import decode_decisions
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.processors.engine import CHANGED, MARKS, PENALTY, Handling
from penaltybox.processors.penalties import make_engine, tune_process
from penaltybox.processors.remedies import marks_of
from penaltybox.processors.state import SubjectState, decode_state, encode_state, state_expiry
from penaltybox.processors.writer import next_nonce
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.subject_store import Write, Written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.events import Decision
    from penaltybox.contracts.subjects import Names

WARM = 100_000
"""As in `penalties_pipeline`: most subjects are new before, and cost more."""
COUNT = 40_000
BATCH = 1000


class Boot(BootStrategy):
    """No web server."""

    enable_web = False


class Plain(faust.App):
    """A stock app."""

    BootStrategy = Boot


class Job:
    """What both agents do with decisions: decode, read what is missing, step, write what changed."""

    def __init__(self, settings: Settings) -> None:
        self.engine = make_engine(settings)
        self.store = RedisSubjectStore(open_link(endpoint_of(settings)), settings.redis_prefix)
        self.states: dict[str, SubjectState] = {}
        self.dirty: dict[str, int] = {}
        self.done = 0
        self._unwritten = 0

    async def handle(self, values: Sequence[bytes]) -> None:
        """Handle decisions; write when 1,000 have come together."""
        now, touched = now_ms(), []
        for one in decode_decisions(values, [now] * len(values), self.engine.canonicaliser):
            decision, names = cast("tuple[Decision, Names]", one)
            touched.append((decision, names, self.engine.touches(decision, names)))
        missing = list({s for _, _, touches in touched for s, _ in touches if s not in self.states})
        if missing:
            for subject, blob in zip(missing, await self.store.read(missing), strict=True):
                self.states[subject] = SubjectState.fresh(subject) if blob is None else decode_state(blob)
        for decision, names, touches in touched:
            for subject, plan in touches:
                effect = self.engine.apply(self.states[subject], plan, decision, Handling(now), names)
                if effect & (CHANGED | PENALTY | MARKS):
                    self.dirty[subject] = self.dirty.get(subject, 0) | effect
        self._unwritten += len(values)
        if self._unwritten >= BATCH:
            await self.write()
        self.done += len(values)

    async def write(self) -> None:
        """Write all that changed in one call."""
        self._unwritten = 0
        policy, now, sent = self.engine.policy, now_ms(), []
        for subject, effect in self.dirty.items():
            state, nonce = self.states[subject], next_nonce()
            state.outbox = []
            marks = marks_of(policy, state, now) if effect & (PENALTY | MARKS) else None
            read = state.nonce if state.read_number else 0
            blob, expiry = encode_state(state, nonce), state_expiry(state, policy, now)
            sent.append((state, nonce, Write(subject, state.read_number, read, blob, expiry, marks, pending=False)))
        self.dirty = {}
        for (state, nonce, _), result in zip(sent, await self.store.write([w for _, _, w in sent]), strict=True):
            if isinstance(result, Written):
                state.number, state.nonce = result.number, nonce


async def measure(settings: Settings, style: str) -> float:
    """Decisions/s of one agent over `COUNT` decisions after `WARM`."""
    job = Job(settings)
    app = Plain(
        f"stock-{style}",
        broker=f"kafka://{settings.kafka}",
        broker_session_timeout=3.0,
        broker_heartbeat_interval=0.75,
        topic_disable_leader=True,
        topic_allow_declare=False,
        web_enabled=False,
        autodiscover=False,
        datadir="/tmp/stock-faust",  # noqa: S108 - Faust makes it and nothing is put there
    )
    topic = app.topic(Topics.named(settings.topic_prefix).decisions, value_serializer="raw", key_serializer="raw")
    if style == "take":

        @app.agent(topic)
        async def taking(stream: Any) -> None:
            async for values in stream.take(BATCH, within=0.1):
                await job.handle(values)
    else:

        @app.agent(topic)
        async def iterating(stream: Any) -> None:
            async for value in stream:
                await job.handle([value])

    await job.store.join_generation()
    await app.start()
    try:
        while job.done < WARM:  # noqa: ASYNC110 - the agent is left as it is
            await asyncio.sleep(0.005)
        done, start = job.done, time.perf_counter()
        while job.done < WARM + COUNT:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return (job.done - done) / (time.perf_counter() - start)
    finally:
        await app.stop()
        await job.store.close()


async def run(settings: Settings, style: str) -> float:
    """Measure one style in a process of its own."""
    arguments = ["-m", "benchmarks.stock_faust", json.dumps(msgspec.to_builtins(settings)), style]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return float(output)


async def peers() -> dict[str, float]:
    """Both styles, each on a fresh stack."""
    found = {}
    for style in ("async_for", "take"):
        async with stack() as settings:
            await publish(settings, encoded(WARM + COUNT + 2 * BATCH, now_ms()))
            found[style] = await run(settings, style)
    return found


async def main() -> None:
    """The pipeline beside the better of the two, in the same run."""
    from benchmarks.penalties_pipeline import pipeline  # noqa: PLC0415 - the child process does not need it

    found = await peers()
    ours, _ = await pipeline("uniform")
    report("stock_faust_async_for", found["async_for"], "decisions/s")
    report("stock_faust_take", found["take"], "decisions/s")
    report("stock_faust", ours["rate"], "decisions/s", "better of two plain Faust agents", max(found.values()))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        tune_process()
        gc.collect()
        rate = asyncio.run(measure(msgspec.convert(json.loads(sys.argv[1]), Settings), sys.argv[2]))
        print(rate, flush=True)
    else:
        asyncio.run(main())
