"""`penaltybox run`: a role in this process, or everything on this machine."""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penaltybox.cli.console import PolicyFile, kafka_errors, out, policy_of, policy_path, settings
from penaltybox.cli.setup import create_tables, create_topics
from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from penaltybox.cli.fleet import Fleet
    from penaltybox.contracts.settings import Settings
    from penaltybox.embedded.stack import EmbeddedStack
    from penaltybox.processors.ending import Ending


class Role(StrEnum):
    """What a process can be."""

    penalties = "penalties"
    analytics = "analytics"
    alerts = "alerts"


def run(
    role: Annotated[
        Role | None,
        typer.Argument(help="penalties: decisions to blocks. analytics: events to ClickHouse. alerts: webhook."),
    ] = None,
    *,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="All roles, with broker, Redis and ClickHouse on this machine.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="With --embedded: where Redis and ClickHouse keep their data.", show_default=False),
    ] = None,
    policy_file: PolicyFile = None,
) -> None:
    """Run a role until SIGTERM or Ctrl-C, or everything on this machine.

    On your servers, one process per role, as many of each as the topics have partitions:

        penaltybox run penalties

        penaltybox run analytics

        penaltybox run alerts

    On this machine, with nothing else installed (the broker forgets everything at the end, Redis and ClickHouse keep
    theirs in --data-dir):

        penaltybox run --embedded --data-dir ./data
    """
    values = settings()
    if policy_file is not None or values.policy:
        values = msgspec.structs.replace(values, policy=str(policy_path(policy_file, values)))
    policy_of(None, values)
    if embedded == (role is not None):
        raise ConfigurationError("run: wanted a role (penalties, analytics or alerts), or --embedded for everything")
    log_as(values.log_level)
    if embedded:
        asyncio.run(_everything(values, data_dir or (Path(values.data_dir) if values.data_dir else None)))
    elif role is not None:
        with kafka_errors(values):
            import_module(f"penaltybox.processors.{role.value}").main(values)


def log_as(level: str) -> None:
    """Log to standard error. DEBUG is for our own loggers: aiokafka's tells passwords, and every record's bytes."""
    logging.basicConfig(
        level=max(logging.getLevelNamesMapping()[level], logging.INFO),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
        force=True,
    )
    logging.getLogger("penaltybox").setLevel(level)


async def _everything(values: Settings, data_dir: Path | None) -> None:
    from penaltybox.cli.fleet import Fleet
    from penaltybox.embedded.stack import EmbeddedStack
    from penaltybox.processors.ending import Ending

    ending = Ending()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.request)
    async with EmbeddedStack(data_dir) as stack:
        here = stack.applied_to(values)
        if not await ending.outrun(create_topics(here), "the topics"):
            return
        if not await ending.outrun(asyncio.to_thread(create_tables, here), "ClickHouse's tables"):
            return
        roles = [Role.penalties.value, Role.analytics.value]
        roles += [Role.alerts.value] if here.alert_webhook_url else []
        fleet = Fleet(here, roles, stack.data_dir / "logs")
        try:
            await fleet.start()
            show_addresses(stack, values.policy)
            out.print("Ctrl-C ends all of it.")
            await until_ended(ending, fleet, stack)
        finally:
            await fleet.stop()


def show_addresses(stack: EmbeddedStack, policy: str = "") -> None:
    """How to look at an embedded stack from another terminal.

    Args:
        stack: it runs.
        policy: the file that its workers use until one is applied; commands elsewhere would take another one.
    """
    out.print("Running on this machine. In another terminal:")
    for name, value in (
        ("KAFKA", stack.kafka),
        ("REDIS_URL", stack.redis_url),
        ("CLICKHOUSE_URL", stack.clickhouse_url),
    ):
        out.print(f"  export PENALTYBOX_{name}={value}", markup=False)
    if policy:
        out.print(
            f"  export PENALTYBOX_POLICY={shlex.quote(str(Path(policy).resolve()))}", markup=False, soft_wrap=True
        )
    out.print("  penaltybox blocks")
    out.print(f"Data and logs: {stack.data_dir}", markup=False)


async def until_ended(ending: Ending, fleet: Fleet, stack: EmbeddedStack) -> None:
    """Until a signal; raises when a server or a role has died."""
    wish = asyncio.create_task(ending.wait())
    failure = asyncio.create_task(stack.wait_failed())
    try:
        while not wish.done():
            await asyncio.wait({wish, failure}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                raise failure.result()
            if not wish.done():
                fleet.check()
    finally:
        wish.cancel()
        failure.cancel()
