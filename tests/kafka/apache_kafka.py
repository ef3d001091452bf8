"""Apache Kafka for the stack tests: its own jars from Maven Central, one KRaft node, no Docker."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from penaltybox.embedded.broker import lists_brokers
from penaltybox.embedded.directory import DirectoryLock
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
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
group.min.session.timeout.ms=1000
num.network.threads=2
num.io.threads=2
log.cleaner.dedupe.buffer.size=16777216
log.cleaner.backoff.ms=200
log.initial.task.delay.ms=1000
log.retention.check.interval.ms=1000
"""


# A second listener with TLS and passwords, for `secure=True`.
SECURE_PROPERTIES = """\
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller},SECURE://{host}:{secure}
advertised.listeners=PLAINTEXT://{host}:{port},SECURE://{host}:{secure}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.secure.plain.sasl.jaas.config={plain} required user_{user}="{password}";
listener.name.secure.scram-sha-256.sasl.jaas.config={scram} required;
listener.name.secure.ssl.keystore.type=PKCS12
listener.name.secure.ssl.keystore.location={keystore}
listener.name.secure.ssl.keystore.password={password}
"""
LOGIN = "org.apache.kafka.common.security"
USER = "penaltybox"


class MissingKafkaError(RuntimeError):
    """Apache Kafka was asked for and cannot be had: a failure, never a skip."""


class ApacheKafka(Server):
    """One combined broker and controller. A restart keeps topics, records, offsets and groups."""

    name: ClassVar[str] = "apache-kafka"
    start_deadline_s: ClassVar[float] = 180.0  # a Java machine, beside whatever else the machine does
    grace_s: ClassVar[float] = 20.0

    def __init__(self, data_dir: Path, *, port: int = 0, secure: bool = False) -> None:
        super().__init__(data_dir, port=port)
        self._controller: Reservation | None = None
        self._secure: Reservation | None = Reservation() if secure else None
        self.password = uuid.uuid4().hex

    @property
    def secure_bootstrap(self) -> str:
        """The address of the listener with TLS, SASL PLAIN and SCRAM-SHA-256, for `USER` and `password`."""
        assert self._secure is not None
        return f"{LOOPBACK}:{self._secure.port}"

    @property
    def certificate(self) -> Path:
        """The secure listener's certificate, which signs itself."""
        return self.data_dir / "certificate.pem"

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
        values = {"host": LOOPBACK, "port": port, "controller": self._controller.port, "logs": logs}
        text = PROPERTIES.format(**values)
        if self._secure is not None:
            text += self._secure_properties(values)
        self._properties.write_text(text, encoding="utf-8")
        if not (logs / "meta.properties").exists():
            cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")  # may begin with a dash
            format_logs = java(
                "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(self._properties)
            )
            scram = ["--add-scram", f"SCRAM-SHA-256=[name={USER},password={self.password}]"]
            run(format_logs + (scram if self._secure is not None else []), FORMAT_DEADLINE_S)

    def _secure_properties(self, values: dict[str, object]) -> str:
        """The second listener's lines (the later of two equal keys counts), with a fresh key and certificate."""
        assert self._secure is not None
        keystore = self.data_dir / "keystore.p12"
        if not keystore.exists():
            keytool = shutil.which("keytool") or "keytool"
            store = ["-alias", "kafka", "-keystore", str(keystore), "-storepass", self.password]
            key = ["-keyalg", "EC", "-dname", "CN=localhost", "-ext", f"SAN=ip:{LOOPBACK}", "-storetype", "PKCS12"]
            run([keytool, "-genkeypair", *store, *key, "-validity", "30"], FORMAT_DEADLINE_S)
            run([keytool, "-exportcert", "-rfc", *store, "-file", str(self.certificate)], FORMAT_DEADLINE_S)
        return SECURE_PROPERTIES.format(
            **values,
            secure=self._secure.port,
            plain=f"{LOGIN}.plain.PlainLoginModule",
            scram=f"{LOGIN}.scram.ScramLoginModule",
            user=USER,
            password=self.password,
            keystore=keystore,
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
        for reservation in (self._controller, self._secure):
            if reservation is not None:
                reservation.close()
        self._controller = self._secure = None


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
    with DirectoryLock(CACHE / "fetch.lock", MAVEN_DEADLINE_S):  # another test session may be fetching too
        if not (stamp.exists() and stamp.read_bytes() == pom):
            shutil.rmtree(libs, ignore_errors=True)
            _copy_jars(maven, libs)
            stamp.write_bytes(pom)
    return libs


def _copy_jars(maven: str, libs: Path) -> None:
    run(
        [
            maven, "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={libs}",
        ],
        MAVEN_DEADLINE_S,
    )  # fmt: skip


def run(command: Sequence[str], deadline_s: float) -> None:
    """Run to its end; a failure shows what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
    if done.returncode:
        raise MissingKafkaError(f"{command[0]} failed with code {done.returncode}:\n{done.stdout}{done.stderr}")
