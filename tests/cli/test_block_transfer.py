"""`blocks export | import` against real servers."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.cli.block_files import write_csv
from penaltybox.cli.console import instant
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.sinks.blocklist import Block
from penaltybox.sinks.redis_store import RedisSubjectStore
from tests.cli.desks import WHY, Desk
from tests.redis_servers import BINARIES, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ONE = next(iter(BINARIES))


@pytest.mark.parametrize("name", ["blocks.csv", "blocks.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exported_can_be_imported(
    kind: str, name: str, redis_by_kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Into another key space: the same subjects until the same second, permanent ones too; a second time, nothing."""
    desk = Desk(redis_by_kind[kind], monkeypatch, tmp_path)
    desk.begin()
    desk.run("ban", "user:a%40b", "--level", "permanent", *WHY)
    desk.run("ban", "ip:2001:db8::7", "--for", "36h", *WHY)
    assert "2 blocks and challenges are in" in desk.run("blocks", "export", name)
    other = Desk(redis_by_kind[kind], monkeypatch, tmp_path)
    other.begin()
    assert other.json("blocks", "import", name, *WHY) == {"subjects": 2, "banned": 2, "already": 0, "wrong": []}
    assert other.key("user:a%40b")["until"] is None
    assert abs(other.key("ip:2001:db8::/64")["until"] - desk_end(desk, monkeypatch)) < 1100
    assert other.json("blocks", "import", name, *WHY)["already"] == 2


def desk_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("PENALTYBOX_REDIS_PREFIX", desk.prefix)
    end: int = desk.key("ip:2001:db8::/64")["until"]
    return end


def test_wrong_lines_are_told_and_the_others_imported(desk: Desk) -> None:
    """By number: no subject, ended, a challenge, an unknown time, a range; the last line of a subject counts."""
    in_a_year = instant(now_ms() + 365 * 86_400_000)[:10]
    (desk.folder / "b.csv").write_text(
        "Subject,until,action\nuser:u1,permanent,deny\nnonsense,,\nuser:u2,2001-01-01,\nip:1.2.3.4,,challenge\n"
        f'user:u3,soon,\n"user:a{{b}}",,\nuser:u1,{in_a_year},deny\nuser:u4,99990101000000000,\n203.0.113.0/24,,\n'
    )
    result = desk.result("blocks", "import", "b.csv", *WHY)
    assert result.exit_code == 1
    assert "2 subjects are banned, 0 were for as long already, 6 lines left out" in result.stdout
    numbers = [line.split(":")[1] for line in result.stderr.splitlines() if line.startswith("b.csv:")]
    assert numbers == ["3", "4", "5", "6", "9", "10"]
    assert "b.csv:10: got '203.0.113.0/24', which is a range" in result.stderr
    assert desk.key("ip:203.0.113.0") is None
    assert desk.key("user:u1")["until"] is not None
    assert desk.key("user:a%7Bb%7D")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("user:u1\n", "wanted a header with a column subject"),
        ("", "wanted a header"),
        ("subject\n\x00\n", "wanted|NUL|dimension"),
        ("\udcff", "cannot be read"),
    ],
)
def test_what_is_no_file_of_blocks(desk: Desk, content: str, sentence: str) -> None:
    """It is told before anything is changed."""
    (desk.folder / "b").write_bytes(content.encode("utf-8", "surrogateescape"))
    try:
        result = desk.result("blocks", "import", "b", *WHY)
    except ConfigurationError as error:
        result = error
    else:
        result = result.stderr
    assert any(part in str(result) for part in sentence.split("|"))


def test_hostile_json_lines_are_lines_left_out(desk: Desk) -> None:
    """Deep nesting, other types, huge numbers: each costs its own line only."""
    lines = ['{"subject":"user:u1"}', "[" * 10_000, '{"subject":1}', '{"subject":"user:u2","until":1e999}', "null", "{"]
    (desk.folder / "b.jsonl").write_text("\n".join(lines))
    told = desk.json("blocks", "import", "b.jsonl", *WHY)
    assert (told["banned"], [one["line"] for one in told["wrong"]]) == (1, [2, 3, 4, 5, 6])


def test_a_spreadsheet_finds_no_formula() -> None:
    """Whatever other programs have written as rung or rule is text there, and comes back as it was."""
    file = io.StringIO()
    write_csv(
        file, [Block("user:u1", "deny", None, "=cmd|' /C calc'!A0", "@SUM(1)", "-1", None)], lambda _: "permanent"
    )
    (row,) = list(csv.reader(io.StringIO(file.getvalue())))[1:]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row)


def test_blocks_lists_as_before(desk: Desk) -> None:
    """Without a word for what to do it lists; a dimension is no command."""
    desk.run("ban", "ip:203.0.113.7", *WHY)
    for arguments in (["blocks"], ["blocks", "ip"], ["blocks", "list", "ip"]):
        assert "ip:203.0.113.7" in desk.run(*arguments)
    assert json.loads(desk.result("blocks", "ip", "--json").stdout)["subject"] == "ip:203.0.113.7"
    assert "Nobody" in desk.run("blocks", "user")


def test_many_are_imported_in_seconds(desk: Desk, tell: Callable[[str], None]) -> None:
    """Twenty thousand subjects; the figure stands in the summary."""
    (desk.folder / "b.csv").write_text("subject,until\n" + "".join(f"user:u{n},permanent\n" for n in range(20_000)))
    began = now_ms()
    assert desk.json("blocks", "import", "b.csv", *WHY)["banned"] == 20_000
    took = now_ms() - began
    tell(f"20,000 blocks imported in {took / 1000:.1f} s")
    assert took < 20_000


def test_an_import_that_is_cut_off_says_how_far_it_came(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis goes away after the first chunk: what is done stays, the sentence says so, and a second import goes on."""
    (desk.folder / "b.csv").write_text("subject,until\n" + "".join(f"user:m{n},permanent\n" for n in range(1500)))
    write, calls = RedisSubjectStore.write, 0

    async def failing(self: RedisSubjectStore, writes: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise StoreUnavailable("Redis at 127.0.0.1:1 did not answer within 2 s.")
        return await write(self, writes)

    with monkeypatch.context() as patched:
        patched.setattr(RedisSubjectStore, "write", failing)
        with pytest.raises(
            StoreUnavailable, match=r"Of 1,500 subjects 1,000 are done, and stay\. Import the file again"
        ):
            desk.run("blocks", "import", "b.csv", *WHY)
    assert desk.json("blocks", "import", "b.csv", *WHY) == {
        "subjects": 1500,
        "banned": 500,
        "already": 1000,
        "wrong": [],
    }


def test_an_import_that_is_interrupted_says_how_far_it_came(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after the first chunk: what is done stays, a sentence says so, and a second import goes on."""
    (desk.folder / "b.csv").write_text("subject,until\n" + "".join(f"user:i{n},permanent\n" for n in range(1500)))
    write, calls = RedisSubjectStore.write, 0

    async def interrupted(self: RedisSubjectStore, writes: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        return await write(self, writes)

    as_before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs in the background ignores it
    try:
        with monkeypatch.context() as patched:
            patched.setattr(RedisSubjectStore, "write", interrupted)
            result = desk.result("blocks", "import", "b.csv", *WHY)
    finally:
        signal.signal(signal.SIGINT, as_before)
    assert result.exit_code != 0
    assert re.search(r"Interrupted\. At least [\d,]+ of 1,500 subjects are done", " ".join(result.stderr.split()))
    again = desk.json("blocks", "import", "b.csv", *WHY)
    assert (again["banned"] + again["already"], again["already"] <= 1000) == (1500, True)
