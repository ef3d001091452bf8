"""A topic's own id, from Kafka's Metadata request version 12 (Kafka ≥ 3.1, KIP-516), which aiokafka 0.14 lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import BytesIO

    from aiokafka.client import AIOKafkaClient

NIL = UUID(int=0)


class Uuid(AbstractType[UUID]):  # type: ignore[misc] # aiokafka is untyped
    """16 bytes, big-endian."""

    @classmethod
    def encode(cls, value: UUID) -> bytes:
        """As bytes."""
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> UUID:
        """From bytes."""
        return UUID(bytes=data.read(16))


class MetadataResponseV12(Response):  # type: ignore[misc] # aiokafka is untyped
    """What the broker says about brokers and topics."""

    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class MetadataRequestV12(RequestStruct):  # type: ignore[misc] # aiokafka is untyped
    """Ask about topics by name."""

    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = MetadataResponseV12
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("topic", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicIdsRequest(Request[MetadataRequestV12]):  # type: ignore[misc] # aiokafka is untyped
    """Metadata of the named topics; never creates one."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[MetadataRequestV12]) -> MetadataRequestV12:
        """The request as aiokafka sends it."""
        return request_struct_class([(NIL, name, {}) for name in self._topics], False, False, {})  # noqa: FBT003 - protocol fields


async def topic_ids(client: AIOKafkaClient, topics: Sequence[str]) -> dict[str, UUID]:
    """Ids of those topics that exist and have one; empty when the broker knows no topic ids."""
    try:
        response = await client.send(client.get_random_node(), TopicIdsRequest(topics))
    except (IncompatibleBrokerVersion, NotImplementedError):
        return {}
    return {name: topic_id for error, name, topic_id, *_ in response.topics if not error and topic_id != NIL}
