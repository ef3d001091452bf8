"""Live and replay agree: what real workers did to a topic is what a replay of it with the same policies does.

`PENALTYBOX_TEST_DECISIONS` is the number of decisions (default 6,000); on Apache Kafka it is 100,000 whatever is asked.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.cli.replay_job import Job, run_job
from penaltybox.cli.replay_parts import run_shared
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Command
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.policy_versions import StoredPolicy, Switch
from penaltybox.processors.hand import execute
from penaltybox.processors.penalties import make_engine
from penaltybox.processors.replay.recorded import read_controls
from penaltybox.sinks.policy_versions import put_in_force
from penaltybox.sinks.untold import Untold
from tests.processors.replay.traffic import Recorder
from tests.stack.arena import Arena
from tests.stack.households import POLICY, decisions
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from penaltybox.contracts.events import Penalty

NUMBER = int(os.environ.get("PENALTYBOX_TEST_DECISIONS", "6000"))
FULL = 100_020  # whole households
OTHER = POLICY.replace("user_abuse:   {on: user, count: 5", "user_abuse:   {on: user, count: 3")
pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]


def size_of(request: pytest.FixtureRequest) -> int:
    return FULL if request.config.getoption("--kafka") else NUMBER


def briefly(penalties: Iterable[Penalty]) -> Counter[tuple[str, ...]]:
    """What must agree: which penalty, under which policy, until when."""
    return Counter((one.id, one.subject, one.policy_version, one.action, str(one.until)) for one in penalties)


async def live_penalties(arena: Arena) -> list[Penalty]:
    found = await arena.found([])
    return [one for penalties in found.penalties.values() for one in penalties]


async def test_the_same_penalties(
    broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Two live workers and a replay of the topic lead to the same penalties, shadow ones included."""
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        await arena.start_worker()
        await arena.publish(decisions(size_of(request), now_ms()))
        await arena.finished()
        live = await live_penalties(arena)
        recorder = Recorder()
        result = await run_job(Job(arena.settings, arena.policy), observer=recorder)
        assert result.decisions == len(decisions(size_of(request), now_ms()))
        assert briefly(recorder.penalties["candidate"]) == briefly(live)
        assert len(live) > 100


async def test_a_policy_switched_and_a_step_by_hand(
    broker: Any,
    redis_server: Any,
    fresh_prefix: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    tell: Callable[[str], None],
) -> None:
    """A policy that comes into force in mid-stream, and a ban by hand, are where they were in `--baseline recorded`."""
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        worker = await arena.start_worker()
        placed = decisions(size_of(request), now_ms())
        third = len(placed) // 3
        await arena.publish(placed[:third])
        await arena.finished()
        ban = Command(
            id=ulid(now_ms()), ts=now_ms(), verb="ban", subject=f"user:u{placed[-1].household}-0", actor="ann",
            reason="fraud", level="1h",
        )  # fmt: skip
        await execute(make_engine(arena.settings), arena.store, ban, now_ms())
        await arena.publish(placed[third : third + third // 2])
        other = parse_policy(OTHER)
        stored = StoredPolicy(version=other.version, text=OTHER, actor="ann", reason="stricter", ts=now_ms())
        untold = Untold(arena.store.link, arena.settings.redis_prefix)
        await put_in_force(untold, stored, Switch(version=other.version, ts=now_ms(), actor="ann", reason="stricter"))
        rest = iter(placed[third + third // 2 :])

        async def switched() -> bool:
            await arena.publish(islice(rest, 20))
            controls = [raw async for _, raw in arena.records(arena.topics.control)]
            return any(one.version == other.version for one in read_controls(controls)[0])

        await wait_until(switched, 30, "the worker's record of the other policy")
        await arena.publish(rest)
        await arena.finished()
        await arena.stop(worker)
        live = await live_penalties(arena)
        recorder = Recorder()
        result = await run_job(Job(arena.settings, other, recorded=True), observer=recorder)
        assert briefly(recorder.penalties["baseline"]) == briefly(live)
        assert result.baseline is not None
        assert result.commands == 1
        again = Recorder()
        shared = await run_shared(Job(arena.settings, other, recorded=True, processes=2), observer=again)
        assert shared.processes == 2
        assert (shared.baseline, shared.candidate) == (result.baseline, result.candidate)
        assert (again.told, again.penalties) == (recorder.told, recorder.penalties)
        assert sorted(result.baseline.policy_versions) == sorted([arena.policy.version, other.version])
        by_version = Counter(one.policy_version for one in live)
        assert len(by_version) == 2
        tell(f"{len(placed)} decisions; penalties by policy: {dict(by_version)}")
