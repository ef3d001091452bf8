"""What real workers and a real service tell Prometheus is what docs/metrics.md says, with the figures that are true."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from prometheus_client.parser import text_string_to_metric_families

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import encode
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.links.exposition import Bounded, exposed, new_registry, served
from penaltybox.processors.alerts import run_alerts
from penaltybox.processors.analytics import run_analytics
from penaltybox.processors.ending import Ending
from penaltybox.processors.meters import restore_progress
from penaltybox.processors.penalties import run_penalties
from tests.ports import free_port, two_free_ports
from tests.processors.worker_driver import denial
from tests.stack.decision_service import DecisionService, fetch
from tests.stack.stack_settings import settings_on, written
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

pytestmark = pytest.mark.stack
PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
POLICY = """
limits: {coupon_claim: {user: [{name: daily, limit: 3, window: 1d}]}}
rules: {abuse: {on: user, count: 3, window: 10m, then: {level: 5m}}}
"""
OFTEN = {"every": "Every process", "role": "Every role: penalties, analytics, alerts"}


def documented(*sections: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Metric -> (type, labels) of these sections of the page."""
    found = {}
    for section in sections:
        text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        for name, kind, labels in re.findall(r"^\| `([a-z_]+)` \| (\w+) \| ([^|]*)\|", text, re.MULTILINE):
            found[name] = (kind, tuple(sorted(re.findall(r"`(\w+)`", labels))))
    assert found
    return found


