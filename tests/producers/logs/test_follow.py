"""Logs followed on real files: growth, rotation, truncation, restart."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.logs import follow as following
from penaltybox.producers.logs.follow import GONE_AFTER_S, SCAN_EVERY_S, SETTLED_AFTER_S, Follower, Pipe
from tests.producers.logs.nginx_logs import checkpoint, common, line, lines, number_of

if TYPE_CHECKING:
    from pathlib import Path

    from penaltybox.producers.logs.checkpoint import Checkpoint


class _Watch:
    """A follower, and a clock that only the test moves."""

    def __init__(self, source: Path, saved: Path | None = None) -> None:
        self.now_s = 0.0
        self.common = common()
        self.checkpoint: Checkpoint = checkpoint(saved)
        self.follower = Follower(source, self.common, self.checkpoint)
        self.ids: list[str] = []

    def new(self, after_s: float = SCAN_EVERY_S) -> list[int]:
        """The numbers of the lines that are new, after a time."""
        self.now_s += after_s
        numbers = []
        while True:
            for one in self.follower.poll(self.now_s):
                self.ids.append(one.decision.id)
                numbers.append(number_of(one.decision))
            self.checkpoint.save(self.follower.places())
            if not self.follower.more:
                return numbers


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log in a folder of its own."""
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "error.log"


def test_lines_come_when_they_are_whole(log: Path) -> None:
    """A file that is not there yet, its first lines, a line in two parts, many at once."""
    watch = _Watch(log)
    assert watch.new() == []
    log.write_bytes(lines([1, 2]))
    assert watch.new() == [1, 2]
    _append(log, line(3)[:50])
    assert watch.new() == []
    _append(log, line(3)[50:] + line(4)[:-1])
    assert watch.new(0.01) == [3]
    _append(log, b"\n")
    assert watch.new(0.01) == [4]
    _append(log, lines(range(5, 20_000)))
    assert watch.new(0.01) == list(range(5, 20_000))
    watch.follower.close()


def test_renamed_and_begun_anew(log: Path) -> None:
    """What a writer still puts into the renamed file comes, and what it puts into the new one."""
    watch = _Watch(log)
    log.write_bytes(lines([1]))
    assert watch.new() == [1]
    for rotated in range(10, 60, 10):
        old = log.with_name(f"error.log.{rotated}")
        log.rename(old)
        _append(old, line(rotated))
        assert watch.new() == [rotated]
        log.write_bytes(line(rotated + 1))
        _append(old, line(rotated + 2))
        assert sorted(watch.new()) == [rotated + 1, rotated + 2]
    watch.follower.close()


def test_moved_away_or_removed(log: Path, tmp_path: Path) -> None:
    """A file without its name is read while its writer goes on, then let go, its last words included."""
    watch = _Watch(log)
    log.write_bytes(lines([1]))
    assert watch.new() == [1]
    with log.open("ab") as writer:
        log.rename(tmp_path / "elsewhere")
        writer.write(line(2) + line(3)[:-1])
        writer.flush()
        assert watch.new() == [2]
        assert watch.new(GONE_AFTER_S + 1) == [3]
    (tmp_path / "elsewhere").unlink()
    log.write_bytes(lines([4]))
    assert watch.new() == [4]
    watch.follower.close()


def test_copied_and_truncated(log: Path) -> None:
    """After copytruncate the file is read from its beginning, and the copy gives what had not been read before."""
    watch = _Watch(log)
    log.write_bytes(lines(range(1, 50)))
    assert len(watch.new()) == 49
    _append(log, lines([50]))
    shutil.copyfile(log, log.with_name("error.log.1"))
    os.truncate(log, 0)
    _append(log, lines([51, 52]))
    assert sorted(watch.new()) == [50, 51, 52]
    # again, and the new content is longer than the old one was: known by its beginning
    os.truncate(log, 0)
    _append(log, lines(range(60, 160)))
    assert watch.new() == list(range(60, 160))
    assert len(set(watch.ids)) == len(watch.ids)
    watch.follower.close()


def test_a_log_that_takes_the_place_of_one_that_was_passed_over(log: Path) -> None:
    """The oldest generation goes, and the new log gets its place on disk: it is another file, and is read."""
    oldest = log.with_name("error.log.1")
    oldest.write_bytes(lines([1, 2]))
    log.write_bytes(lines([3]))
    watch = _Watch(log)
    assert watch.new() == [3]
    place = oldest.stat().st_ino
    log.rename(log.with_name("error.log.2"))
    oldest.write_bytes(b"")
    oldest.rename(log)
    log.write_bytes(lines([4, 5]))
    assert log.stat().st_ino == place
    assert watch.new() == [4, 5]
    _append(log, lines([6]))
    assert watch.new() == [6]
    watch.follower.close()


def test_an_archive_that_takes_the_place_of_one_that_was_read(log: Path) -> None:
    """In a folder, too: what was compressed and read has gone, and a new log has its place on disk."""
    packed = log.with_name("old.gz")
    packed.write_bytes(gzip.compress(lines([1])))
    watch = _Watch(log.parent)
    assert watch.new() + watch.new(SETTLED_AFTER_S) == [1]
    packed.write_bytes(lines([2, 3, 4]))
    packed.rename(log)
    assert watch.new() == [2, 3, 4]
    watch.follower.close()


