"""The README is followed to the letter, with everything on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.subjects import Canonicaliser
from tests.docs.fenced_blocks import RUNNABLE, Block, fenced_blocks
from tests.docs.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

README = Path(__file__).parent.parent.parent / "README.md"
BLOCKS = fenced_blocks(README)
OPERATIONS = [
    block
    for block in fenced_blocks(README.parent / "docs" / "operations.md")
    if block.language in ("sql", "sh") and not block.shown
]
EMBEDDED = "penaltybox run --embedded"
USUAL = ("npm", "redis-cli", "curl")


def programs(block: Block) -> list[str]:
    """Programs that a block needs and a machine may lack."""
    words = block.text.split()
    return ["node"] if block.language == "js" else [name for name in USUAL if name in words]


RUN = [
    pytest.param(block, marks=pytest.mark.programs(*programs(block)), id=f"{block.language}-{block.line}")
    for block in BLOCKS
    if block.language in RUNNABLE and not block.shown and not block.needs
]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One reader for the whole page, who has started everything on this machine."""
    found = Reader(tmp_path_factory.mktemp("reader"))
    try:
        found.start(next(block for block in BLOCKS if EMBEDDED in block.text))
        yield found
    finally:
        found.end()


@pytest.mark.stack
@pytest.mark.parametrize("block", RUN)
def test_what_the_readme_says_happens(block: Block, reader: Reader) -> None:
    """Each block runs as printed, in order, and shows what the page says."""
    if EMBEDDED not in block.text:
        reader.follow(block)


@pytest.mark.stack
@pytest.mark.programs("curl", "redis-cli")
@pytest.mark.parametrize("block", OPERATIONS, ids=lambda block: f"{block.language}-{block.line}")
def test_what_operators_are_told_to_run_works(block: Block, reader: Reader) -> None:
    """Shell blocks of docs/operations.md run, and ClickHouse takes its queries."""
    curl = 'curl -sS --fail "$PENALTYBOX_CLICKHOUSE_URL/?database=penaltybox" --data-binary @-'
    command = block.text if block.language == "sh" else f"{curl} <<'END'\n{block.text}END\n"
    reader.run(replace(block, language="sh", text=command))


def test_what_is_not_run_says_why() -> None:
    """Few blocks are only shown, each with a reason; the others are languages that somebody reads here."""
    assert all(len(block.shown) > 20 for block in BLOCKS if block.shown)
    assert sum(bool(block.shown) for block in BLOCKS) <= 3
    assert {block.language for block in BLOCKS} <= {*RUNNABLE, "json", "yaml", "text"}


def test_the_example_is_a_decision() -> None:
    """The decision of the page is one that workers take."""
    (example,) = [block for block in BLOCKS if block.language == "json"]
    raw = msgspec.json.encode(msgspec.json.decode(example.text))
    decision = decode_decision(raw, 1 << 50, Canonicaliser())
    assert decision.violated == ("device:daily",)


def test_the_policy_is_one() -> None:
    """The policy of the page is valid, is short, and says nothing that the default policy doesn't say too."""
    (example,) = [block for block in BLOCKS if block.language == "yaml"]
    shown, default = parse_policy(example.text), parse_policy((README.parent / "policies/default.yaml").read_text())
    assert len(example.text.splitlines()) <= 10
    assert set(shown.rules) <= set(default.rules)
    assert shown.ladder.rungs == default.ladder.rungs
    assert (shown.ladder.forgive_ms, shown.ladder.memory_ms) == (default.ladder.forgive_ms, default.ladder.memory_ms)
    assert shown.shared_ip == default.shared_ip
    assert shown.limits["coupon_claim"]["device"] == default.limits["coupon_claim"]["device"]