class Scrape:
    """What a port tells."""

    def __init__(self, port: int) -> None:
        got = fetch(port, "/metrics")
        assert got.status == 200
        self.families = {
            family.name: family
            for family in text_string_to_metric_families(got.body.decode())
            if not family.name.startswith(("process_", "python_"))
        }

    def documented(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """The same as the page has: metric -> (type, labels); of families without samples the labels are unknown."""
        found = {}
        for name, family in self.families.items():
            kind, full = family.type, name
            if kind == "counter":
                full = f"{name}_total"
            elif name.endswith("_info"):
                kind = "info"
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[full] = (kind, tuple(sorted(labels)))
        return found

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        samples = [sample for family in self.families.values() for sample in family.samples]
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


async def scrape(port: int) -> Scrape:
    return await asyncio.to_thread(Scrape, port)


def agrees(told: Scrape, wanted: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
    shown = told.documented()
    assert shown.keys() == wanted.keys()
    for name, (kind, labels) in shown.items():
        assert kind == wanted[name][0], name
        samples = told.families[name.removesuffix("_total") if kind == "counter" else name].samples
        assert not samples or labels == wanted[name][1], name


@pytest.fixture
async def settings(
    broker: Any, redis_server: Any, clickhouse_server: Any, fresh_prefix: str, fresh_database: str, tmp_path: Path
) -> Settings:
    return await settings_on(
        broker,
        fresh_prefix,
        redis=redis_server,
        policy=written(POLICY, tmp_path),
        clickhouse_url=clickhouse_server.url,
        clickhouse_database=fresh_database,
        metrics_port=free_port(),
    )


@asynccontextmanager
async def running(role: Any, settings: Settings) -> AsyncIterator[None]:
    ending = Ending()
    task = asyncio.create_task(role(settings, ending=ending))
    try:
        yield
    finally:
        ending.request()
        await task


async def publish(settings: Settings, values: Iterable[bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka)
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(Topics.named(settings.topic_prefix).decisions, value, key=b"user:eve")
    finally:
        await producer.stop()


async def test_a_penalties_worker(settings: Settings) -> None:
    """It exposes the families of the page, and counts events, the penalty, the dead letter and an empty lag."""
    await publish(settings, [*(encode(denial(n, user="eve", at=now_ms() - 100)) for n in range(4)), b"no json"])
    async with running(run_penalties, settings):
        port = settings.metrics_port

        async def told() -> Any:
            try:
                found = await scrape(port)
            except OSError:
                return None
            done = found.value("penaltybox_acknowledged_records_total") == 5
            return found if done and found.value("penaltybox_outbox_subjects") == 0 and lag(found) == 0 else None

        found = await wait_until(told, 30, "five records done")
        agrees(found, documented(*OFTEN.values(), "Penalties"))
        assert found.value("penaltybox_process_info", role="penalties") == 1
        assert found.value("penaltybox_fetched_records_total") == 5
        assert found.value("penaltybox_stepped_events_total") == 4
        labels = {"rule": "abuse", "rung": "5m", "dimension": "user", "action": "deny", "shadow": "false"}
        assert found.value("penaltybox_penalties_total", origin="rule", **labels) == 1
        assert found.value("penaltybox_dead_letters_total", reason="not_json") == 1
        assert found.value("penaltybox_store_seconds_count", operation="write") >= 1
        assert found.value("penaltybox_resident_subjects") == 1
        assert (found.value("penaltybox_paused"), found.value("penaltybox_waiting")) == (0, 0)
    with pytest.raises(OSError, match="refused"):
        await scrape(settings.metrics_port)


def lag(found: Scrape) -> float | None:
    family = found.families.get("penaltybox_lag_records")
    return sum(sample.value for sample in family.samples) if family and family.samples else None


async def test_an_analytics_worker(settings: Settings) -> None:
    """It exposes the families of the page, and counts the rows that it stored and the record that it skipped."""
    await publish(settings, [*(encode(denial(n, user="eve", at=now_ms() - 100)) for n in range(4)), b"no json"])
    async with running(run_analytics, settings):

        async def told() -> Any:
            try:
                found = await scrape(settings.metrics_port)
            except OSError:
                return None
            done = found.value("penaltybox_acknowledged_records_total") == 5
            return found if done and lag(found) == 0 else None

        found = await wait_until(told, 30, "five records done")
        agrees(found, documented(*OFTEN.values(), "Analytics"))
        assert found.value("penaltybox_stored_rows_total", table="decisions") == 4
        assert found.value("penaltybox_skipped_records_total", table="decisions", reason="not_json") == 1
        assert found.value("penaltybox_insert_rows_sum") == 4


async def test_an_alerts_worker(settings: Settings) -> None:
    """It exposes the families of the page."""
    async with running(run_alerts, settings):

        async def told() -> Any:
            try:
                found = await scrape(settings.metrics_port)
            except OSError:
                return None
            return found if "penaltybox_lag_records" in found.families else None

        found = await wait_until(told, 30, "an alerts worker that tells")
        agrees(found, documented(*OFTEN.values(), "Alerts"))
        assert found.value("penaltybox_alerts_total") == 0


def test_a_decision_service(settings: Settings) -> None:
    """It exposes the families of the page; decisions are counted by scenario, action and reason, calls by status."""
    claim = json.dumps({"scenario": "coupon_claim", "subjects": {"user": "10086"}}).encode()
    with DecisionService(settings, Path(settings.policy)) as service:
        statuses = [fetch(service.port, "/v1/decide?http=1", method="POST", body=claim).status for _ in range(5)]
        assert statuses == [200] * 3 + [429] * 2
        assert fetch(service.port, "/nothing").status == 404
        found = Scrape(settings.metrics_port)
    wanted = documented("Every process", "The decision service")
    agrees(found, wanted | {"penaltybox_policy_info": documented("Penalties")["penaltybox_policy_info"]})
    count = "penaltybox_decisions_total"
    assert found.value(count, scenario="coupon_claim", action="allow", reason="limits") == 3
    assert found.value(count, scenario="coupon_claim", action="deny", reason="over_limit") == 2
    assert found.value("penaltybox_decision_seconds_count") == 5
    assert found.value("penaltybox_calls_total", way="decide", status="429") == 2
    assert found.value("penaltybox_calls_total", way="other", status="404") == 1
    assert found.value("penaltybox_publisher_records_total", fate="offered") == 5


def test_a_service_without_redis(settings: Settings) -> None:
    """Failure policies, errors and the outage are counted."""
    away = msgspec.structs.replace(settings, redis_url=f"redis://127.0.0.1:{free_port()}/0")
    claim = json.dumps({"scenario": "coupon_claim", "subjects": {"user": "10086"}}).encode()
    with DecisionService(away, Path(settings.policy)) as service:
        fetch(service.port, "/v1/decide", method="POST", body=claim)
        found = Scrape(settings.metrics_port)
    reasons = [sample.labels["reason"] for sample in found.families["penaltybox_decisions_without_redis"].samples]
    assert reasons == ["fail_open"]
    assert found.value("penaltybox_redis_away") == found.value("penaltybox_redis_outages_total") == 1
    assert found.value("penaltybox_redis_errors_total") >= 1


def test_a_restore() -> None:
    """Its progress is told while it runs."""
    with exposed(Settings(metrics_port=(port := free_port())), "restore") as registry:
        restore_progress(registry)(2000, 5000)
        found = Scrape(port)
    agrees(found, documented("Every process", "Restore"))
    assert found.value("penaltybox_restore_ladders", state="done") == 2000


def test_several_processes_share_the_setting() -> None:
    """Each takes the first free port; when there is none, that is a sentence."""
    port = two_free_ports()
    settings = Settings(metrics_port=port)
    with served(settings, new_registry("serve"), 2), served(settings, new_registry("serve"), 2):
        assert Scrape(port).value("penaltybox_process_info", role="serve") == 1
        assert Scrape(port + 1).value("penaltybox_process_info", role="serve") == 1
        with pytest.raises(ConfigurationError, match=r"metrics: cannot listen on 127\.0\.0\.1 port \d+"):
            served(settings, new_registry("serve"), 2).__enter__()


def test_no_port_no_registry() -> None:
    """Without the setting nothing is counted and no port is opened."""
    with exposed(Settings(), "penalties") as registry:
        assert registry is None


def test_label_values_are_bounded() -> None:
    """Whatever names a policy or an event generates, a family has a bounded number of series."""
    bounded = Bounded(2)
    seen = {bounded.of(f"rule-{n}", "1h") for n in range(100)}
    assert seen == {("rule-0", "1h"), ("rule-1", "1h"), ("other", "other")}
    assert bounded.of("rule-1", "1h") == ("rule-1", "1h")
