"""docs/ladder.md shows what the scenarios do."""

from __future__ import annotations

from pathlib import Path

from tests.ladder_page import page

ROOT = Path(__file__).parent.parent.parent


def test_the_page_is_current() -> None:
    """Every timeline on the page is drawn from the scenarios as they are (python -m tests.ladder_page)."""
    assert (ROOT / "docs" / "ladder.md").read_text(encoding="utf-8") == page()


def test_each_definition_has_a_timeline() -> None:
    """All eight definitions are there, and none without a case that the tests run."""
    sections = page().split("\n## ")
    for number in range(1, 9):
        (section,) = [one for one in sections if one.startswith(f"{number}. ")]
        assert "```text" in section
