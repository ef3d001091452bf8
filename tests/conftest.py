"""Options and servers for all tests. Servers are real and local; see tests/servers.py for what the fixtures hold."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.redis_servers import redis_by_kind
from tests.servers import (
    broker,
    clickhouse_server,
    fresh_database,
    fresh_prefix,
    fresh_topic,
    private_broker,
    private_clickhouse,
    private_redis,
    redis_server,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEFT_OUT = pytest.StashKey[list[str]]()
TOLD = "told"
BROKERS = {"broker", "private_broker"}

__all__ = [
    "broker",
    "clickhouse_server",
    "fresh_database",
    "fresh_prefix",
    "fresh_topic",
    "private_broker",
    "private_clickhouse",
    "private_redis",
    "redis_by_kind",
    "redis_server",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kafka",
        action="store_true",
        help="run the stack tests against Apache Kafka (Maven and Java required; missing ones fail, they don't skip)",
    )
    parser.addoption(
        "--screenshots",
        action="store_true",
        help="write the console's screenshots into docs/images, in tests/stack/test_console_pictures.py",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of what only Apache Kafka has, or of programs that are missing, are not in the run; the summary says so.

    A run against Apache Kafka leaves out what has no broker: those tests would say again what they say without it.
    """
    left_out = {item: why for item in items if (why := _missing(config, item))}
    config.stash[LEFT_OUT] = [f"{item.nodeid}: {why}" for item, why in left_out.items()]
    aside = [item for item in items if item in left_out or (config.getoption("--kafka") and not _on_kafka(item))]
    if aside:
        items[:] = [item for item in items if item not in aside]
        config.hook.pytest_deselected(items=aside)


def _on_kafka(item: pytest.Item) -> bool:
    if item.get_closest_marker("any_broker"):
        return False
    return item.get_closest_marker("apache_kafka") is not None or not BROKERS.isdisjoint(item.fixturenames)


def _missing(config: pytest.Config, item: pytest.Item) -> str:
    """What a test needs and this run lacks. In CI nothing may lack: the test is run, and fails."""
    if item.get_closest_marker("apache_kafka") and not config.getoption("--kafka"):
        return "needs Apache Kafka (make test-kafka)"
    wanted = [name for mark in item.iter_markers("programs") for name in mark.args]
    missing = [name for name in wanted if not _installed(name)]
    return f"needs {', '.join(missing)}" if missing and os.environ.get("CI") != "true" else ""


def _installed(program: str) -> bool:
    """On the PATH, or beside this Python: some servers come in wheels."""
    return shutil.which(program) is not None or (Path(sys.executable).parent / program).exists()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands over what it left out; all workers collect the same."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ARG001 - the hook's signature
    """Take it from the worker."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What this run could not check, and why; and what the tests told."""
    for sentence in config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(f"NOT CHECKED: {sentence}")
    # A report has all that its test told so far; the one after teardown is the last.
    ends = [one for found in terminalreporter.stats.values() for one in found if getattr(one, "when", "") == "teardown"]
    for sentence in [sentence for end in ends for name, sentence in end.user_properties if name == TOLD]:
        terminalreporter.write_line(str(sentence))


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """`tell(sentence)` puts a sentence about this test into the run's summary: figures, and what was not checked."""
    properties = request.node.user_properties
    return lambda sentence: properties.append((TOLD, f"{request.node.name}: {sentence}"))


@pytest.fixture(scope="session")
def servers_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("servers")
