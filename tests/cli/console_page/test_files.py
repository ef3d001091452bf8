"""The page's files: complete, harmless under its own policy, and the vendored library as it was published."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from typing import Any

import pytest

from penaltybox.cli.console_page.access import CONTENT_SECURITY
from penaltybox.cli.console_page.application import PAGE, page_files

FILES = page_files()
SCRIPTS = sorted(path for path in PAGE.rglob("*.js"))
OWN = [path for path in SCRIPTS if "vendor" not in path.parts]
DANGEROUS = re.compile(r"\bstyle=|innerHTML|insertAdjacentHTML|\beval\(|new Function|unsafeHTML|document\.write")
IMPORT = re.compile(r"""(?:from|import)\s*["']([^"']+)["']""")


class Document(HTMLParser):
    """Every element with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.feed((PAGE / "index.html").read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def test_nothing_is_inline_and_nothing_from_elsewhere() -> None:
    """No inline script, style or handler; everything that is loaded is one of our files."""
    for tag, attributes in Document().elements:
        assert not {name for name in attributes if name == "style" or name.startswith("on")}
        assert tag != "style"
        if tag == "script":
            assert attributes["src"] in FILES
        for name in ("src", "href"):
            if name in attributes and not attributes[name].startswith("#"):
                assert attributes[name] in FILES, attributes
    for path in OWN:
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"\bstyle=|innerHTML|insertAdjacentHTML|\beval\(|new Function|unsafeHTML|document\.write", text
        )
    assert "unsafe" not in CONTENT_SECURITY


def test_every_module_is_there_and_asked_for_at_once() -> None:
    """Imports resolve to our files, and the document names all of them, so that no one waits for another."""
    named = {attributes.get("href") or attributes.get("src") for _, attributes in Document().elements}
    for path in SCRIPTS:
        for target in IMPORT.findall(path.read_text(encoding="utf-8")):
            found = target if target.startswith("/") else f"/{(path.parent / target).resolve().relative_to(PAGE)}"
            assert found in FILES, f"{path.name}: {target}"
            assert found in named, f"{found} is found late: no modulepreload"


def test_the_vendored_library_is_the_one_that_its_page_names() -> None:
    """Its version stands in the page beside it; its licence is there; it carries no address of a source map."""
    vendor = PAGE / "vendor" / "lit-html"
    version = re.search(r"lit-html (\d+\.\d+\.\d+)", (vendor / "README.md").read_text(encoding="utf-8"))
    assert version is not None
    assert f'"{version[1]}"' in (vendor / "lit-html.js").read_text(encoding="utf-8")
    assert "BSD 3-Clause" in (vendor / "LICENSE").read_text(encoding="utf-8")
    assert not any("sourceMappingURL" in path.read_text(encoding="utf-8") for path in SCRIPTS)


@pytest.mark.programs("node")
@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_every_module_is_javascript(path: Any) -> None:
    """Node can read it."""
    done = subprocess.run(
        ["node", "--input-type=module", "--check"], input=path.read_bytes(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_one_module_reads_this_devices_clock() -> None:
    """Others ask `now()`, which is the console's clock: a device that is an hour off shows the same page."""
    readers = {path.name for path in OWN if "Date.now()" in path.read_text(encoding="utf-8")}
    assert readers == {"words.js"}
