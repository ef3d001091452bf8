"""Files of allowlist entries: what ends a line, and what is no cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penaltybox.cli.allow_files import read_entries
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.listing import as_address

if TYPE_CHECKING:
    from pathlib import Path


def address(text: str) -> str:
    """A name that is an address."""
    if as_address(text) is None:
        raise ConfigurationError("no address")
    return text


@pytest.mark.parametrize("start", ["", "entry,until,note\n"])
def test_a_note_lists_nobody(tmp_path: Path, start: str) -> None:
    """Only a line's end ends a line: what Unicode takes for one too may stand in a note. Any cell is told."""
    file = tmp_path / "allow"
    entry = f"192.0.2.1{',,' if start else ' # '}of ann\u2028192.0.2.9\u0085192.0.2.8\x0b192.0.2.7\n"
    file.write_text(f"{start}{entry}{'x' * 200_000}\n192.0.2.2\r\n", newline="")
    found, wrong = read_entries(file, address, 0)
    assert list(found) == ["192.0.2.1", "192.0.2.2"]
    assert [number for number, _ in wrong] == [start.count("\n") + 2]
