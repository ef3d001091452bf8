"""`penaltybox explain SUBJECT`: level, until, why; what became of every decision; what would lift it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from penaltybox.cli.console import AsJson, PolicyFile, one_subject, print_json, settings
from penaltybox.cli.hand import engine_at, policy_now
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.cli.explanation import Explanation
    from penaltybox.cli.timeline import Past, Timeline
    from penaltybox.cli.ways_out import WayOut
    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.retelling.story import Engines
    from penaltybox.processors.state import SubjectState
    from penaltybox.sinks.blocklist import Block
    from penaltybox.sinks.lists import Banned

_PENALTIES: Final = """
SELECT toUnixTimestamp64Milli(ts) AS at, id, action, from_rung, to_rung, rule, evidence, trigger_id, policy_version,
       late, shadow, origin, actor, note,
       if(isNull(until), NULL, toUnixTimestamp64Milli(assumeNotNull(until))) AS until_ms
FROM penalties FINAL WHERE subject = {subject:String} ORDER BY ts DESC, seq DESC LIMIT 10
"""
_DECISIONS: Final = """
SELECT toUnixTimestamp64Milli(ts) AS at, id, action, reason, scenario, route, violated, user, device, ip, source
FROM decisions FINAL
WHERE ts <= fromUnixTimestamp64Milli({until:Int64}) AND ts > fromUnixTimestamp64Milli({from:Int64})
  AND (id = {trigger:String} OR has([concat('user:', user), concat('device:', device), concat('ip:', ip),
       concat('api_key:', api_key), subject], {subject:String}))
ORDER BY id = {trigger:String} DESC, ts DESC LIMIT 6
"""
_MINUTES_10: Final = 600_000
_LOOKS: Final = 5
"""At state and blocks, until nothing was written between the two: else a new block looked like a stranger's."""
_SWITCHES: Final = 50
"""Of the history: as many as anybody looks at."""


