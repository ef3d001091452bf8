"""Named places in a worker's life at which a fault-injection test may act. No-ops in production."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

SeamName = Literal["after_redis_write", "after_produce", "before_ack", "before_commit"]

if TYPE_CHECKING:
    Seam = Callable[[SeamName], None]


def no_seam(_name: SeamName) -> None:
    """Do nothing: what every worker outside a fault-injection test does at a seam."""
