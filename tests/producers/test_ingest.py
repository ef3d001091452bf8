"""A log as decisions: order, ids, shifted time, scenarios."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.producers.combined import MAX_LINE_BYTES
from penaltybox.producers.ingest import LogIngest, Progress, end_of_log, open_log, read_lines
from penaltybox.producers.limiter import Limiter
from penaltybox.producers.scenario_map import ScenarioMap
from tests.producers.logs.nginx_logs import zstd

LOG = Path(__file__).parent.parent / "data" / "apache_access.log"
POLICY = "limits: {web: {ip: [{name: pages, limit: 60, window: 1m}]}, login: {ip: [{name: a, limit: 1, window: 1h}]}}"


def ingest(**changed: Any) -> LogIngest:
    """An ingest with a limit of 60 requests a minute per address."""
    return LogIngest(Limiter(parse_policy(POLICY).limits, source="access-log/test"), **changed)


def line(second: int, ip: str = "192.0.2.7", path: str = "/", minute: int = 5) -> bytes:
    """A line of one minute."""
    return f'{ip} - - [17/May/2015:10:{minute:02}:{second:02} +0000] "GET {path} HTTP/1.1" 200 12\n'.encode()


def stream(*lines: bytes) -> io.BytesIO:
    """Lines as a file."""
    return io.BytesIO(b"".join(lines))


def test_the_real_log_in_its_own_time() -> None:
    """At 60 requests a minute two of 1,753 addresses are over the limit; all are in order, every id is its own."""
    task = ingest()
    with open_log(LOG) as log:
        decisions = list(task.decisions(read_lines(log)))
    assert len(decisions) == len({d.id for d in decisions}) == 10_000
    assert [d.ts for d in decisions] == sorted(d.ts for d in decisions)
    assert {d.subjects["ip"] for d in decisions if d.action == "deny"} == {"75.97.9.59", "130.237.218.86"}
    assert (task.progress.lines, task.progress.requests, task.progress.late) == (10_000, 10_000, 0)
    assert task.progress.read_bytes == LOG.stat().st_size
    assert task.progress.actions["deny"] == sum(d.action == "deny" for d in decisions)


def test_ids_are_the_same_again(tmp_path: Path) -> None:
    """Read twice, renamed, compressed or grown: the same requests have the same ids."""
    short, zipped = tmp_path / "access.log.1", tmp_path / "access.log.2.gz"
    head = b"".join(LOG.read_bytes().splitlines(keepends=True)[:500])
    short.write_bytes(head)
    zipped.write_bytes(gzip.compress(head))
    found = []
    for path in (LOG, short, zipped):
        with open_log(path) as log:
            found.append({d.id for d in ingest().decisions(read_lines(log))})
    assert found[1] == found[2] < found[0]


def test_same_lines_are_different_requests() -> None:
    """Two equal lines in one log are two requests; a shifted log is other events."""
    ids = [d.id for d in ingest().decisions(read_lines(stream(line(1), line(1))))]
    shifted = [d.id for d in ingest(shift_ms=5).decisions(read_lines(stream(line(1), line(1))))]
    assert len({*ids, *shifted}) == 4


def test_order_within_lateness() -> None:
    """Lines that run backwards by up to the lateness are sorted; later ones are counted and passed on."""
    # log order  :00 :59 :00 of minute 5, then minute 8, then minute 5 again (two minutes behind what was released)
    task = ingest()
    times = [d.ts // 1000 % 3600 for d in task.decisions(read_lines(
        stream(line(0), line(59), line(0), line(0, minute=8), line(30), line(0, minute=9))
    ))]  # fmt: skip
    assert times == [300, 300, 359, 330, 480, 540]
    assert task.progress.late == 1


def test_shift_moves_the_end() -> None:
    """Shifted by what lacks to now, the newest request is now and all gaps stay."""
    lines = (line(10), line(40), line(20))
    shift = 1_800_000_000_000 - end_of_log(read_lines(stream(*lines)))
    decisions = list(ingest(shift_ms=shift).decisions(read_lines(stream(*lines))))
    assert [d.ts - 1_800_000_000_000 for d in decisions] == [-30_000, -20_000, 0]


def test_a_log_without_requests_is_a_sentence() -> None:
    """Shifting something that is no access log says what its lines look like."""
    with pytest.raises(ConfigurationError, match=r"2 lines look like: \{\"a\": 9\}"):
        end_of_log(read_lines(stream(b'{"a": 1}\n', b'{"b": 2}\n')))


def test_unmatched_lines_are_counted() -> None:
    """Lines of another shape are counted by it, and the rest goes on."""
    reports: list[Progress] = []
    task = ingest(report=reports.append)
    decisions = list(task.decisions(read_lines(stream(line(1), b"what?\n", b"\xff\xfe\n", line(2)))))
    assert len(decisions) == 2
    assert task.progress.unmatched == 2
    assert task.progress.shapes == {"a?": 1, "\\a\\a": 1}
    assert reports[-1] is task.progress


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    """Only there; the first request is read as the others are."""
    task = ingest()
    assert len(list(task.decisions(read_lines(stream(b"\xef\xbb\xbf" + line(1), line(2)))))) == 2
    assert not task.progress.unmatched
    assert [one.raw for one in read_lines(stream(b"a\n", b"\xef\xbb\xbfb\n"))] == [b"a", b"\xef\xbb\xbfb"]


def test_a_line_without_end_is_cut() -> None:
    """A line of a megabyte is one unmatched line; the next one is read, at its true offset."""
    lines = list(read_lines(stream(b"x" * 1_000_000 + b"\n", line(1))))
    assert [one.offset for one in lines] == [0, 1_000_001]
    assert len(lines[0].raw) == MAX_LINE_BYTES + 2
    task = ingest()
    assert len(list(task.decisions(lines))) == 1
    assert task.progress.unmatched == 1


def test_scenarios_of_a_log() -> None:
    """Each line is decided by the limits of its path's scenario."""
    task = ingest(scenarios=ScenarioMap({"/login": "login"}))
    lines = stream(line(1, path="/login?x"), line(2, path="/login"), line(3))
    assert [(d.scenario, d.action) for d in task.decisions(read_lines(lines))] == [
        ("login", "allow"),
        ("login", "deny"),
        ("web", "allow"),
    ]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd().compress])