def explain(
    subject: Annotated[str, typer.Argument(help="dimension:value, e.g. ip:203.0.113.7 or user:10086.")],
    *,
    since: Annotated[
        str,
        typer.Option(
            help="Where the timeline begins: -2h, 2026-03-01, 2026-03-01T09:00:00Z; else one window of its rule before "
            "the last step.",
            show_default=False,
        ),
    ] = "",
    limit: Annotated[int, typer.Option(help="How many moments to show from either end of the timeline.", min=1)] = 10,
    policy_file: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Say what is in force against a subject, since when and until when, why, and what would lift it.

    The state comes from Redis. The timeline comes from ClickHouse, if it answers: the subject's recorded decisions go
    through the engine once more, which says of each whether it counted, or why not.

        penaltybox explain device:a1b2c3d4

        penaltybox explain ip:203.0.113.7 --since -2h
    """
    from penaltybox.cli.explain_view import show
    from penaltybox.processors.replay.times import parse_time

    values, at_ms = settings(), now_ms()
    name = one_subject(subject, values)
    since_ms = parse_time(since, "--since", at_ms) if since else None
    policy = policy_now(policy_file, values)
    only = policy_file is not None
    told = asyncio.run(explained(values, policy, name, since_ms=since_ms, limit=limit, at_ms=at_ms, only=only))
    if as_json:
        print_json(told.document())
        return
    show(told.now, told.ways_out, told.timeline, told.earlier, told.history_missing)


class Explained(NamedTuple):
    """Everything that is told of a subject.

    Attributes:
        now: what is in force and remembered.
        ways_out: what ends or lifts it.
        timeline: what became of its recorded events, bounded; None without ClickHouse.
        history: its last penalties, newest first.
        history_missing: why there is none.
        earlier: penalties before the timeline, newest first.
    """

    now: Explanation
    ways_out: list[WayOut]
    timeline: Timeline | None
    history: list[dict[str, Any]]
    history_missing: str
    earlier: list[Penalty]

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {name: value for name, value in self._asdict().items() if name != "earlier"}


async def explained(
    values: Settings,
    policy: Policy,
    subject: str,
    *,
    since_ms: int | None,
    limit: int,
    at_ms: int,
    only: bool = False,
) -> Explained:
    """What is told of a subject: its state from Redis, its past from ClickHouse, if that answers.

    Args:
        values: where the servers are.
        policy: in force.
        subject: canonical.
        since_ms: where the timeline begins; None: one window before the last step of a rule.
        limit: moments from either end of the timeline.
        at_ms: wall clock.
        only: tell its whole past under `policy`, not under what was in force then.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    from penaltybox.cli.explanation import banned_by, explain_state, strays_of
    from penaltybox.cli.timeline import bounded
    from penaltybox.cli.ways_out import ways_out

    state, blocks, engine, banned, paused = await _read(values, policy, subject)
    explanation = explain_state(state, subject, policy, at_ms, engine.allowlist)
    explanation.paused = paused
    explanation.strays = strays_of(state, blocks)
    explanation.banned_ranges = banned_by(banned, subject, at_ms)
    history, past, missing = await asyncio.to_thread(
        _history, values, engine, subject, state, since_ms, at_ms, only=only
    )
    return Explained(
        explanation,
        ways_out(explanation, policy),
        bounded(past.timeline, limit) if past else None,
        history,
        missing,
        past.earlier if past else [],
    )


async def _read(
    values: Settings, policy: Policy, subject: str
) -> tuple[SubjectState | None, list[Block], Engine, Mapping[str, Banned], str]:
    """The subject's state and blocks, an engine with the allowlist in Redis, banned ranges, why new blocks pause."""
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.processors.state import decode_state
    from penaltybox.sinks.blocklist import Blocklist
    from penaltybox.sinks.lists import HandLists
    from penaltybox.sinks.redis_store import RedisSubjectStore

    store = RedisSubjectStore(open_link(endpoint_of(values)), values.redis_prefix)
    try:
        (blob,) = await store.read([subject])
        for _ in range(_LOOKS):
            (blocks,) = await Blocklist(store.link, values.redis_prefix).all_of([subject])
            before, (blob,) = blob, await store.read([subject])
            if blob == before:
                break
        engine = await engine_at(values, policy, store)
        is_address = subject.startswith("ip:") and "ip" not in values.hashed_dimensions
        banned = await HandLists(store.link, values.redis_prefix).banned() if is_address else {}
        paused = await store.pause_reason() or ""
    finally:
        await store.close()
    return None if blob is None else decode_state(blob, subject), blocks, engine, banned, paused


def _history(
    values: Settings,
    engine: Engine,
    subject: str,
    live: SubjectState | None,
    since_ms: int | None,
    at_ms: int,
    *,
    only: bool,
) -> tuple[list[dict[str, Any]], Past | None, str]:
    """Penalties, newest first, three with the decisions around their trigger; the past told again; or why not.

    `only`: under the engine's policy, and no other.
    """
    from penaltybox.cli.timeline import read_past
    from penaltybox.processors.retelling.story import Engines
    from penaltybox.sinks.clickhouse.client import ClickHouse

    windows = {rule.name: rule.window_ms for rule in engine.policy.rules}
    clickhouse = ClickHouse.of(values)
    try:
        penalties = clickhouse.rows(_PENALTIES, {"subject": subject})
        for penalty in penalties[:3]:
            at, trigger = penalty["at"], penalty["trigger_id"]
            window_ms = windows.get(penalty["rule"], _MINUTES_10)
            given = {"subject": subject, "trigger": trigger, "from": at - window_ms, "until": at}
            penalty["decisions"] = clickhouse.rows(_DECISIONS, given)
        made = [(penalty["at"], penalty["policy_version"]) for penalty in penalties]
        engines = Engines(engine) if only else asyncio.run(_engines(values, engine, made))
        past = read_past(clickhouse, live, subject, engines, since_ms=since_ms, now_ms=at_ms)
    except StoreUnavailable as error:
        return [], None, str(error)
    finally:
        clickhouse.close()
    return penalties, past, ""


async def _engines(values: Settings, engine: Engine, made: list[tuple[int, str]]) -> Engines:
    """Engines of the policies that were in force.

    By the last switches, and by penalties: (when, version), newest first. What was in force before the first switch,
    the workers' own file, only they tell.
    """
    from penaltybox.cli.control import opened
    from penaltybox.links.policies import read_policy
    from penaltybox.processors.engine import Engine as Compiled
    from penaltybox.processors.retelling.story import Engines
    from penaltybox.sinks.policy_versions import history

    known: dict[str, Engine] = {}
    async with opened(values) as (link, _):
        switched = (await history(link, values.redis_prefix))[-_SWITCHES:]
        switches = [(switch.ts, switch.version) for switch in switched]
        first = switches[0][0] if switches else 0
        switches[:0] = [(0, version) for at, version in made if at < first][:1]
        for version in sorted({version for _, version in (*made, *switches)} - {engine.version}):
            try:
                stored = await read_policy(link, version, values.redis_prefix)
                if stored is not None:
                    known[version] = Compiled(stored.policy(), engine.canonicaliser)
            except ConfigurationError:
                continue  # a newer release's: told under the policy of now
    return Engines(engine, switches, known)
