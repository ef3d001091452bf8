"""`penaltybox console`: serves the page on this machine until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Annotated

import typer

from penaltybox.cli.console import PolicyFile, out, policy_of, policy_path, settings
from penaltybox.cli.hand import actor_given
from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.errors import ConfigurationError


def console(
    *,
    host: Annotated[
        str, typer.Option(help="The address to listen on; else PENALTYBOX_CONSOLE_HOST.", show_default=False)
    ] = "",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="The port; else PENALTYBOX_CONSOLE_PORT.", show_default=False),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything; ban and unban nobody.")] = False,
    matures: Annotated[
        str,
        typer.Option(
            help="Count an episode for the false-positive rates when it is so old, e.g. 1m, instead of waiting for "
            "each label's own time: for trials.",
            show_default=False,
        ),
    ] = "",
    actor: Annotated[
        str,
        typer.Option(help="Who acts, unless they type another name; else PENALTYBOX_ACTOR.", show_default=False),
    ] = "",
    policy_file: PolicyFile = None,
) -> None:
    """Serve a web page with the blocklist, penalties as they happen, false positives and shared addresses.

    Listens on 127.0.0.1 port 8119 unless told otherwise, until SIGTERM or Ctrl-C. It prints an address with a token,
    which opens the page: whoever has it can look at everything, and ban and unban. Kafka, Redis or ClickHouse may be
    away: the page says what it does not show.

        penaltybox console

        penaltybox console --read-only --port 0
    """
    try:
        from penaltybox.cli.console_page import serving
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"console needs {error.name}: pip install 'penaltybox[console]'") from error
    from penaltybox.cli.console_page.desk import Given
    from penaltybox.cli.roles import log_as

    values = settings()
    policy = policy_of(policy_path(policy_file, values), values)
    matures_s = parse_duration(matures, "--matures") // 1000 if matures else None
    who = actor_given(actor) if actor or values.actor else ""
    given = Given(who, read_only=read_only, matures_s=matures_s)
    token = values.console_token or secrets.token_urlsafe(24)
    log_as(values.log_level)
    for name in ("aiokafka", "faust"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what is away is told in a sentence of ours
    host = host or values.console_host
    listener = serving.listen(host, values.console_port if port is None else port)
    where = serving.address_of(listener)
    warning = serving.exposure(host)
    # Output may end in a log: a token that was given is not repeated there.
    shown = f"{where}/ (its token is PENALTYBOX_CONSOLE_TOKEN)" if values.console_token else f"{where}/#token={token}"
    out.print(f"Console: {shown}", markup=False, soft_wrap=True)
    if warning:
        out.print(warning, markup=False)
    out.print("Ctrl-C ends it.")
    asyncio.run(serving.serve(listener, values, policy, given, token=token, names=[host, *values.console_names]))
