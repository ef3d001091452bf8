"""A worker's policy: the one in Redis, else the file's; and how it changes while the worker runs."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.policy_file import default_policy_path
from penaltybox.contracts.policy_versions import StoredPolicy
from penaltybox.processors.engine import Engine
from penaltybox.sinks.policy_versions import remember

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.settings import Settings
    from penaltybox.links.policies import InForce, PolicyWatch
    from penaltybox.sinks.untold import Untold

log = logging.getLogger("penaltybox.policy")


class Switchable(Protocol):
    """What works by an engine."""

    def replace_engine(self, engine: Engine) -> None:
        """Work by this one from now on, or as soon as may be."""


def switching(engine: Engine, *parts: Switchable) -> Callable[[InForce], None]:
    """What gives the parts of a worker, which begin with `engine`, the policy that has come into force."""
    current = engine

    def adopt(found: InForce) -> None:
        nonlocal current
        if found.policy.version != current.version:
            current = Engine(found.policy, engine.canonicaliser)
            for part in parts:
                part.replace_engine(current)

    return adopt


async def begin_policy(watch: PolicyWatch, engine: Engine, untold: Untold, settings: Settings) -> None:
    """Take over the policy in Redis. Where there is none the file's is in force, and its text is remembered.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    path = Path(settings.policy or default_policy_path())
    found = await watch.look()
    if found is not None:
        if found.policy.version != engine.version:
            log.warning("The policy in %s, version %s, is not used: Redis has one in force", path, engine.version)
        return
    log.info("Policy %s is in force, from %s", engine.version, path)
    text = await asyncio.to_thread(path.read_text, encoding="utf-8")
    stored = StoredPolicy(
        version=engine.version, text=text, name=path.name, actor="worker", reason="from the file", ts=now_ms()
    )
    await remember(untold, stored)
