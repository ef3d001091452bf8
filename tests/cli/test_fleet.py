"""Roles as processes: one that dies is told with its last words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penaltybox.cli.fleet import Fleet, RoleFailed
from penaltybox.contracts.settings import Settings
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_role_that_dies_is_told_with_its_log(tmp_path: Path) -> None:
    """A worker whose policy cannot be read ends by itself; the report names it, its code, and what it said."""
    fleet = Fleet(Settings(policy=str(tmp_path / "none.yaml")), ["penalties"], tmp_path / "logs")
    await fleet.start()
    try:
        (process,) = fleet.processes.values()
        await wait_until(lambda: not process.running, deadline_s=30)
        with pytest.raises(RoleFailed, match=r"penalties-1 has ended with code 2") as caught:
            fleet.check()
        assert "none.yaml: cannot be read" in str(caught.value)
    finally:
        await fleet.stop()
