"""`penaltybox enforce …`: keeps the list of addresses of a proxy, web server or firewall as the blocklist says."""

from __future__ import annotations

import asyncio
import gc
import shlex
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penaltybox.cli.address_export import known_format
from penaltybox.cli.console import policy_of, settings
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.subjects import Canonicaliser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.cli.enforcement import Target
    from penaltybox.contracts.settings import Settings
    from penaltybox.producers.feed.follower import Source

app = typer.Typer(help="Keep the blocked addresses of a proxy, web server or firewall current.", no_args_is_help=True)
_FEED: Final = "The decision service whose feed is followed, e.g. http://127.0.0.1:8118; else Redis is asked itself."
From = Annotated[str, typer.Option("--from", help=_FEED, show_default=False)]
Memory = Annotated[
    Path | None,
    typer.Option(
        help="Where what is known is kept for a restart; else beside the file, with .feed.", show_default=False
    ),
]
Run = Annotated[str, typer.Option("--run", help="What to run after a change, without a shell.")]
File = Annotated[Path, typer.Argument(help="The file that the program reads; made, and replaced in one step.")]


@app.command("haproxy")
def haproxy_(
    file: Annotated[Path, typer.Argument(help="The map, by the path that HAProxy's configuration has.")],
    *,
    socket: Annotated[Path, typer.Option(help="HAProxy's stats socket, with level admin.")],
    feed: From = "",
    memory: Memory = None,
) -> None:
    """Keep a map of HAProxy current through its runtime socket, without reloads.

    The file is kept too, for HAProxy's next start. docs/gateways/haproxy.md has a complete configuration.

        penaltybox enforce haproxy /etc/haproxy/penaltybox.map --socket /run/haproxy/admin.sock
    """
    from penaltybox.cli.haproxy_map import HaproxyMap

    _enforce(HaproxyMap(file, socket), file, feed, memory)


@app.command("nginx")
def nginx_(file: File, *, run: Run = "nginx -s reload", feed: From = "", memory: Memory = None) -> None:
    """Keep a file for nginx's `geo` block current, and have nginx read it again.

    penaltybox enforce nginx /etc/nginx/penaltybox.geo
    """
    _enforce_file(file, "nginx-geo", run, feed, memory)


@app.command("apache")
def apache_(file: File, *, run: Run = "apachectl -k graceful", feed: From = "", memory: Memory = None) -> None:
    """Keep a file of Apache's `Require not ip` current, and have Apache read it again.

    penaltybox enforce apache /etc/apache2/penaltybox.conf
    """
    _enforce_file(file, "apache", run, feed, memory)


@app.command("file")
def file_(
    file: File,
    *,
    form: Annotated[str, typer.Option("--format", help="As `blocks export --format`, e.g. plain, nftables.")] = "plain",
    run: Run = "",
    feed: From = "",
    memory: Memory = None,
) -> None:
    """Keep any file of `blocks export --format` current, and run something after a change.

    penaltybox enforce file /etc/penaltybox.nft --format nftables --run "nft -f /etc/penaltybox.nft"
    """
    _enforce_file(file, known_format(form), run, feed, memory)


def _enforce_file(file: Path, form: str, run: str, feed: str, memory: Path | None) -> None:
    from penaltybox.cli.enforcement import ListFile

    try:
        command = shlex.split(run)
    except ValueError as error:
        raise ConfigurationError(f"--run: got {run!r}: {error}") from error
    _enforce(ListFile(file, form, command), file, feed, memory)


def _enforce(target: Target, file: Path, feed: str, memory: Path | None) -> None:
    from penaltybox.cli.roles import log_as
    from penaltybox.producers.feed.http_source import HttpSource

    values = settings()
    if not file.parent.is_dir():
        raise ConfigurationError(f"{file}: there is no directory {file.parent}")
    if feed:
        HttpSource(feed)  # a mistake in it is told before anything begins
    log_as(values.log_level)
    gc.set_threshold(200_000, 20, 20)  # a list of 100,000 has no cycles, and looking for them is half of its time
    asyncio.run(_until_stopped(values, target, memory or file.with_name(f"{file.name}.feed"), feed))


async def _until_stopped(values: Settings, target: Target, memory: Path, feed: str) -> None:
    from penaltybox.cli.enforcement import Enforcement

    async with _source(values, feed) as source:
        task = asyncio.ensure_future(Enforcement(source, target, memory).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()


@asynccontextmanager
async def _source(values: Settings, feed: str) -> AsyncIterator[Source]:
    if feed:
        from penaltybox.producers.feed.http_source import HttpSource

        yield HttpSource(feed, values.serve_secret)
        return
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.links.policies import PolicyWatch
    from penaltybox.producers.feed.feed import Feed, RedisSource
    from penaltybox.sinks.blocklist import Blocklist

    link = open_link(endpoint_of(values))
    followed = Feed(
        link,
        Blocklist(link, values.redis_prefix),
        prefix=values.redis_prefix,
        canonicaliser=Canonicaliser(values.ipv6_prefix, values.hashed_dimensions),
        allow=policy_of(None, values).allow,  # until Redis says another one
    )
    watch = PolicyWatch(link, values.redis_prefix, lambda found: followed.replace_allow(found.policy.allow))
    watching = asyncio.create_task(watch.watch())
    try:
        yield RedisSource(followed)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await followed.close()
        await link.close()
