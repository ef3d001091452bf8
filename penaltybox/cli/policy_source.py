"""Which policy a command works with: the one that is named, else the one in force in Redis, else the file's."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penaltybox.cli.console import policy_path
from penaltybox.cli.control import opened
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.policy_versions import MAX_TEXT_BYTES
from penaltybox.contracts.policy_yaml import read_policy_text

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.policy_versions import StoredPolicy
    from penaltybox.contracts.settings import Settings
    from penaltybox.links.policies import InForce

_VERSION = re.compile(r"[0-9a-f]{12}", re.ASCII)
CURRENT = "current"


class Named(NamedTuple):
    """A policy, its text, and what it is called."""

    policy: Policy
    text: str
    name: str


def in_force(values: Settings) -> InForce | None:
    """What Redis has in force; None when nothing was ever applied there.

    Raises:
        StoreUnavailable: Redis does not answer.
        ConfigurationError: what is stored is no policy to this release.
    """

    async def read() -> InForce | None:
        from penaltybox.links.policies import read_in_force

        async with opened(values) as (link, _):
            return await read_in_force(link, values.redis_prefix)

    return asyncio.run(read())


def named_policy(text: str, values: Settings) -> Named:
    """A policy by what a person types: a file, a version, or ``current``.

    Raises:
        StoreUnavailable: Redis does not answer.
        ConfigurationError: there is no such policy.
    """
    if text == CURRENT:
        found = in_force(values)
        if found is not None:
            return Named(found.policy, found.stored.text, f"{found.switch.version} (in force)")
        return read_file(None, values)
    if _VERSION.fullmatch(text) and not Path(text).exists():
        stored = stored_version(text, values)
        return Named(stored.policy(), stored.text, text)
    return read_file(Path(text), values)


def stored_version(version: str, values: Settings) -> StoredPolicy:
    """A version that Redis has.

    Raises:
        StoreUnavailable: Redis does not answer.
        ConfigurationError: it has none of that name.
    """

    async def read() -> StoredPolicy | None:
        from penaltybox.links.policies import read_policy

        async with opened(values) as (link, _):
            return await read_policy(link, version, values.redis_prefix)

    stored = asyncio.run(read())
    if stored is None:
        raise ConfigurationError(
            f"policy version: got {version}, wanted one that Redis knows; see penaltybox policy history"
        )
    return stored


def read_file(path: Path | None, values: Settings) -> Named:
    """The policy of a file.

    Raises:
        ConfigurationError: it cannot be read, is too large, or is no policy.
    """
    chosen = policy_path(path, values)
    text = read_policy_text(chosen, f"policy {chosen}")
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise ConfigurationError(f"policy {chosen}: got {len(text):,} characters, wanted at most {MAX_TEXT_BYTES:,}")
    return Named(parse_policy(text, str(chosen)), text, str(chosen))
