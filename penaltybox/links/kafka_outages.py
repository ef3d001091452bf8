"""What a failure of Kafka means to a publisher: an outage to wait out, or a mistake in somebody's configuration."""

from __future__ import annotations

from typing import Final

from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    MessageSizeTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
)

from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError, StoreUnavailable

_REFUSED: Final = (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)


def explained(error: BaseException, where: str, topic: str) -> PenaltyboxError:
    """Our error for one of aiokafka's or the socket's: what went wrong, whose it is to mend, and what to do.

    Args:
        error: what was raised.
        where: bootstrap servers, free of secrets.
        topic: the one that was written to.
    """
    if isinstance(error, PenaltyboxError):
        return error
    if isinstance(error, UnknownTopicOrPartitionError):
        return ConfigurationError(f"Kafka at {where} has no topic {topic}; run `penaltybox setup` once")
    if isinstance(error, _REFUSED):
        return ConfigurationError(
            f"Kafka at {where} refuses us: {error}; check PENALTYBOX_KAFKA_USERNAME, _PASSWORD and the ACLs"
        )
    if isinstance(error, MessageSizeTooLargeError):
        return ConfigurationError(
            f"Kafka at {where} refuses a batch as too large: {error}; raise the topic's max.message.bytes"
        )
    return StoreUnavailable(
        f"Kafka at {where} does not take records: {type(error).__name__}: {error}; check PENALTYBOX_KAFKA"
    )