def test_truncated_under_a_writer_that_goes_on_where_it_was(log: Path) -> None:
    """It leaves a hole at the beginning: the lines behind it are read, and another log with a hole is another log."""
    log.write_bytes(lines(range(30)))
    watch = _Watch(log.parent)
    assert watch.new() == list(range(30))
    with log.open("r+b") as writer:
        writer.truncate(0)
        writer.seek(2000)
        writer.write(lines([40]))
    assert watch.new() == [40]
    with log.with_name("other.log").open("wb") as writer:
        writer.seek(1500)
        writer.write(lines([50]))
    assert watch.new() == [50]
    watch.follower.close()


def test_a_folder_and_its_new_files(log: Path) -> None:
    """All files, also new ones, in folders below, and compressed ones when they have settled; copies only once."""
    log.write_bytes(lines([1]))
    watch = _Watch(log.parent)
    assert watch.new() == [1]
    (log.parent / "web2").mkdir()
    (log.parent / "web2" / "error.log").write_bytes(lines([2, 3]))
    (log.parent / "old.gz").write_bytes(gzip.compress(lines(range(10, 5000))))
    assert watch.new() == [2, 3]
    assert watch.new(SETTLED_AFTER_S + SCAN_EVERY_S) == list(range(10, 5000))
    log.with_name("error.log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    assert watch.new() == []
    assert watch.new(SETTLED_AFTER_S + SCAN_EVERY_S) == []
    assert len(set(watch.ids)) == len(watch.ids)
    watch.follower.close()


def test_many_files_are_followed_with_few_open(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound, the files that were quiet the longest are closed, and opened again when they grow."""
    monkeypatch.setattr(following, "MOST_OPEN", 4)
    watch = _Watch(log.parent)
    paths = [log.with_name(f"web{number}.log") for number in range(20)]
    for number, path in enumerate(paths):
        path.write_bytes(line(number))
    assert watch.new() == list(range(20))
    assert sum(tail.is_open for tail in watch.follower._tails.values()) == 4
    for number, path in enumerate(paths):
        _append(path, line(100 + number))
    assert watch.new() == list(range(100, 120))
    watch.follower.close()
    assert not any(tail.is_open for tail in watch.follower._tails.values())


@pytest.mark.parametrize("compressed", [False, True])
def test_a_restart_goes_on_where_it_was(log: Path, tmp_path: Path, compressed: bool) -> None:
    """What was written and rotated while nobody followed is read, in order, and nothing twice."""
    saved = tmp_path / "saved"
    log.with_name("error.log.1").write_bytes(lines([1, 2]))
    log.write_bytes(lines([3]))
    watch = _Watch(log, saved)
    assert watch.new() == [3]  # the log, not what was rotated before
    _append(log, line(4)[:30])
    assert watch.new() == []
    watch.follower.close()
    _append(log, line(4)[30:])
    log.with_name("error.log.1").rename(log.with_name("error.log.3"))
    if compressed:
        log.with_name("error.log.2.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.unlink()
    else:
        log.rename(log.with_name("error.log.2"))
    log.with_name("error.log.1").write_bytes(lines([5]))
    log.write_bytes(lines([6]))
    watch = _Watch(log, saved)
    found = watch.new() + watch.new(SETTLED_AFTER_S + SCAN_EVERY_S)
    assert sorted(found) == [4, 5, 6]
    watch.follower.close()
    size = saved.stat().st_size
    for _ in range(3):  # nothing is left behind by restarts
        watch = _Watch(log, saved)
        assert watch.new() + watch.new(SETTLED_AFTER_S + SCAN_EVERY_S) == []
        watch.follower.close()
    assert saved.stat().st_size <= size


def test_a_checkpoint_knows_a_file_whose_place_another_one_took(log: Path, tmp_path: Path) -> None:
    """A file with the old one's inode and size, but other content, is a new one."""
    saved = tmp_path / "saved"
    log.write_bytes(lines([1, 2, 3]))
    watch = _Watch(log, saved)
    assert watch.new() == [1, 2, 3]
    watch.follower.close()
    with log.open("r+b") as file:
        file.write(lines([7, 8, 9]))
    watch = _Watch(log, saved)
    assert watch.new() == [7, 8, 9]
    watch.follower.close()


def test_a_pipe_is_followed_to_its_end() -> None:
    """Lines come at once; the last one without newline at the end."""
    reading, writing = os.pipe()
    pipe = Pipe(reading, common())
    assert pipe.poll(time.monotonic()) == []
    os.write(writing, line(1) + line(2)[:20])
    assert [number_of(one.decision) for one in pipe.poll(time.monotonic())] == [1]
    os.write(writing, line(2)[20:-1])
    assert pipe.poll(time.monotonic()) == []
    os.close(writing)
    assert [number_of(one.decision) for one in pipe.poll(time.monotonic())] == [2]
    assert pipe.ended
    os.close(reading)


@pytest.mark.parametrize("byte_by_byte", [False, True])
@pytest.mark.parametrize(
    ("packed", "kind", "by"),
    [(gzip.compress(line(1)), "gzip", "zcat"), (b"\x28\xb5\x2f\xfd" + bytes(20), "zstd", "zstdcat")],
)
def test_a_compressed_pipe_is_not_followed(packed: bytes, kind: str, by: str, *, byte_by_byte: bool) -> None:
    """It is no line of the format either: what to do is said, instead of counting it as malformed."""
    reading, writing = os.pipe()
    pipe = Pipe(reading, common())
    if byte_by_byte:
        os.write(writing, packed[:1])
        assert pipe.poll(time.monotonic()) == []
        packed = packed[1:]
    os.write(writing, packed)
    with pytest.raises(ConfigurationError, match=f"is {kind}, wanted lines.*{by} \\| penaltybox ingest - --follow"):
        pipe.poll(time.monotonic())
    os.close(writing)
    os.close(reading)
