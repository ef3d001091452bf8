"""A file that is kept current: replaced when it changes, its program told, and nothing before all is known."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.cli.enforcement import Enforcement, ListFile, run
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.feed.lines import InForce, Line, encoded
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from tests.cli.desks import Desk

DENY = (InForce("deny", None),)


class Queue:
    """A feed that a test writes."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()

    def say(self, *lines: Line) -> None:
        self.pieces.put_nowait(b"".join(map(encoded, lines)))

    async def lines(self, since: str) -> AsyncGenerator[bytes, None]:
        assert since is not None
        while True:
            yield await self.pieces.get()


@asynccontextmanager
async def enforcing(source: Any, target: ListFile, memory: Path) -> AsyncIterator[None]:
    task = asyncio.create_task(Enforcement(source, target, memory).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_file_follows(tmp_path: Path) -> None:
    """Untouched until the list is whole; then with every change; its program is told; a lost file is made again."""
    file, told, memory = tmp_path / "list", tmp_path / "told", tmp_path / "memory"
    file.write_text("192.0.2.200\n")
    command = [sys.executable, "-c", f"open({str(told)!r}, 'a').write('x')"]
    source = Queue()
    async with enforcing(source, ListFile(file, "plain", command), memory):
        source.say(Line("resync"), Line("add", "subject", "ip:192.0.2.1", DENY))
        await wait_until(source.pieces.empty, what="the first lines to be read")
        assert file.read_text() == "192.0.2.200\n"
        source.say(Line("synced", cursor="e-1"))
        await wait_until(lambda: file.read_text() == "192.0.2.1\n", what="the list")
        soon = (InForce("deny", now_ms() + 6000),)
        source.say(Line("add", "subject", "ip:192.0.2.2", soon, "e-2"), Line("add", "subject", "user:u", DENY, "e-3"))
        await wait_until(lambda: file.read_text() == "192.0.2.1\n192.0.2.2\n", what="a ban")
        await wait_until(lambda: file.read_text() == "192.0.2.1\n", 30, "its end")
        file.unlink()
        await wait_until(file.exists, what="the file again")
        await wait_until(lambda: len(told.read_text()) == 4, what="a call for each change")
    async with enforcing(Queue(), ListFile(file, "nginx-geo"), memory):
        await wait_until(lambda: file.read_text() == "192.0.2.1/32 deny;\n", what="the list from memory")


async def test_what_somebody_else_changed_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From time to time the list is made from the beginning, and the target given all of it."""
    monkeypatch.setattr("penaltybox.cli.enforcement.WHOLE_S", 0.2)
    file, source = tmp_path / "list", Queue()
    async with enforcing(source, ListFile(file, "plain"), tmp_path / "memory"):
        source.say(Line("resync"), Line("add", "subject", "ip:192.0.2.1", DENY), Line("synced", cursor="e-1"))
        await wait_until(lambda: file.exists() and file.read_text() == "192.0.2.1\n", what="the list")
        file.write_text("0.0.0.0/0\n")
        await wait_until(lambda: file.read_text() == "192.0.2.1\n", 30, "the list again")
        source.say(Line("add", "subject", "ip:192.0.2.0", DENY, "e-2"))
        await wait_until(lambda: file.read_text() == "192.0.2.0\n192.0.2.1\n", 30, "both, in their order")


async def test_a_program_that_fails_is_told_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A command that failed is run again although the file is as it should be; the same failure is logged once."""
    file, flag = tmp_path / "list", tmp_path / "flag"
    program = (
        f"import os, sys; open({str(tmp_path / 'told')!r}, 'a').write('x'); sys.exit(not os.path.exists({str(flag)!r}))"
    )
    caplog.set_level("INFO", "penaltybox.enforce")
    source = Queue()
    async with enforcing(source, ListFile(file, "plain", [sys.executable, "-c", program]), tmp_path / "memory"):
        source.say(Line("resync"), Line("synced", cursor="e-1"))
        await wait_until(
            lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text() >= "xx", 30, "two calls"
        )
        flag.touch()
        await wait_until(lambda: "enforced again" in caplog.text, 30, "success")
    assert sum("not enforced" in record.message for record in caplog.records) == 1


async def test_what_cannot_be_run() -> None:
    """A sentence with the program, its code and what it said."""
    with pytest.raises(ConfigurationError, match="cannot be run"):
        await run(["/no/such/program"])
    with pytest.raises(ConfigurationError, match="code 3: oh"):
        await run([sys.executable, "-c", "print('oh'); raise SystemExit(3)"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("file", "no/such/list"), "there is no directory"),
        (("file", "list", "--format", "csv"), "--format: got 'csv'"),
        (("nginx", "list", "--run", "'"), "--run"),
        (("file", "list", "--from", "nowhere"), "--from: got 'nowhere'"),
    ],
)
def test_mistakes_are_told(desk: Desk, arguments: tuple[str, ...], sentence: str) -> None:
    """Before anything is followed."""
    with pytest.raises(ConfigurationError, match=sentence):
        desk.result("enforce", *arguments)
