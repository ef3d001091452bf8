"""Logs read once through."""

from __future__ import annotations

import gzip
import io
import random
import re
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.adapters.registry import load
from penaltybox.producers.logs.checkpoint import Checkpoint
from penaltybox.producers.logs.files import logs_of
from penaltybox.producers.logs.follow import Follower
from penaltybox.producers.logs.passage import Common, stretches
from penaltybox.producers.logs.progress import Progress
from penaltybox.producers.logs.whole import WholeLogs
from tests.producers.adapters.reading_of import options
from tests.producers.logs.nginx_logs import checkpoint, common, line, lines, number_of, zstd

if TYPE_CHECKING:
    from pathlib import Path

    from penaltybox.contracts.events import Decision


def _read(source: Path, shared: Common | None = None, saved: Checkpoint | None = None) -> list[Decision]:
    saved = saved or checkpoint()
    logs = WholeLogs(logs_of(source), shared or common(), saved)
    found = list(logs.decisions())
    saved.save(logs.places())
    return found


def test_ids_are_the_same_again(tmp_path: Path) -> None:
    """Grown, renamed, compressed with gzip or zstd: a line keeps its id; another source makes other events."""
    data = lines(range(1, 300))
    files = {
        "error.log": data + lines(range(300, 320)),
        "other.1": data,
        "error.2.gz": gzip.compress(data),
        "error.3.zst": zstd().compress(data),
    }
    ids = []
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        ids.append([decision.id for decision in _read(tmp_path / name)])
    assert len(set(ids[0])) == 319
    assert ids[0][:299] == ids[1] == ids[2] == ids[3]
    renamed = common()._replace(source="nginx-error/2")
    assert not set(ids[0]) & {decision.id for decision in _read(tmp_path / "error.log", renamed)}


