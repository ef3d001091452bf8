"""`penaltybox blocks export --format`: blocked addresses and ranges as the file of a firewall, proxy or CDN."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from penaltybox.cli.address_formats import FORMATS
from penaltybox.cli.address_lists import address_list
from penaltybox.cli.blocks import collect
from penaltybox.cli.console import err
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError, cause
from penaltybox.contracts.keyspace import Keyspace
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.feed.lines import mark_in_force
from penaltybox.producers.feed.list_entries import read_entries

if TYPE_CHECKING:
    from collections import Counter

    from penaltybox.cli.address_formats import Written
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.producers.feed.lines import InForce, Name


def known_format(name: str) -> str:
    """The name of a format.

    Raises:
        ConfigurationError: there is none of this name.
    """
    if name not in FORMATS:
        raise ConfigurationError(f"--format: got {name!r}, wanted csv, jsonl, or one of {', '.join(FORMATS)}")
    return name


def export_addresses(values: Settings, policy: Policy, file: str, form: str) -> None:
    """Writes the file, or standard output, and says what is not in it.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    names = asyncio.run(_in_force(values, policy, quiet=not file))
    written = FORMATS[form](address_list(names, at_ms := now_ms()), at_ms)
    if file:
        replace(Path(file), written.text)
    else:
        sys.stdout.write(written.text)
    err.print(summary(written, file or "the list"), markup=False)


async def _in_force(values: Settings, policy: Policy, *, quiet: bool) -> dict[Name, tuple[InForce, ...]]:
    from penaltybox.links.connections import endpoint_of, open_link

    link = open_link(endpoint_of(values))
    try:
        canonicaliser = Canonicaliser(values.ipv6_prefix, values.hashed_dimensions)
        names = await read_entries(link, Keyspace(values.redis_prefix), canonicaliser, policy.allow, now_ms())
    finally:
        await link.close()
    for block in await collect(values, None, quiet=quiet):
        name: Name = ("subject", block.subject)
        names[name] = (*names.get(name, ()), mark_in_force(block, now_ms()))
    return names


def summary(written: Written, where: str) -> str:
    """How much is in a file, and what is not, for people."""
    said = f"{written.networks:,} networks are in {where}."
    return f"{said} Not in it: {left_out(written.left_out)}." if written.left_out else said


def left_out(counts: Counter[str]) -> str:
    """What a list of addresses cannot hold, the most frequent first."""
    return ", ".join(f"{count:,} {why}" for why, count in counts.most_common())


def replace(file: Path, text: str) -> None:
    """Puts a file in the place of the old one in one step: a reader gets one of them, whole. Its mode stays.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o644
        with NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.", delete=False, encoding="utf-8") as made:
            try:
                made.write(text)
                made.flush()
                os.fsync(made.fileno())
                Path(made.name).chmod(mode)
                Path(made.name).replace(file)
            except BaseException:
                Path(made.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {cause(error)}") from error
