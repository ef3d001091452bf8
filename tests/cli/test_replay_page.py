"""The page of a comparison: whole, harmless, and readable in a browser."""

from __future__ import annotations

import subprocess
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from penaltybox.cli.replay_page import page, write_page
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.processors.replay.conditions import Failure
from penaltybox.processors.replay.findings import report_of
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE
from tests.cli.test_replay_report import HOSTILE, story
from tests.processors.replay.runs import Run

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = {BASELINE: "0123456789ab", CANDIDATE: "ba9876543210"}
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Outline(HTMLParser):
    """Every element, its attributes, and whether all are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def text() -> str:
    return page(report_of(story().comparison), VERSIONS, [Failure("fdr.ip > 0", f"because {HOSTILE}")])


@pytest.fixture(scope="module")
def outline(text: str) -> Outline:
    parsed = Outline()
    parsed.feed(text)
    parsed.close()
    assert not parsed.open
    return parsed


def test_hostile_texts_stay_texts(outline: Outline) -> None:
    """No script, no handler, no address to load from; what a subject is called can be read."""
    names = {tag for tag, _ in outline.elements}
    assert names.isdisjoint({"script", "iframe", "img", "link", "object", "image", "foreignobject"})
    for tag, attrs in outline.elements:
        for name, value in attrs.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href", "action"):
                assert (value or "").startswith("#")
    assert any("<script>alert(1)</script>" in text for text in outline.texts)
    assert "\x1b" not in "".join(outline.texts)


def test_nothing_is_loaded_and_nothing_may_be(text: str, outline: Outline) -> None:
    """A policy forbids everything but inline style; there are no addresses but names of formats."""
    metas = [attrs for tag, attrs in outline.elements if tag == "meta"]
    (policy,) = [attrs["content"] for attrs in metas if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "url(http" not in text
    assert "@import" not in text


def test_plots_have_ids_of_their_own_and_the_pages_colours(outline: Outline, text: str) -> None:
    """Three plots in one page do not share clip paths; no fixed colour is left in them; each is described."""
    ids = [attrs["id"] for _, attrs in outline.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    drawn = [attrs for tag, attrs in outline.elements if tag == "svg"]
    assert len(drawn) == 3
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in drawn)
    for tag, attrs in outline.elements:
        for name, value in attrs.items():
            if name in ("href", "xlink:href", "clip-path"):
                assert (value or "").removeprefix("url(").removeprefix("#").removesuffix(")") in ids, (tag, value)
    assert "var(--candidate)" in text
    assert "fill: #0" not in text


def test_shadow_penalties_are_marked(text: str) -> None:
    """In the table and in the plot."""
    assert '<tr class="shadow">' in text
    assert "tried → 5m (shadow)" in text


def test_the_same_comparison_makes_the_same_page(text: str) -> None:
    """No clock, no chance: two pages can be compared."""
    failures = [Failure("fdr.ip > 0", f"because {HOSTILE}")]
    assert page(report_of(story().comparison), VERSIONS, failures) == text


def test_a_page_of_nothing_is_a_page() -> None:
    """Without a penalty there are no plots, and no error."""
    run = Run()
    run.decision()
    assert "<svg" not in page(report_of(run.comparison), {})


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A sentence with the path."""
    run = Run()
    run.decision()
    (tmp_path / "page").mkdir()
    with pytest.raises(ConfigurationError, match=r"--html .*page: Is a directory"):
        write_page(tmp_path / "page", report_of(run.comparison), {})


@pytest.mark.programs("chromium")
def test_a_browser_shows_it_without_complaint(text: str, tmp_path: Path) -> None:
    """Chromium lays the page out and finds nothing to say about it: no blocked load, no script, no error."""
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    browser = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "What the policy would change" in browser.stdout
    assert browser.stdout.count("<svg") == 3
    assert "<script" not in browser.stdout
    assert ":CONSOLE" not in browser.stderr
