"""What a Kafka broker can do, the six topics as they must be, and which incarnation of a topic this is."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from penaltybox.contracts.durations import format_duration, parse_duration
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.links.kafka import why_not
from penaltybox.processors.topic_ids import topic_ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from penaltybox.contracts.settings import Settings
    from penaltybox.contracts.topics import Topics
    from penaltybox.links.kafka import Connection

REQUEST_TIMEOUT_MS: Final = 10_000
LEADERS_DEADLINE_S: Final = 15
LEADERS_POLL_S: Final = 0.05
# Keys of Kafka's protocol.
_DELETE_RECORDS: Final = 21
_INIT_PRODUCER_ID: Final = 22
_ADD_PARTITIONS_TO_TXN: Final = 24
_CREATE_PARTITIONS: Final = 37
# Only a broker that implements a topic's settings lists those that nobody set, such as this one.
_UNSET_BY_ANYBODY: Final = "segment.index.bytes"
# Later than any record: in the year 2200. A broker that looks timestamps up finds nothing there.
_FAR_FUTURE_MS: Final = 7_258_118_400_000


class Capabilities(NamedTuple):
    """What this broker does; each False has its other path in our code.

    Attributes:
        timestamp_offsets: the first offset at or after a time can be asked for (else: scan and filter).
        compaction: compacted topics are compacted (else: they only grow until their retention).
        idempotence: producers may number their records (else: redelivery can duplicate; we are idempotent anyway).
        log_append_time: records can carry the broker's clock (else: the sender's, unbounded).
        transactions: the transactional requests exist.
        create_partitions: topics can grow.
        delete_records: records can be deleted before their retention.
        topic_ids: each incarnation of a topic has an id of its own.
    """

    timestamp_offsets: bool
    compaction: bool
    idempotence: bool
    log_append_time: bool
    transactions: bool
    create_partitions: bool
    delete_records: bool
    topic_ids: bool


class TopicPlan(NamedTuple):
    """How the six topics shall be made."""

    partitions: int = 8
    replication: int = 1
    decisions_ms: int = 7 * 86_400_000
    outcomes_ms: int = 30 * 86_400_000
    penalties_ms: int = 90 * 86_400_000
    dead_letters_ms: int = 7 * 86_400_000

    @classmethod
    def of(cls, settings: Settings) -> TopicPlan:
        """The plan of the settings.

        Raises:
            ConfigurationError: a retention that is no duration.
        """
        return cls(
            partitions=settings.kafka_partitions,
            replication=settings.kafka_replication,
            decisions_ms=parse_duration(settings.decisions_retention, "PENALTYBOX_DECISIONS_RETENTION"),
            outcomes_ms=parse_duration(settings.outcomes_retention, "PENALTYBOX_OUTCOMES_RETENTION"),
            penalties_ms=parse_duration(settings.penalties_retention, "PENALTYBOX_PENALTIES_RETENTION"),
            dead_letters_ms=parse_duration(settings.dead_letters_retention, "PENALTYBOX_DEAD_LETTERS_RETENTION"),
        )

    def wanted(self, topics: Topics) -> dict[str, tuple[int, dict[str, str]]]:
        """Partitions and configuration of each topic. Control has one partition: the order of its commands is one.

        It is a part of the audit trail, too: no record is compacted away before those of penalties are. Else nobody
        could tell who listed an address that another one took off.

        What senders outside write has the broker's time, which bounds their clocks: a fence far in the future would
        make its subject immune until then.
        """
        compacted = {"cleanup.policy": "compact"}
        remembered = {"min.compaction.lag.ms": str(self.penalties_ms)}
        bounded = {"message.timestamp.type": "LogAppendTime"}
        return {
            topics.decisions: (self.partitions, _kept(self.decisions_ms) | bounded),
            topics.outcomes: (self.partitions, _kept(self.outcomes_ms) | bounded),
            topics.penalties: (self.partitions, _kept(self.penalties_ms)),
            topics.ladders: (self.partitions, compacted),
            topics.control: (1, compacted | remembered),
            topics.dead_letters: (1, _kept(self.dead_letters_ms)),
        }


def _kept(retention_ms: int) -> dict[str, str]:
    return {"cleanup.policy": "delete", "retention.ms": str(retention_ms)}


_AT_LEAST: Final = frozenset({"min.compaction.lag.ms"})
"""Settings of which more is fine."""
_WHY: Final = {
    "min.compaction.lag.ms": (
        "who did what by hand may be compacted away before the penalties are, and `audit` and a replay would miss it"
    ),
    "message.timestamp.type": "a sender's clock is bounded by nothing but itself",
}


class Difference(NamedTuple):
    """In what an existing topic is not as planned, and what to do."""

    says: str
    advice: str


class TopicsReport(NamedTuple):
    """What `ensure_topics` did: names it created, and a sentence for each way in which an existing topic differs."""

    created: tuple[str, ...]
    differences: tuple[str, ...]


@asynccontextmanager
async def admin(connection: Connection) -> AsyncIterator[AIOKafkaAdminClient]:
    """A started admin client.

    Raises:
        StoreUnavailable: no broker answers at the address.
    """
    client = AIOKafkaAdminClient(**connection.client_options(), request_timeout_ms=REQUEST_TIMEOUT_MS)
    try:
        try:
            await client.start()
        except (KafkaError, OSError) as error:
            raise StoreUnavailable(
                f"Kafka at {connection.bootstrap} ({connection.security_protocol}) {why_not(error)}. "
                "Check PENALTYBOX_KAFKA and the security settings."
            ) from error
        yield client
    finally:
        await client.close()


async def probe(connection: Connection, topic: str) -> Capabilities:
    """What the broker can do, found by reading only; nothing is created or written.

    Args:
        connection: the cluster.
        topic: an existing topic to ask about, usually the decisions.

    Raises:
        StoreUnavailable: no broker answers.
    """
    async with admin(connection) as client:
        described = (await _configurations(client, [topic])).get(topic, {})
        keys = _request_keys(client)
        ids = await topic_ids(client._client, [topic])  # noqa: SLF001 - the admin client exposes no other way to send
    complete = _UNSET_BY_ANYBODY in described
    return Capabilities(
        timestamp_offsets=await _finds_nothing_in_the_future(connection, topic),
        compaction=complete,
        idempotence=complete and _INIT_PRODUCER_ID in keys,
        log_append_time=complete and "message.timestamp.type" in described,
        transactions=complete and _ADD_PARTITIONS_TO_TXN in keys,
        create_partitions=_CREATE_PARTITIONS in keys,
        delete_records=_DELETE_RECORDS in keys and complete,
        topic_ids=topic in ids,
    )


def _request_keys(client: AIOKafkaAdminClient) -> frozenset[int]:
    """Requests that the connected brokers announce."""
    connections = client._client._conns.values()  # noqa: SLF001 - negotiated versions are exposed nowhere else
    return frozenset(key for connected in connections for key in connected._versions or {})  # noqa: SLF001


async def _finds_nothing_in_the_future(connection: Connection, topic: str) -> bool:
    """Whether ListOffsets by timestamp is real: beyond the end there is no offset (a broken one answers 0)."""
    partition = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(**connection.client_options(), request_timeout_ms=REQUEST_TIMEOUT_MS)
    await consumer.start()
    try:
        consumer.assign([partition])
        found = await consumer.offsets_for_times({partition: _FAR_FUTURE_MS})
    except KafkaError:
        return False
    finally:
        await consumer.stop()
    return found.get(partition) is None


async def _configurations(client: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Settings of each existing topic, as text."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
    found = {}
    for response in await client.describe_configs(resources):
        for error, _, _, name, entries in response.resources:
            if not error:
                found[name] = {entry[0]: entry[1] for entry in entries}
    return found


async def _partition_counts(client: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, int]:
    """Partitions of each existing topic; one of which a partition has no leader yet is left out.

    All topics are listed: to ask for one by name creates it where the broker creates topics by itself.
    """
    return {
        topic["topic"]: len(topic["partitions"])
        for topic in await client.describe_topics()
        if topic["topic"] in topics
        and not topic["error_code"]
        and all(partition["leader"] >= 0 for partition in topic["partitions"])
    }


async def _until_led(client: AIOKafkaAdminClient, topics: Sequence[str]) -> None:
    """Wait until new topics can be used: the broker lists them and each partition has a leader."""
    end = time.monotonic() + LEADERS_DEADLINE_S
    while absent := set(topics) - set(await _partition_counts(client, topics)):
        if time.monotonic() > end:
            raise StoreUnavailable(
                f"Kafka created {', '.join(sorted(absent))}, but gave no leader within {LEADERS_DEADLINE_S} s. "
                "Check that enough brokers are up."
            )
        await asyncio.sleep(LEADERS_POLL_S)


async def ensure_topics(connection: Connection, topics: Topics, plan: TopicPlan) -> TopicsReport:
    """Create those of the six topics that are missing; never changes one that is there.

    Raises:
        StoreUnavailable: no broker answers, or it refuses for now.
        ConfigurationError: the broker refuses a topic (its sentence is in the message).
    """
    wanted = plan.wanted(topics)
    async with admin(connection) as client:
        present = await _partition_counts(client, list(wanted))
        missing = [name for name in wanted if name not in present]
        created = await _create(client, {name: wanted[name] for name in missing}, plan.replication)
        described = await _configurations(client, list(present))
    found = _all_differences(wanted, present, described)
    return TopicsReport(tuple(created), tuple(f"{one.says}. {one.advice}." for one in found))


async def topic_differences(client: AIOKafkaAdminClient, topics: Topics, plan: TopicPlan) -> list[Difference]:
    """In what those of the six topics that exist differ from the plan; reads only."""
    wanted = plan.wanted(topics)
    present = await _partition_counts(client, list(wanted))
    return _all_differences(wanted, present, await _configurations(client, list(present)) if present else {})


async def _create(
    client: AIOKafkaAdminClient, wanted: Mapping[str, tuple[int, dict[str, str]]], replication: int
) -> list[str]:
    """Create topics; one that another setup created meanwhile is fine."""
    if not wanted:
        return []
    new = [NewTopic(name, count, replication, topic_configs=configs) for name, (count, configs) in wanted.items()]
    created = []
    for name, code, message in (await client.create_topics(new)).topic_errors:
        kind = for_code(code)
        if code == 0:
            created.append(name)
        elif kind is not TopicAlreadyExistsError:
            sentence = f"Kafka refused to create the topic {name}: {message or kind.description}"
            raise (StoreUnavailable if kind.retriable else ConfigurationError)(sentence)
    await _until_led(client, list(wanted))
    return created


def _all_differences(
    wanted: Mapping[str, tuple[int, dict[str, str]]],
    present: Mapping[str, int],
    described: Mapping[str, dict[str, str]],
) -> list[Difference]:
    return [
        one
        for name, count in present.items()
        for one in _differences(name, count, described.get(name, {}), *wanted[name])
    ]


def _differences(
    name: str, count: int, described: Mapping[str, str], partitions: int, configs: Mapping[str, str]
) -> list[Difference]:
    """What an existing topic has, what was wanted, what to do. More partitions than wanted are fine."""
    found = []
    if count < partitions:
        found.append(
            Difference(
                f"Topic {name} has {count} partitions, wanted {partitions}",
                f"Add them (kafka-topics --alter --topic {name} --partitions {partitions}) while nothing is in flight, "
                f"or set PENALTYBOX_KAFKA_PARTITIONS={count}",
            )
        )
    for key, value in configs.items():
        got = described.get(key)
        enough = key in _AT_LEAST and got is not None and got.isdigit() and int(got) >= int(value)
        if got is None or got == value or enough:
            continue
        why = f": {_WHY[key]}" if key in _WHY else ""
        found.append(
            Difference(
                f"Topic {name} has {key}={_shown(key, got)}, wanted {_shown(key, value)}{why}",
                f"Set it (kafka-configs --alter --entity-type topics --entity-name {name} --add-config {key}={value}), "
                "or change the setting",
            )
        )
    return found


def _shown(key: str, value: str) -> str:
    return f"{value} ({format_duration(int(value))})" if key.endswith(".ms") and value.isdigit() else value


async def topic_incarnations(connection: Connection, topics: Sequence[str]) -> dict[str, str]:
    """A text per existing topic that is another one whenever the topic was made anew.

    It is the broker's topic id (Apache Kafka ≥ 3.1; the embedded broker too, where each start makes new topics). From
    a broker without topic ids it is derived from cluster id and name: a topic deleted and made again there looks like
    the old one, so its stored offsets must be dropped by hand.

    Raises:
        StoreUnavailable: no broker answers.
    """
    async with admin(connection) as client:
        present = await _partition_counts(client, topics)
        ids = await topic_ids(client._client, list(topics))  # noqa: SLF001 - as in probe
        cluster = (await client.describe_cluster()).get("cluster_id") or connection.bootstrap
    return {
        name: str(ids[name]) if name in ids else str(uuid5(NAMESPACE_URL, f"kafka://{cluster}/{name}"))
        for name in topics
        if name in present
    }
