"""What `doctor` looks at. Each check reads only and returns findings; a server that is away is a finding too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from penaltybox.cli.console import policy_of
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError
from penaltybox.contracts.topics import Topics

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings
    from penaltybox.links.exchange import Link

State = Literal["ok", "warning", "wrong"]
_SKEW_MS: Final = 1_000
_EVERYWHERE: Final = "run an NTP daemon on both machines; block ends are absolute times"


class Finding(msgspec.Struct, frozen=True):
    """One look: which part, how it is, a sentence, and what to do."""

    part: str
    state: State
    says: str
    advice: str = ""


def check_policy(values: Settings) -> list[Finding]:
    """The policy file can be read and is one."""
    try:
        policy = policy_of(None, values)
    except ConfigurationError as error:
        return [Finding("policy", "wrong", str(error), "correct the file, or PENALTYBOX_POLICY")]
    where = values.policy or "the default policy"
    says = f"{where}, version {policy.version}, {len(policy.rules)} rules; in force where Redis has none"
    return [Finding("policy", "ok", says)]


async def check_kafka(values: Settings) -> list[Finding]:
    """The broker answers, has our topics as they should be, and what it cannot do."""
    from aiokafka.errors import KafkaError

    from penaltybox.links.kafka import Connection
    from penaltybox.processors.broker import TopicPlan, admin, probe, topic_differences

    topics = Topics.named(values.topic_prefix)
    try:
        connection, plan = Connection.of(values), TopicPlan.of(values)
        async with admin(connection) as client:
            present = {topic["topic"] for topic in await client.describe_topics()}
            differences = await topic_differences(client, topics, plan)
        found = [Finding("kafka", "ok", f"{values.kafka} answers")]
        wanted = plan.wanted(topics)
        missing = [name for name in wanted if name not in present]
        if missing:
            found.append(Finding("kafka", "wrong", f"no topic {', '.join(missing)}", "penaltybox setup"))
        found += [Finding("kafka", "warning", one.says, one.advice) for one in differences]
        if topics.decisions in present:
            found += _capabilities((await probe(connection, topics.decisions))._asdict())
    except (PenaltyboxError, KafkaError, OSError) as error:
        return [Finding("kafka", "wrong", str(error), "check PENALTYBOX_KAFKA and the security settings")]
    return found


_CANNOT: Final = {
    "compaction": "does not compact: ladders and control only grow until their retention; restore reads all of them",
    "log_append_time": "keeps the sender's time: nothing bounds a sender's clock but its own",
    "timestamp_offsets": "cannot find offsets by time: replay scans and filters",
}


def _capabilities(able: dict[str, bool]) -> list[Finding]:
    return [Finding("kafka", "warning", f"the broker {says}") for name, says in _CANNOT.items() if not able[name]]


async def check_redis(values: Settings) -> list[Finding]:
    """Redis answers, keeps what it is given, has our clock, and is the one the workers know."""
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.sinks.redis_store import RedisSubjectStore

    try:
        store = RedisSubjectStore(open_link(endpoint_of(values)), values.redis_prefix)
    except ConfigurationError as error:
        return [Finding("redis", "wrong", str(error))]
    try:
        found = []
        for node in await store.link.nodes():
            found += await _redis_node(node)
        generation, paused = await store.generation(), await store.pause_reason()
        found += await _policy_in_force(store.link, values.redis_prefix)
    except PenaltyboxError as error:
        return [Finding("redis", "wrong", str(error), "check PENALTYBOX_REDIS_URL and its user's rights")]
    finally:
        await store.close()
    if generation is None:
        found.append(Finding("redis", "ok", "empty: the first worker starts a generation"))
    else:
        found.append(Finding("redis", "ok", f"generation {generation}"))
    if paused:
        found.append(Finding("redis", "warning", f"new blocks are paused: {paused}", "penaltybox resume"))
    return found


async def _policy_in_force(link: Link, prefix: str) -> list[Finding]:
    from penaltybox.links.policies import read_in_force

    try:
        found = await read_in_force(link, prefix)
    except ConfigurationError as error:
        says = "running workers keep what they have; penaltybox policy apply puts a good one in force"
        return [Finding("policy", "wrong", str(error), says)]
    if found is None:
        return []
    switch, rules = found.switch, len(found.policy.rules)
    says = f"in force: version {switch.version} from Redis, {rules} rules, by {switch.actor}: {switch.reason}"
    return [Finding("policy", "ok", says)]


async def _redis_node(node: Link) -> list[Finding]:
    before_ms = now_ms()
    info, (seconds, micros) = await node.exchange([("INFO",), ("TIME",)])
    middle_ms = (before_ms + now_ms()) // 2
    facts = dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    name = facts.get("valkey_version") or facts.get("redis_version", "?")
    kind = "Valkey" if "valkey_version" in facts else "Redis"
    where = getattr(node, "where", "")
    found = [Finding("redis", "ok", f"{kind} {name} at {where}, {facts.get('used_memory_human', '?')} used")]
    if facts.get("maxmemory", "0") != "0" and facts.get("maxmemory_policy") != "noeviction":
        says = f"{where} evicts keys when full ({facts.get('maxmemory_policy')}): blocks would vanish"
        found.append(Finding("redis", "wrong", says, "set maxmemory-policy noeviction"))
    if facts.get("aof_enabled") != "1":
        says = f"{where} keeps no append-only file: a crash loses the writes since the last snapshot"
        advice = "set appendonly yes; penaltybox restore brings ladders back, counters are lost"
        found.append(Finding("redis", "warning", says, advice))
    if facts.get("cluster_enabled") == "1":
        found += await _coverage(node, where)
    skew_ms = int(seconds) * 1000 + int(micros) // 1000 - middle_ms
    if abs(skew_ms) > _SKEW_MS:
        found.append(Finding("redis", "warning", f"the clock of {where} differs by {skew_ms} ms", _EVERYWHERE))
    return found


async def _coverage(node: Link, where: str) -> list[Finding]:
    """Whether this node of a cluster goes on when another one is gone; a user who may not ask is told nothing."""
    try:
        (found,) = await node.exchange([("CONFIG", "GET", "cluster-require-full-coverage")])
    except ConfigurationError:
        return []
    if list(found[1:2]) != [b"yes"]:
        return []
    says = f"{where} refuses all work as soon as any node of the cluster is gone without a replica"
    advice = "set cluster-require-full-coverage no, on every node: the limiter then goes on with those that are left"
    return [Finding("redis", "warning", says, advice)]


def check_clickhouse(values: Settings) -> list[Finding]:
    """ClickHouse answers, has our schema and our clock."""
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.migrations import applied, migrations

    try:
        clickhouse = ClickHouse.of(values)
    except ConfigurationError as error:
        return [Finding("clickhouse", "wrong", str(error))]
    try:
        found = [Finding("clickhouse", "ok", f"version {clickhouse.version()}, database {values.clickhouse_database}")]
        found += _schema(applied, migrations, clickhouse)
        if found[-1].state == "ok":
            before_ms = now_ms()
            (row,) = clickhouse.rows("SELECT toUnixTimestamp64Milli(now64(3)) AS at")
            skew_ms = row["at"] - (before_ms + now_ms()) // 2
            if abs(skew_ms) > _SKEW_MS:
                says = f"the clock of ClickHouse differs by {skew_ms} ms"
                found.append(Finding("clickhouse", "warning", says, _EVERYWHERE))
    except PenaltyboxError as error:
        return [Finding("clickhouse", "wrong", str(error), "blocks work without it; analytics waits until it is back")]
    finally:
        clickhouse.close()
    return found


def _schema(applied: Any, migrations: Any, clickhouse: Any) -> list[Finding]:
    try:
        there = applied(clickhouse)
    except PenaltyboxError:
        return [Finding("clickhouse", "wrong", "database or tables are missing", "penaltybox setup")]
    known = {migration.version for migration in migrations()}
    if known - there:
        says = f"schema versions {sorted(known - there)} are not applied"
        return [Finding("clickhouse", "wrong", says, "penaltybox setup")]
    if there - known:
        says = f"the schema is newer (version {max(there)}) than this package knows ({max(known)})"
        return [Finding("clickhouse", "warning", says, "update penaltybox on this machine")]
    return [Finding("clickhouse", "ok", f"schema version {max(known)}")]
