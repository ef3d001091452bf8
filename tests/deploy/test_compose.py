"""docker-compose.yml, .env.example and what they mount agree with each other, the command line and the settings.

No container is started here: the file is checked against the Compose specification's schema, and every name in it
against what it names.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml
from typer.main import get_command

from penaltybox.cli.commands import app
from penaltybox.contracts.settings import PREFIX, Settings, read_settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, one in SERVICES.items() if one["image"].startswith("penaltybox:")]
STAY = [name for name in OURS if SERVICES[name]["restart"] == "unless-stopped"]
EXAMPLE = (ROOT / ".env.example").read_text(encoding="utf-8")
OFFERED = dict(re.findall(r"^([A-Z][A-Z0-9_]*)=(.*)$", EXAMPLE, re.MULTILINE))
SECRET = "s3cret-of-this-test"  # noqa: S105 - of this test
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z0-9_]+)(?:(:\?|:-)([^}]*))?\}")


def filled(value: Any) -> str:
    """A value with its variables filled in: what `.env.example` offers, the default, or some secret."""
    return VARIABLE.sub(lambda found: OFFERED.get(found[1]) or (found[3] if found[2] == ":-" else SECRET), str(value))


def environment(name: str) -> dict[str, str]:
    return {key: filled(value) for key, value in SERVICES[name].get("environment", {}).items()}


def settings(name: str) -> Settings:
    return read_settings({key: value for key, value in environment(name).items() if key.startswith(PREFIX)})


def test_it_is_a_compose_file() -> None:
    """It passes the JSON Schema of the Compose specification."""
    # By its place: the package is there for this file, and need not be importable beside our version of click.
    path = distribution("check-jsonschema").locate_file("check_jsonschema/builtin_schemas/vendor/compose-spec.json")
    schema = json.loads(Path(str(path)).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(COMPOSE)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({"services": {"kafka": {"imagee": "x"}}})


def test_the_example_environment_is_complete() -> None:
    """Each variable of the file is offered by .env.example and the other way round; secrets there are empty."""
    named = {found[1] for found in VARIABLE.finditer(TEXT)}
    assert named == OFFERED.keys()
    required = {found[1] for found in VARIABLE.finditer(TEXT) if found[2] == ":?"}
    assert {name for name in OFFERED if re.search("PASSWORD|SECRET|TOKEN", name)} - required == {
        "PENALTYBOX_ALERT_WEBHOOK_SECRET"
    }
    assert not any(OFFERED[name] for name in required), "a secret that everybody knows is none"
    read_settings({name: value for name, value in OFFERED.items() if name.startswith(PREFIX)})


@pytest.mark.parametrize("name", OURS)
def test_our_services_are_called_as_the_command_line_has_it(name: str) -> None:
    """Command and options exist, and the settings are settings, with values that are allowed."""
    settings(name)
    arguments = list(SERVICES[name].get("command", ["version"]))
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(name, arguments)


@pytest.mark.parametrize("name", OURS)
def test_addresses_name_services_that_listen_there(name: str) -> None:
    """Kafka, Redis and ClickHouse are named by their services, with the ports that these open."""
    values = settings(name)
    kafka = dict(re.findall(r"(\w+)://[^:,]*:(\d+)", SERVICES["kafka"]["environment"]["KAFKA_LISTENERS"]))
    assert values.kafka == f"kafka:{kafka['INSIDE']}"
    assert f"INSIDE://{values.kafka}," in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert (urlsplit(values.redis_url).hostname, urlsplit(values.redis_url).port) == ("valkey", 6379)
    assert (urlsplit(values.clickhouse_url).hostname, urlsplit(values.clickhouse_url).port) == ("clickhouse", 8123)
    clickhouse = environment("clickhouse")
    assert values.clickhouse_username == clickhouse["CLICKHOUSE_USER"]
    assert values.clickhouse_database == clickhouse["CLICKHOUSE_DB"]
    passwords = SERVICES["clickhouse"]["environment"]["CLICKHOUSE_PASSWORD"], "${VALKEY_PASSWORD:?set it in .env}"
    ours = SERVICES[name]["environment"]
    assert (ours["PENALTYBOX_CLICKHOUSE_PASSWORD"], ours["PENALTYBOX_REDIS_PASSWORD"]) == passwords


def test_ports_are_open_on_this_machine_only() -> None:
    """Everything that is published is published on 127.0.0.1, once, and by who listens on it."""
    published = {name: one["ports"] for name, one in SERVICES.items() if "ports" in one}
    parts = {name: [port.split(":") for port in ports] for name, ports in published.items()}
    assert all(address == "127.0.0.1" for ports in parts.values() for address, _, _ in ports)
    outside = [port for ports in parts.values() for _, port, _ in ports]
    assert len(outside) == len(set(outside))
    assert {name: int(ports[0][2]) for name, ports in parts.items()} == {
        "kafka": 9092,
        "valkey": 6379,
        "clickhouse": 8123,
        "serve": settings("serve").serve_port,
        "console": settings("console").console_port,
        "prometheus": 9090,
        "grafana": 3000,
    }
    listeners = SERVICES["kafka"]["environment"]
    assert "OUTSIDE://:9092" in listeners["KAFKA_LISTENERS"]
    assert listeners["KAFKA_ADVERTISED_LISTENERS"].endswith("OUTSIDE://127.0.0.1:9092")


@pytest.mark.parametrize("name", STAY)
def test_health_checks_ask_what_is_there(name: str) -> None:
    """Whoever is asked for its health by HTTP listens on that port, and on every address of its container."""
    (port, path) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", str(SERVICES[name]["healthcheck"]["test"]))[0]
    values = settings(name)
    listening = {
        "/metrics": (values.metrics_host, values.metrics_port),
        "/healthz": {
            "serve": (values.serve_host, values.serve_port),
            "console": (values.console_host, values.console_port),
        }.get(name),
    }[path]
    assert listening == ("0.0.0.0", int(port))  # noqa: S104 - inside its own network


@pytest.mark.parametrize("name", SERVICES)
def test_who_waits_for_whom(name: str) -> None:
    """A service that is waited for exists, and can be in the state that is waited for."""
    for other, how in SERVICES[name].get("depends_on", {}).items():
        condition = how["condition"]
        if condition == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        if condition == "service_completed_successfully":
            assert SERVICES[other]["restart"].startswith("on-failure"), "it would be started again for ever"


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_bounded(name: str) -> None:
    """Pinned version, memory limit, no new privileges where the image allows it, a health check if it stays."""
    service = SERVICES[name]
    assert re.search(r":v?\d+\.\d+(\.\d+)*$", service["image"])
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert not {"privileged", "network_mode", "cap_add", "container_name"} & service.keys()
    assert service["networks"] == ["penaltybox"]
    if name in OURS:
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    if service["restart"] == "unless-stopped":
        assert "healthcheck" in service
    if name in OURS and service["restart"] == "unless-stopped":
        grace = int(service["stop_grace_period"].removesuffix("s"))
        assert grace > settings(name).stop_timeout_s


def test_volumes_and_mounts() -> None:
    """Named volumes are declared and used; a file or directory that is mounted is in the repository, read-only."""
    mounts = [mount.split(":") for one in SERVICES.values() for mount in one.get("volumes", [])]
    assert {source for source, *_ in mounts if not source.startswith(".")} == COMPOSE["volumes"].keys()
    for source, _, *mode in (mount for mount in mounts if mount[0].startswith(".")):
        assert (ROOT / source).exists(), source
        assert mode == ["ro"]
    policy = settings("penalties").policy
    assert (ROOT / policy.lstrip("/")).is_file()


def test_prometheus_scrapes_whoever_tells_metrics() -> None:
    """Each service that stays and has a metrics port is scraped there, by its own name, through the network."""
    (job,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    (lookup,) = job["dns_sd_configs"]
    stay = [name for name in STAY if settings(name).metrics_port]
    assert sorted(lookup["names"]) == sorted(stay)
    assert {settings(name).metrics_port for name in stay} == {lookup["port"]}
    assert all(settings(name).metrics_host == "0.0.0.0" for name in stay)  # noqa: S104 - inside its own network
    assert {"penalties", "analytics", "alerts", "serve"} <= set(stay)


def test_grafana_reads_as_a_user_that_may_only_read() -> None:
    """The reader's password comes from the environment, its profile is read-only, it may SELECT from our database."""
    document = ET.parse(ROOT / "deploy" / "clickhouse" / "reader.xml")  # noqa: S314 - our own file
    reader = document.find("users/reader")
    assert reader is not None
    password = reader.find("password")
    assert password is not None
    variable = password.attrib["from_env"]
    assert variable in SERVICES["clickhouse"]["environment"]
    assert variable in SERVICES["grafana"]["environment"]
    assert reader.findtext("grants/query") == f"GRANT SELECT ON {settings('setup').clickhouse_database}.*"
    assert document.findtext(f"profiles/{reader.findtext('profile')}/readonly") == "2"