def test_a_pipe_is_a_log(pack: Any) -> None:
    """What a shell makes of <(…), plain or compressed, is read to its end and can be read a second time."""
    reader, writer = os.pipe()
    try:
        os.write(writer, pack(line(1) + line(2)))
        os.close(writer)
        with open_log(f"/dev/fd/{reader}") as log:
            assert end_of_log(read_lines(log)) == 1_431_857_102_000
            log.seek(0)
            assert len(list(ingest().decisions(read_lines(log)))) == 2
    finally:
        os.close(reader)


def test_unreadable_files_are_sentences(tmp_path: Path) -> None:
    """A missing file and a damaged archive are errors that name the file."""
    with pytest.raises(ConfigurationError, match=r"none\.log: cannot be read: No such file"), open_log("none.log"):
        pass
    damaged = tmp_path / "a.gz"
    damaged.write_bytes(gzip.compress(line(1) * 100)[:60])
    with pytest.raises(ConfigurationError, match=r"a\.gz: cannot be read"), open_log(damaged) as log:
        list(read_lines(log))


def test_damaged_bytes_in_the_middle_are_a_sentence(tmp_path: Path) -> None:
    """A compressed log whose middle is garbage fails with its name, wherever the decompressor notices."""
    packed = bytearray(gzip.compress(LOG.read_bytes()))
    packed[5000:5200] = b"\xff" * 200
    damaged = tmp_path / "b.gz"
    damaged.write_bytes(packed)
    with pytest.raises(ConfigurationError, match=r"b\.gz: cannot be read"), open_log(damaged) as log:
        list(read_lines(log))


def test_what_fails_while_a_log_is_read_is_not_the_logs_failure() -> None:
    """A broken pipe (`--dry-run | head`), or a broker that is away, is told as what it is."""
    with pytest.raises(BrokenPipeError), open_log(LOG):
        raise BrokenPipeError