def test_a_folder_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    """Rotated files follow each other, logs of several servers are merged; nothing is late."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/error.log.2.gz").write_bytes(gzip.compress(lines(range(0, 4000, 2))))
    (tmp_path / "a/error.log.1").write_bytes(lines(range(4000, 8000, 2)))
    (tmp_path / "a/error.log").write_bytes(lines(range(8000, 9000, 2)))
    (tmp_path / "b.log").write_bytes(lines(range(1, 9000, 2)))
    (tmp_path / ".hidden").write_bytes(lines(range(5)))
    shared = common()
    assert [number_of(decision) for decision in _read(tmp_path, shared)] == list(range(9000))
    assert (shared.progress.files, shared.progress.late, shared.progress.lines) == (4, 0, 9000)


@pytest.mark.parametrize("kind", ["plain", "gzip", "pipe"])
def test_a_log_that_runs_backwards_is_read_from_its_end(tmp_path: Path, kind: str) -> None:
    """Newest line first, as exports come: the decisions are in order, with the ids of their places."""
    shared, log = common(), tmp_path / "export.log"
    data = b"".join(line(number) for number in range(30_000, 0, -1))
    log.write_bytes(gzip.compress(data) if kind == "gzip" else data)
    if kind == "pipe":
        runs = stretches(io.BytesIO(data), "-", shared)
        found = [number_of(one.decision) for run in runs for one in run.found]
        assert sorted(found) == list(range(1, 30_001))
        assert found == sorted(found)
    else:
        assert [number_of(decision) for decision in _read(log, shared)] == list(range(1, 30_001))
    assert (shared.progress.descending, shared.progress.late) == (1, 0)


def test_shuffled_lines_are_sorted_as_far_as_lateness_reaches(tmp_path: Path) -> None:
    """Out of order by less than the lateness: sorted. By more: counted, and not lost."""
    numbers = list(range(2000))
    near = sorted(numbers, key=lambda number: number + random.Random(number).uniform(0, 50))
    (tmp_path / "near.log").write_bytes(b"".join(map(line, near)))
    shared = common()
    assert [number_of(decision) for decision in _read(tmp_path / "near.log", shared)] == numbers
    assert shared.progress.late == 0
    (tmp_path / "far.log").write_bytes(lines([*range(1000, 2000)] * 20 + [*range(1000)]))
    shared = common()
    assert len(_read(tmp_path / "far.log", shared)) == 21_000
    assert shared.progress.late > 0


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """A second run reads what is new: grown, rotated and compressed meanwhile."""
    log, saved = tmp_path / "logs" / "error.log", tmp_path / "saved"
    log.parent.mkdir()
    log.write_bytes(lines(range(100)) + line(100)[:40])
    assert len(_read(log.parent, saved=checkpoint(saved))) == 100  # the last line is not complete
    log.write_bytes(lines(range(150)))
    (log.parent / "error.log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    log.write_bytes(lines(range(150, 160)))
    shared = common()
    found = _read(log.parent, shared, checkpoint(saved))
    assert [number_of(decision) for decision in found] == list(range(100, 160))
    assert _read(log.parent, saved=checkpoint(saved)) == []
    assert b"10.0.0" not in saved.read_bytes()


def test_what_is_held_for_sorting_is_not_behind_the_checkpoint(tmp_path: Path) -> None:
    """Ended after any decision, a run leaves a place from which all the others are read."""
    (tmp_path / "error.log").write_bytes(lines([*range(500), *range(450, 520), *range(460, 900)]))
    every = [decision.id for decision in _read(tmp_path / "error.log")]
    for count in (1, 7, 440, 500, 900):
        saved = checkpoint()
        logs = WholeLogs(logs_of(tmp_path / "error.log"), common(), saved)
        taken = [decision.id for _, decision in zip(range(count), logs.decisions(), strict=False)]
        saved.save(logs.places())
        rest = [decision.id for decision in _read(tmp_path / "error.log", saved=saved)]
        assert set(taken) | set(rest) == set(every)


def test_invalid_bytes_and_other_lines_are_counted(tmp_path: Path) -> None:
    """What is no text spoils its own line at most; lines that are none are told by shape, without content."""
    log = tmp_path / "error.log"
    odd = line(1).replace(b"GET /", b"GET /\xff\xfe\x00")
    log.write_bytes(odd + b"\xff\xfe\n" + b"secret=1234\r\n" + b"\n" + b"x" * 40_000 + b"\n" + line(2))
    shared = common()
    assert [number_of(decision) for decision in _read(log, shared)] == [1, 2]
    assert shared.progress.unmatched.total() == 3
    assert "secret" not in str(shared.progress)
    assert shared.progress.shapes["a=9"] == 1


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("backwards", [False, True])
def test_of_a_damaged_log_all_is_read_that_can_be(tmp_path: Path, kind: str, backwards: bool) -> None:
    """Cut off: its whole lines, then those of other files; a sentence; and the rest, when it is there after all."""
    data = b"".join(line(number, "x" * (number * 7919 % 97)) for number in range(50_000)[:: -1 if backwards else 1])
    packed = gzip.compress(data) if kind == "gzip" else zstd().compress(data)
    log, saved = tmp_path / "logs" / "error.log.1", tmp_path / "saved"
    log.parent.mkdir()
    log.write_bytes(packed[: len(packed) // 2])
    (log.parent / "error.log").write_bytes(lines([50_001]))
    shared = common()
    found = [number_of(decision) for decision in _read(log.parent, shared, checkpoint(saved))]
    assert found[-1] == 50_001
    assert 10_000 < len(found) < 40_000
    first = 50_000 - len(found) + 1 if backwards else 0
    assert found[:-1] == list(range(first, first + len(found) - 1))
    (sentence,) = shared.progress.damaged
    assert re.fullmatch(rf"log {re.escape(str(log))}: cannot be read on after byte [\d,]{{7,}}: .*", sentence)
    log.write_bytes(packed)
    shared = common()
    later = [number_of(decision) for decision in _read(log.parent, shared, checkpoint(saved))]
    assert shared.progress.damaged == []
    assert later == (list(range(50_000)) if backwards else list(range(len(found) - 1, 50_000)))


def test_a_log_whose_check_sum_is_wrong(tmp_path: Path) -> None:
    """It is told, though all of its lines could be read; a beginning that is none is told too."""
    packed = bytearray(gzip.compress(lines(range(100))))
    packed[-5] ^= 1
    (log := tmp_path / "error.log.gz").write_bytes(packed)
    shared = common()
    assert len(_read(log, shared)) == 100
    assert "CRC" in shared.progress.damaged[0]
    log.write_bytes(packed[:7])
    shared = common()
    assert _read(log, shared) == []
    assert len(shared.progress.damaged) == 1


def test_what_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    """A file, a folder without files."""
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        _read(tmp_path / "nothere.log")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="has no files"):
        _read(tmp_path / "empty")


@pytest.mark.parametrize("backwards", [False, True])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path, backwards: bool) -> None:
    """The first line is read as the others are."""
    data = lines(range(50)[:: -1 if backwards else 1])
    (log := tmp_path / "error.log").write_bytes(b"\xef\xbb\xbf" + data)
    shared, saved = common(), tmp_path / "saved"
    assert [number_of(decision) for decision in _read(log, shared, checkpoint(saved))] == list(range(50))
    assert shared.progress.unmatched.total() == 0
    ids = [decision.id for decision in _read(log)]
    log.write_bytes(log.read_bytes() + line(60))
    assert [number_of(decision) for decision in _read(log, saved=checkpoint(saved))] == [60]
    assert [decision.id for decision in _read(log)][:50] == ids


def test_what_depends_on_the_line_before_is_as_without_a_restart(tmp_path: Path) -> None:
    """Caddy's access log does not tell again what its rate limiter told before the place to go on at."""
    limited, handled, other, _ = load("caddy").examples
    saved = tmp_path / "saved"
    (log := tmp_path / "caddy.log").write_bytes(other + b"\n" + limited + b"\n")
    shared = Common(load("caddy"), options(), "caddy/1", Progress())
    assert len(_read(log, shared, Checkpoint(saved, "caddy", "caddy/1"))) == 1
    with log.open("ab") as more:
        more.write(handled + b"\n" + handled + b"\n")
    assert len(_read(log, shared, Checkpoint(saved, "caddy", "caddy/1"))) == 1
    once = Follower(log, shared, Checkpoint(saved, "caddy", "caddy/1"))
    assert once.poll(0) == []
    with log.open("ab") as more:
        more.write(limited + b"\n")
    assert len(once.poll(1)) == 1
    again = Checkpoint(None, "caddy", "caddy/1")
    again.save(once.places())
    once.close()
    with log.open("ab") as more:
        more.write(handled + b"\n")
    after = Follower(log, shared, again)
    assert after.poll(0) == []
    after.close()


def test_a_checkpoint_of_another_log_is_refused(tmp_path: Path) -> None:
    """Another source would make other events of the same lines; damaged, it says what to do."""
    saved = tmp_path / "saved"
    (tmp_path / "error.log").write_bytes(lines(range(5)))
    _read(tmp_path / "error.log", saved=checkpoint(saved))
    assert checkpoint(saved, moves=False).places
    saved.write_bytes(saved.read_bytes().replace(b"nginx-error/1", b"nginx-error/2"))
    with pytest.raises(ConfigurationError, match="Give each its own checkpoint"):
        checkpoint(saved)
    saved.write_bytes(b"{}")
    with pytest.raises(ConfigurationError, match="remove it to read everything again"):
        checkpoint(saved)
