"""`penaltybox ingest FORMAT`: what it prints, explains and refuses; its page cannot lie."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Decision
from penaltybox.producers.adapters.registry import SUMMARIES
from tests.producers.logs.nginx_logs import line, lines, number_of, zstd
from tests.waiting import block_until

if TYPE_CHECKING:
    from click.testing import Result

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "log-ingest.md").read_text()
COMMANDS = [
    command.partition("#  ")[0].partition("   #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    for command in block.splitlines()
]


def call(*arguments: str, given: bytes | None = None) -> Result:
    """A run that ends well."""
    result = CliRunner().invoke(app, ["ingest", *arguments], input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def decisions(text: str) -> list[Decision]:
    """Standard output as decisions: each line is a valid one."""
    return [msgspec.json.decode(one, type=Decision) for one in text.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the page runs on a log; those that publish or follow are run with --dry-run instead."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for name in ("error.log", "logs/error.log"):
        (tmp_path / name).write_bytes(lines(range(100)))
    program, _, *arguments = shlex.split(command)
    assert program == "penaltybox"
    if "--explain-line" in arguments:
        assert "klient" in call(*arguments).stdout
        return
    arguments = [one for one in arguments if one not in ("--follow", "--dry-run")]
    assert len(decisions(call(*arguments, "--dry-run").stdout)) == 100


def test_every_option_is_on_the_page() -> None:
    """Each option of the command is explained on the page."""
    help_text = CliRunner().invoke(app, ["ingest", "nginx-error", "--help"], env={"COLUMNS": "200"}).output
    options = set(re.findall(r"--[a-z][a-z-]+", help_text)) - {"--help"}
    assert options <= set(re.findall(r"--[a-z][a-z-]+", TEXT)), options


def test_formats_are_listed() -> None:
    """Each format has its line in the group's help, an example in the list, a section on the formats' page."""
    help_text = CliRunner().invoke(app, ["ingest", "--help"], env={"COLUMNS": "200"}).output
    listed = {one["name"]: one for one in json.loads(call("formats", "--json").stdout)}
    told = call("formats").stdout
    sections = set(re.findall(r"^## (.+)$", (ROOT / "docs" / "log-formats.md").read_text(), re.MULTILINE))
    for name, summary in SUMMARIES.items():
        assert re.search(rf"\b{name}\b", help_text)
        assert listed[name]["summary"] == summary
        assert listed[name]["examples"]
        assert name in told
        assert any(name in section.replace(",", " ").split() for section in sections), name


def test_decisions_are_printed_in_the_wire_form(tmp_path: Path) -> None:
    """From a file, a compressed one, a pipe and a folder: the same lines, byte for byte."""
    log, packed = tmp_path / "logs" / "error.log", tmp_path / "error.log.1.gz"
    log.parent.mkdir()
    log.write_bytes(lines(range(50)) + b"something else\n")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    options = ("--dry-run", "--tz", "Europe/Berlin", "--map", "/=home", "--source", "edge/7")
    printed = call("nginx-error", str(log), *options)
    assert printed.stdout == call("nginx-error", str(packed), *options).stdout
    assert printed.stdout == call("nginx-error", "-", *options, given=log.read_bytes()).stdout
    assert printed.stdout == call("nginx-error", str(log.parent), *options).stdout
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", 'cat "$1" > "$2"', "sh", str(log), str(tmp_path / "pipe")]):
        assert printed.stdout == call("nginx-error", str(tmp_path / "pipe"), *options).stdout
    found = decisions(printed.stdout)
    assert len({one.id for one in found}) == 50
    assert (found[0].scenario, found[0].source, found[0].subjects) == ("home", "edge/7", {"ip": "10.0.0.0"})
    assert "1 are not read as nginx-error" in printed.stderr


def test_a_log_of_another_zone_is_noticed(tmp_path: Path) -> None:
    """What is ahead of the clock is dead letters later on: the zone is asked for while somebody looks."""
    log, now = tmp_path / "error.log", datetime.fromtimestamp(now_ms() / 1000, UTC)
    shown = []
    for hours in (-1, 2):
        at = (now + timedelta(hours=hours)).strftime("%Y/%m/%d %H:%M:%S").encode()
        log.write_bytes(at + line(1)[19:])
        shown.append(call("nginx-error", str(log), "--dry-run", "--tz", "UTC").stderr)
    assert shown[0] == ""
    assert "ahead of this machine's clock" in shown[1]
    assert "Is --tz the log's zone?" in shown[1]


def test_a_dry_run_moves_no_checkpoint(tmp_path: Path) -> None:
    """What is only printed was not published."""
    (tmp_path / "error.log").write_bytes(lines(range(5)))
    for _ in range(2):
        printed = call("nginx-error", str(tmp_path / "error.log"), "--dry-run", "--checkpoint", str(tmp_path / "saved"))
        assert len(decisions(printed.stdout)) == 5
    assert not (tmp_path / "saved").exists()


def test_a_damaged_log_is_read_as_far_as_it_goes_and_fails(tmp_path: Path) -> None:
    """What can be read of it, and all of the others, comes out; then a sentence, and no success."""
    (tmp_path / "error.log").write_bytes(lines(range(5)))
    (tmp_path / "other.gz").write_bytes(gzip.compress(lines(range(100, 5000)))[:-2000])
    result = CliRunner().invoke(app, ["ingest", "nginx-error", str(tmp_path), "--dry-run"])
    assert isinstance(result.exception, ConfigurationError)
    assert re.search(r"log .*other\.gz: cannot be read on after byte ", str(result.exception))
    assert 100 < len(decisions(result.stdout)) < 4905


def test_what_comes_through_a_pipe_may_be_packed() -> None:
    """As a file may; cut off, it is read as far as it goes."""
    packed = gzip.compress(lines(range(3000)))
    for given in (packed, zstd().compress(lines(range(3000)))):
        assert len(decisions(call("nginx-error", "-", "--dry-run", given=given).stdout)) == 3000
    result = CliRunner().invoke(app, ["ingest", "nginx-error", "-", "--dry-run"], input=packed[:-1000])
    assert "log -: cannot be read on after byte" in str(result.exception)
    found = [number_of(decision) for decision in decisions(result.stdout)]
    assert found == list(range(len(found)))
    assert len(found) > 2000


@pytest.mark.parametrize("form", ["combined", "nginx-access"])
def test_every_way_of_reading_knows_packed_logs(form: str, tmp_path: Path) -> None:
    """Plain, gzip or zstd, as a file or on standard input: what judges a log reads it as what recognises one."""
    text = b'192.0.2.7 - - [17/May/2026:10:05:03 +0000] "GET / HTTP/1.1" 429 12 "-" "-"\n'
    for pack in (bytes, gzip.compress, zstd().compress):
        packed = tmp_path / "log"
        packed.write_bytes(pack(text))
        assert len(decisions(call(form, str(packed), "--dry-run").stdout)) == 1
        assert len(decisions(call(form, "-", "--dry-run", given=pack(text)).stdout)) == 1


def test_a_files_name_is_no_markup(tmp_path: Path) -> None:
    """Following tells of a damaged log by its name, whatever that is, and goes on."""
    logs, printed, told = tmp_path / "logs", tmp_path / "printed", tmp_path / "told"
    damaged = logs / "x[" / "red][bold]a.gz"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(gzip.compress(lines(range(50)))[:-5])
    with printed.open("wb") as out, told.open("wb") as err:
        arguments = ["penaltybox", "ingest", "nginx-error", str(logs), "--follow", "--dry-run"]
        process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=out, stderr=err, cwd=ROOT)
    try:
        block_until(lambda: "x[/red][bold]a.gz: cannot be read on" in told.read_text(), 60)
        (logs / "b.log").write_bytes(line(77))
        block_until(lambda: "10.0.0.77" in printed.read_text(), 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_lines_of_other_programs_are_left_out(tmp_path: Path) -> None:
    """Of syslog only the format's own program is believed, and who is named; the summary says what was left out."""
    log = tmp_path / "syslog"
    log.write_bytes(b"".join(b"May 17 10:05:03 web1 %s[7]: %s" % (name, line(7)) for name in (b"nginx", b"shop", b"x")))
    for named, count in (((), 1), (("--program", "shop,x"), 2), (("--program", "*"), 3)):
        assert len(decisions(call("nginx-error", str(log), "--dry-run", *named).stdout)) == count
    found = _explained(b"May 17 10:05:03 web1 shop[7]: " + line(7))
    assert (found["result"], found["unwrapped"]) == ("passed", False)
    assert "--program" in found["why"]


