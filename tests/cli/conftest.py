"""What the tests of commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.desks import Desk
from tests.redis_servers import BINARIES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def bare_desk(redis_by_kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A command line in front of a Redis that no worker has used."""
    return Desk(redis_by_kind[next(iter(BINARIES))], monkeypatch, tmp_path)


@pytest.fixture
def desk(bare_desk: Desk) -> Desk:
    """A command line in front of a Redis that workers have used."""
    bare_desk.begin()
    return bare_desk
