"""The settings of a test on real servers: names of its own, a policy of its own, topics that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penaltybox.cli.setup import create_topics
from penaltybox.contracts.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


async def settings_on(
    broker: Any, name: str, *, redis: Any = None, policy: Path | None = None, **more: Any
) -> Settings:
    """Settings with topics.

    Args:
        broker: where the topics are made.
        name: prefix of topics and of keys.
        redis: the server, if the test needs one.
        policy: file of the policy.
        more: other settings, or other values for these.
    """
    values: dict[str, Any] = {
        "kafka": broker.bootstrap,
        "kafka_partitions": 2,
        "kafka_session_timeout_ms": 2000,
        "topic_prefix": name,
        "stop_timeout_s": 4,
    }
    if redis is not None:
        values |= {"redis_url": redis.url, "redis_prefix": name}
    if policy is not None:
        values["policy"] = str(policy)
    made = Settings(**(values | more))
    await create_topics(made)
    return made


def written(text: str, folder: Path) -> Path:
    """A policy's text as a file."""
    path = folder / "policy.yaml"
    path.write_text(text)
    return path