def _explained(text: bytes, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        call("nginx-error", "--explain-line", text.decode().rstrip("\n"), "--json", *options).stdout
    )
    return found


def test_a_line_is_explained() -> None:
    """A decision field by field; a line that says nothing; one that does not fit, and where; another format's."""
    found = _explained(line(7))
    assert (found["result"], found["readings"][0]["subjects"]) == ("decision", {"ip": "10.0.0.7"})
    assert _explained(b"May 17 10:05:03 web1 nginx: " + line(7))["unwrapped"]
    assert _explained(b"2026/05/17 10:05:07 [notice] 1#1: signal process started")["result"] == "passed"
    found = _explained(line(7).replace(b"client:", b"klient:"))
    assert found["result"] == "unmatched"
    assert "client address: wanted" in found["explained"]
    assert "'limiting requests'" in found["explained"]
    access = b'192.0.2.7 - - [17/May/2026:10:05:03 +0000] "GET / HTTP/1.1" 429 5'
    assert "nginx-access" in _explained(access)["other_formats"]
    told = call("nginx-error", "--explain-line", access.decode()).stdout
    assert "Not read as nginx-error" in told
    assert "nginx-access" in told
    told = call("nginx-error", "--explain-line", line(7).decode()).stdout
    assert "10.0.0.7" in told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nginx-error"], "wanted a log, - for standard input, or a folder"),
        (["nginx-error", "nothere.log"], "log nothere.log: cannot be read"),
        (["nginx-error", "-", "--checkpoint", "x"], "a pipe has no place to go on at"),
        (["nginx-error", "x", "--tz", "Mars/Olympus"], "--tz: got 'Mars/Olympus'"),
        (["nginx-error", "x", "--status", "teapot"], "--status: got 'teapot'"),
        (["nginx-error", "x", "--status", "429,503"], "as limit_req_status sets it"),
        (["nginx-error", "x", "--option", "zone=a"], "wanted one of keyed-by, shared, as NAME=VALUE"),
        (["nginx-access", "x", "--option", "zome=a"], "wanted one of zone, address"),
        (["nginx-error", "x", "--lateness", "soon"], "--lateness: got 'soon'"),
        (["nginx-error", "x", "--map", "/a"], "--map: got '/a'"),
        (["nginx-error", "x", "--map", "/a=\x1b"], "--map: got '\\x1b', wanted at most 128 characters"),
        (["nginx-error", "x", "--scenario", "s" * 129], "--scenario: got 'ssss"),
        (["nginx-error", "x", "--source", "a\nb"], "--source: got 'a\\nb', wanted at most 128 characters"),
        (["combined", "x", "--source", "\u202e"], "--source: got '\\u202e', wanted at most 128 characters"),
        (["nginx-error", "x", "--option", "keyed-by="], "--option keyed-by: got ''"),
        (["FORMAT", "x"], "format: got 'FORMAT', wanted one of"),
        (["nginx-eror", "x"], "got 'nginx-eror', wanted nginx-error"),
        (["nothing", "x"], "got 'nothing', wanted one of formats, combined, nginx-error"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(arguments: list[str], sentence: str) -> None:
    """What was given, and what was wanted."""
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        CliRunner().invoke(app, ["ingest", *arguments], catch_exceptions=False)


def test_following_prints_lines_as_they_come(tmp_path: Path) -> None:
    """A process that follows a log prints a line when it is whole, and ends cleanly on SIGTERM."""
    log, printed = tmp_path / "error.log", tmp_path / "printed"
    with printed.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "penaltybox", "ingest", "nginx-error", str(log), "--follow", "--dry-run"],
            stdout=out,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "TZ": "UTC"},
        )
    try:
        for number in range(1, 4):
            with log.open("ab") as file:
                file.write(line(number)[9 if number > 1 else 0 :] + line(number + 1)[:9])
            block_until(lambda number=number: printed.read_bytes().count(b"\n") == number, 60)
        process.send_signal(signal.SIGTERM)
        _, complaints = process.communicate(timeout=60)
        assert process.returncode == 0, complaints
    finally:
        process.kill()
        process.communicate()
    assert [one.subjects["ip"] for one in decisions(printed.read_text())] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
