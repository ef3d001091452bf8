"""docs/operations.md, Alerts: the snippet that checks a signature accepts ours, and refuses anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penaltybox.links.webhook import IDENTITY, SIGNATURE, TIMESTAMP, signature
from tests.docs.fenced_blocks import fenced_blocks

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_snippet_checks_what_is_sent() -> None:
    """A signed body is ours; a changed body, another secret, or an old timestamp is not."""
    (snippet,) = [block for block in fenced_blocks(PAGE) if block.language == "python"]
    names: dict[str, Any] = {}
    exec(compile(snippet.text, "operations.md", "exec"), names)  # noqa: S102 - our own page
    is_ours = names["is_ours"]
    headers = {TIMESTAMP: "1800000000", SIGNATURE: signature("key", "1800000000", b"{}")}
    assert is_ours("key", headers, b"{}", 1_800_000_010)
    assert not is_ours("key", headers, b"{ }", 1_800_000_010)
    assert not is_ours("other", headers, b"{}", 1_800_000_010)
    assert not is_ours("key", headers, b"{}", 1_800_000_301)


def test_the_headers_are_named() -> None:
    """The page names each header that is sent."""
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in (TIMESTAMP, SIGNATURE, IDENTITY) if name not in text] == []
