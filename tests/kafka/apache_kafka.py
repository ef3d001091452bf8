"""Apache Kafka for the stack tests: its own jars from Maven Central, one KRaft node, no Docker."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from penaltybox.embedded.broker import lists_brokers
from penaltybox.embedded.ports import LOOPBACK, Reservation
from penaltybox.embedded.server import Server

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".kafka"
MAVEN_DEADLINE_S = 600
FORMAT_DEADLINE_S = 60

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={logs}
auto.create.topics.enable=false
delete.topic.enable=true
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
group.min.session.timeout.ms=1000
num.network.threads=2
num.io.threads=2
log.cleaner.dedupe.buffer.size=16777216
log.cleaner.backoff.ms=200
log.initial.task.delay.ms=1000
log.retention.check.interval.ms=1000
"""


class MissingKafkaError(RuntimeError):
    """Apache Kafka was asked for and cannot be had: a failure, never a skip."""


class ApacheKafka(Server):
    """One combined broker and controller. A restart keeps topics, records, offsets and groups."""

    name: ClassVar[str] = "apache-kafka"
    start_deadline_s: ClassVar[float] = 60.0
    grace_s: ClassVar[float] = 20.0

    def __init__(self, data_dir: Path, *, port: int = 0) -> None:
        super().__init__(data_dir, port=port)
        self._controller: Reservation | None = None

    @property
    def bootstrap(self) -> str:
        """What Kafka clients take as `bootstrap_servers`."""
        return self.address

    @property
    def _properties(self) -> Path:
        return self.data_dir / "server.properties"

    def prepare(self, port: int) -> None:
        """Fetch the jars once, write the configuration, format the log directory at the first start."""
        fetch_jars()
        if self._controller is None:
            self._controller = Reservation()
        logs = self.data_dir / "kraft-logs"
        self._properties.write_text(
            PROPERTIES.format(host=LOOPBACK, port=port, controller=self._controller.port, logs=logs), encoding="utf-8"
        )
        if not (logs / "meta.properties").exists():
            cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            run(
                java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)), FORMAT_DEADLINE_S
            )

    def command(self, port: int) -> Sequence[str]:  # noqa: ARG002 - the port is in server.properties
        """The broker's JVM."""
        return java("kafka.Kafka", str(self._properties))

    def answers(self) -> bool:
        """The controller has let the broker in (it listens before that)."""
        return lists_brokers(self.port)

    def close(self) -> None:
        """Stop it and give both ports back."""
        super().close()
        if self._controller is not None:
            self._controller.close()
            self._controller = None


def java(*arguments: str) -> list[str]:
    """A small JVM with Kafka's jars; `libs/*` is expanded by the JVM itself."""
    program = shutil.which("java")
    if program is None:
        raise MissingKafkaError("Apache Kafka needs Java 17 or later on the PATH and found no `java`.")
    return [
        program, "-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
        f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", "-cp", f"{CACHE / 'libs'}/*", *arguments,
    ]  # fmt: skip


def fetch_jars() -> Path:
    """Kafka's jars in the git-ignored cache; fetched by Maven when the pom changed or nothing is there."""
    libs = CACHE / "libs"
    pom = (HERE / "pom.xml").read_bytes()
    stamp = CACHE / "fetched-pom.xml"
    if stamp.exists() and stamp.read_bytes() == pom:
        return libs
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingKafkaError(
            "Apache Kafka's jars are fetched by Maven and found no `mvn` on the PATH. Install maven."
        )
    CACHE.mkdir(exist_ok=True)
    shutil.rmtree(libs, ignore_errors=True)
    run(
        [
            maven, "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={libs}",
        ],
        MAVEN_DEADLINE_S,
    )  # fmt: skip
    stamp.write_bytes(pom)
    return libs


def run(command: Sequence[str], deadline_s: float) -> None:
    """Run to its end; a failure shows what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
    if done.returncode:
        raise MissingKafkaError(f"{command[0]} failed with code {done.returncode}:\n{done.stdout}{done.stderr}")
