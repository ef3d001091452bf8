"""The documentation cannot lie about what can be checked: settings, commands, events, links, numbers of decisions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest
from aiokafka.partitioner import murmur2

from penaltybox.contracts.events import WIRE_TYPES
from penaltybox.contracts.schemas import schema_files
from penaltybox.contracts.settings import PREFIX, Settings
from penaltybox.contracts.topics import TOPICS
from penaltybox.processors.broker import TopicPlan
from tests.docs import generated_pages
from tests.docs.fenced_blocks import Block, fenced_blocks, normal

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "policies").glob("*.md")])
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
EVENTS = (DOCS / "events.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```json ([a-z-]+)\n(.*?)^```$", EVENTS, re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def settings_rows() -> dict[str, tuple[str, str, str]]:
    """Setting -> (environment name, default, meaning) as the page says."""
    lines = [line for line in text(DOCS / "settings.md").splitlines() if line.startswith("| `")]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) == len({name for name, *_ in rows}), "a setting stands twice"
    return {name: (variable, default, meaning) for name, variable, default, meaning in rows}


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    """docs/settings.md has each setting once, with its environment name and the default that the code has."""
    wanted = {}
    for name, value in msgspec.structs.asdict(Settings()).items():
        default = ",".join(value) if isinstance(value, tuple) else str(value)
        if isinstance(value, bool):
            default = default.lower()
        wanted[name] = (f"{PREFIX}{name.upper()}", default)
    assert {name: (variable, default) for name, (variable, default, _) in settings_rows().items()} == wanted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_variable_that_a_page_names_exists(page: Path) -> None:
    """A `PENALTYBOX_…` name on any page is a setting (`_PASSWORD` and the like after one are short for one)."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.__struct_fields__}
    named = set(re.findall(r"\bPENALTYBOX_[A-Z0-9_]+\b", text(page)))
    assert named <= known


def test_generated_pages_are_current() -> None:
    """docs/commands.md is what the command tree says now, the console's API as committed is the one that is served, and
    the index of decisions has all of them."""
    for page, made in (
        (generated_pages.COMMANDS, generated_pages.command_page()),
        (generated_pages.CONSOLE_API, generated_pages.openapi.text()),
        (generated_pages.SERVICE_API, generated_pages.service_openapi.text()),
        (generated_pages.DECISIONS, generated_pages.decisions_page()),
    ):
        assert text(page) == made, f"{page.relative_to(ROOT)} is not current: make docs"


def test_the_readme_names_every_command() -> None:
    """Each command is in the README's table, and each one in the table exists."""
    table = text(ROOT / "README.md").partition("## Commands")[2].partition("\n## ")[0]
    names = {name.split()[0] for name, _ in generated_pages.commands()}
    assert all(re.search(rf"`(penaltybox )?{name}\b", table) for name in names)
    shown = re.findall(
        r"`(?:penaltybox )?([a-z-]+)[^`]*`", "".join(row.split("|")[1] for row in table.splitlines()[4:-4])
    )
    assert set(shown) <= names


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_examples_of_events_are_valid(name: str, example: str) -> None:
    """Each example of docs/events.md passes its schema, and is read by the code without a loss."""
    document = json.loads(example)
    jsonschema.Draft202012Validator(json.loads(text(DOCS / "schemas" / f"{name}.json"))).validate(document)
    record = next(one for one in WIRE_TYPES if one.__name__.lower() == name.replace("-", ""))
    told = json.loads(msgspec.json.encode(msgspec.convert(document, record)))
    assert {field: told.get(field, value) for field, value in document.items()} == document


def test_every_event_has_an_example() -> None:
    """docs/events.md shows each record type once, and names each topic."""
    assert sorted(f"{name}.json" for name, _ in EXAMPLES) == sorted(schema_files())
    for topic, (partitions, _) in TopicPlan().wanted(TOPICS).items():
        assert re.search(rf"^\| `{topic}` \| [^|]+ \| {partitions} \|", EVENTS, re.MULTILINE)


def test_partitions_of_keys_are_those_of_the_client_that_we_use() -> None:
    """The test data for partitioners in other languages is what our own publisher computes."""
    rows = re.findall(r"^\| `([^`]+)` \| (\d+) \| (\d) \|$", EVENTS, re.MULTILINE)
    assert len(rows) >= 8
    for key, positive, partition in rows:
        wanted = murmur2(key.encode()) & 0x7FFFFFFF
        assert (int(positive), int(partition)) == (wanted, wanted % 8), key


def test_every_field_of_a_decision_is_explained() -> None:
    """The table under Decision names each field of the record."""
    section = EVENTS.partition("## Decision")[2].partition("\n## ")[0]
    fields = WIRE_TYPES[0].__struct_fields__
    assert [field for field in fields if f"`{field}`" not in section] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page: Path) -> None:
    """A link to a file has a file behind it, and one to a heading the heading."""
    for link in LINK.findall(re.sub(r"^```.*?^```$", "", text(page), flags=re.MULTILINE | re.DOTALL)):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link}"
        if heading:
            assert heading in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_index_names_every_page(page: Path) -> None:
    """docs/README.md leads to each page beside it."""
    assert page.name == "README.md" or f"({page.name})" in text(DOCS / "README.md")


def test_decisions_have_numbers_of_their_own() -> None:
    """No two pages of docs/decisions share a number, and none is left out."""
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert numbers == list(range(1, len(numbers) + 1))


def test_expected_outputs_are_told_apart() -> None:
    """What moves from run to run may differ, anything else may not."""
    block = Block(1, "sh", "", expected="a (59m 51s left) 2026-11-30 02:22:14Z\n…\nend\n")
    assert block.meets("a  (3m left) 2027-01-01 00:00:00Z\nmore\nmore\nend\n")
    assert block.meets("a (1s left) 2027-01-01 00:00:00Z\nend\n") is False
    assert not block.meets("a (3m left) 2027-01-01 00:00:00Z\nmore\n")
    assert normal('{"until":1796005334414}') == '{"until":MILLIS}\n'


def test_blocks_have_their_marks(tmp_path: Path) -> None:
    """A comment above a block says why it is only shown or what it needs; text directly below is its output."""
    page = tmp_path / "page.md"
    page.write_text("<!-- shown: why -->\n```sh\na\n```\n\n```sh\nb\n```\n```text\nB\n```\n\n```text\npicture\n```\n")
    first, second, third = fenced_blocks(page)
    assert (first.shown, first.expected, first.line) == ("why", "", 2)
    assert (second.text, second.expected, third.language) == ("b\n", "B\n", "text")
