"""How to reach a Kafka cluster: what every client of it, aiokafka's or Faust's, is told."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiokafka.errors import KafkaConnectionError, ProducerClosed

from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer

    from penaltybox.contracts.settings import Settings

_LET_GO_S = 1.0


def why_not(error: Exception) -> str:
    """Why a cluster could not be spoken to, for the end of a sentence; the client writes addresses as Python does."""
    return "does not answer" if isinstance(error, KafkaConnectionError) else f"does not answer: {error}"


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a Kafka cluster. Its text form shows no password."""

    bootstrap: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    username: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @classmethod
    def of(cls, settings: Settings) -> Connection:
        """The cluster of the settings."""
        return cls(
            bootstrap=settings.kafka,
            security_protocol=settings.kafka_security_protocol,
            sasl_mechanism=settings.kafka_sasl_mechanism,
            username=settings.kafka_username,
            password=settings.kafka_password,
            ca=settings.kafka_ca,
            certificate=settings.kafka_certificate,
            key=settings.kafka_key,
        )

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments for any aiokafka client.

        Raises:
            ConfigurationError: SASL without a user name, or files of certificates that cannot be read.
        """
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.startswith("SASL"):
            if not self.username:
                raise ConfigurationError(
                    f"PENALTYBOX_KAFKA_USERNAME: got nothing, wanted a user name for {self.security_protocol}."
                )
            options |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        if self.security_protocol.endswith("SSL"):
            options["ssl_context"] = self._tls()
        return options

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except OSError as error:
            raise ConfigurationError(
                f"Kafka's TLS files (PENALTYBOX_KAFKA_CA, _CERTIFICATE, _KEY) cannot be read: {error}."
            ) from error
        return context


async def stop_producer(producer: AIOKafkaProducer, deadline_s: float) -> bool:
    """Flush and disconnect; what the broker has not taken by the deadline is given up.

    `producer.stop` alone waits for every batch and every request under way, with a broker that hangs for as long as
    their timeouts are.

    Args:
        producer: started or not; its senders get no confirmation for what is given up.
        deadline_s: seconds for the flush.

    Returns:
        Whether everything was flushed.
    """
    stopping = asyncio.ensure_future(producer.stop())
    try:
        done, _ = await asyncio.wait([stopping], timeout=deadline_s)
        if done:
            stopping.result()
            return True
    finally:
        if not stopping.done():
            # In this order: nobody waits for batches, then nothing waits for answers.
            producer._message_accumulator.fail_all(ProducerClosed())  # noqa: SLF001 - aiokafka can only flush
            await producer.client.close()
            await asyncio.wait([stopping], timeout=_LET_GO_S)
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
    return False
