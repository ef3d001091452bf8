"""`penaltybox blocks [list] | export | import`: who is denied or challenged right now; to files and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import Progress as Bar
from typer.core import TyperGroup

from penaltybox.cli.console import AsJson, err, instant, left, out, print_json, settings, table, tell
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.subjects import DIMENSION

if TYPE_CHECKING:
    from rich.console import Group

    from penaltybox.contracts.settings import Settings
    from penaltybox.sinks.blocklist import Block, Progress


class ListByDefault(TyperGroup):
    """`penaltybox blocks ip` is `penaltybox blocks list ip`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts `list` in front of what is no command."""
        named = args[:1] and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if named else ["list", *args])


_ODD_SHOWN: Final = 20
app = typer.Typer(cls=ListByDefault, help="Who is denied or challenged now; to files and back.")


@app.command("list")
def blocks(
    dimension: Annotated[
        str, typer.Argument(help="Only subjects of this dimension, e.g. ip.", show_default=False)
    ] = "",
    *,
    limit: Annotated[int, typer.Option(min=1, help="Rows in the table.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List who is denied or challenged now, with what is left of it.

    Walks the keys by SCAN, so it does no harm to a busy Redis. With --json: all of them, one a line.

        penaltybox blocks ip --limit 20
    """
    if dimension and not all(DIMENSION.fullmatch(part) for part in dimension.split("+")):
        raise ConfigurationError(f"dimension: got {dimension!r}, wanted for example ip, device, or device+route")
    found = asyncio.run(collect(settings(), dimension or None, quiet=as_json))
    found.sort(key=lambda block: (block.kind != "deny", -(block.ttl_ms or 1 << 62), block.subject))
    if as_json:
        for block in found:
            print_json(block._asdict())
    elif not found:
        out.print("Nobody is denied or challenged.")
    else:
        out.print(listing(found, limit))


def listing(found: list[Block], limit: int) -> Group:
    """The table of blocks, denials first, of each the longest first."""
    rows = [
        (block.subject, block.kind, left(block.ttl_ms), instant(block.until), block.rung, block.rule)
        for block in found[:limit]
    ]
    denied = sum(block.kind == "deny" for block in found)
    title = f"{denied:,} denied, {len(found) - denied:,} challenged" + (
        f" (first {limit})" if len(found) > limit else ""
    )
    return table(title, ["subject", "what", "left", "until", "rung", "rule"], rows, right=["left"])


async def collect(values: Settings, dimension: str | None, *, quiet: bool) -> list[Block]:
    """Every block and challenge, in no order, with a progress bar unless `quiet`."""
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.sinks.blocklist import Blocklist

    link = open_link(endpoint_of(values))
    try:
        with Bar(console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
            task = bar.add_task("keys", total=None)

            def report(progress: Progress) -> None:
                bar.update(task, completed=progress.examined, total=progress.total)

            blocklist = Blocklist(link, values.redis_prefix)
            found = [block async for block in blocklist.blocks(dimension, report)]
        for key in blocklist.odd[:_ODD_SHOWN]:
            tell(f"{key!r} is left out, and blocks nobody: another program wrote it. DEL it, if nobody needs it.")
        return found
    finally:
        await link.close()
