"""The spill: bounded, in order, private, and whole after whatever end its process had."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.settings import Settings
from penaltybox.producers.spill import SEGMENT_BYTES, Spill, spill_directory
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


def lines(start: int, stop: int, size: int = 10) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(start, stop)]


def read_all(spill: Spill) -> list[bytes]:
    return [line for segment in spill.waiting() for line in spill.read(segment)]


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[Spill]:
    made = Spill(tmp_path / "spill", 8 << 20)
    yield made
    made.close()


def test_what_goes_in_comes_out_in_order(spill: Spill) -> None:
    """Lines come back in order over several appends and files, each file of about a megabyte."""
    given = lines(0, 30_000, 100)
    for start in range(0, len(given), 700):
        assert spill.append(given[start : start + 700]) == len(given[start : start + 700])
    segments = spill.waiting()
    assert len(segments) == 3
    assert all(segment.path.stat().st_size <= SEGMENT_BYTES + 101 for segment in segments)
    assert spill.size == sum(segment.path.stat().st_size for segment in segments)
    assert read_all(spill) == given
    for segment in segments:
        spill.settle(segment)
    assert (spill.size, spill.waiting()) == (0, [])
    spill.close()
    assert not list(spill.directory.iterdir())


def test_what_is_left_of_a_segment_stays_in_its_place(spill: Spill) -> None:
    """A segment of which a part could not be sent keeps that part, before later segments."""
    spill.append(lines(0, 10))
    (first,) = spill.waiting()
    spill.append(lines(10, 20))
    spill.settle(first, lines(3, 5))
    assert read_all(spill) == lines(3, 5) + lines(10, 20)
    assert spill.size == 12 * 11


def test_the_bound_holds_for_the_directory(tmp_path: Path) -> None:
    """All files together stay below the bound; the rest is refused with a sentence, until there is room again."""
    one, other = Spill(tmp_path / "s", 1 << 20), Spill(tmp_path / "s", 1 << 20)
    assert one.append(lines(0, 60, 9_999)) == 60
    assert other.append(lines(0, 60, 9_999)) == 44
    assert "holds 1 MB already" in other.trouble
    assert sum(path.stat().st_size for path in (tmp_path / "s").iterdir()) <= 1 << 20
    for segment in one.waiting():
        one.settle(segment)
    other._measured = None  # as a second later
    assert other.append(lines(0, 60, 9_999)) == 60
    assert other.trouble == ""
    one.close()
    other.close()


def test_files_are_private(spill: Spill) -> None:
    """Only this user may read what waits, or list it."""
    spill.append(lines(0, 3))
    assert spill.directory.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in spill.directory.iterdir())


def test_another_users_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of another user, who could read or forge what is in it, is not used; the sentence says so."""
    (tmp_path / "spill").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    spill = Spill(tmp_path / "spill", 1 << 20)
    assert spill.append(lines(0, 3)) == 0
    assert f"belongs to another user (uid {os.getuid()})" in spill.trouble


def test_a_directory_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    """Where a file stands in the way nothing is taken and nothing raised."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    spill = Spill(tmp_path / "file" / "spill", 1 << 20)
    assert spill.append(lines(0, 3)) == 0
    assert "takes no records" in spill.trouble
    assert spill.adopt() == 0


def test_a_full_disk_leaves_no_half_line(spill: Spill) -> None:
    """A write that fails in its middle is taken back, so the next line is not glued to half of one."""
    assert spill.append(lines(0, 100)) == 100
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
        assert spill.append(lines(100, 200)) == 0
        assert "File too large" in spill.trouble
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert spill.append(lines(200, 210)) == 10
    assert read_all(spill) == lines(0, 100) + lines(200, 210)


def test_the_files_of_one_that_lives_are_not_adopted(tmp_path: Path) -> None:
    """Adoption takes what an ended owner left, once, and nothing of one that is there."""
    owner, heir, other = (Spill(tmp_path / "s", 1 << 20) for _ in range(3))
    owner.append(lines(0, 10))
    assert heir.adopt() == 0
    owner.close()
    assert (heir.adopt(), other.adopt(), heir.adopt()) == (1, 0, 0)
    heir.append(lines(10, 20))
    assert read_all(heir) == lines(0, 20), "adopted ones are older, so they go first"
    assert heir.size == 220
    for segment in heir.waiting():
        heir.settle(segment)
    heir.close()
    other.close()
    assert not list((tmp_path / "s").iterdir())


KILLED = """
import os, sys
from pathlib import Path
from penaltybox.producers.spill import Spill
spill = Spill(Path(sys.argv[1]), 1 << 20)
assert spill.append([b"%d" % number for number in range(50)]) == 50
os.write(spill._file, b'{"v":1,"id":"cut in the mid')
if sys.argv[2] == "fork" and os.fork() == 0:
    spill.abandon()
    print("child", flush=True)
    sys.stdin.read()
    os._exit(0)
if sys.argv[2] != "fork":
    print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_killed_process_leaves_all_that_it_wrote(tmp_path: Path, how: str) -> None:
    """kill -9 in the middle of a line: all lines before it are adopted, though a forked child of it lives on."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "s"), how],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline()
    heir = Spill(tmp_path / "s", 1 << 20)
    assert heir.adopt() == 0
    process.kill()
    process.wait()
    assert block_until(heir.adopt) == 1
    assert read_all(heir) == [*(b"%d" % number for number in range(50)), b'{"v":1,"id":"cut in the mid']
    process.stdin.close()
    process.stdout.close()
    heir.close()


def test_a_half_written_rest_is_nothing(tmp_path: Path) -> None:
    """Killed while the rest of a segment was written: the segment is whole, the half rest is thrown away."""
    owner, heir = Spill(tmp_path / "s", 1 << 20), Spill(tmp_path / "s", 1 << 20)
    owner.append(lines(0, 10))
    (segment,) = owner.waiting()
    owner.close()
    segment.path.with_suffix(".part").write_bytes(b"half a li")
    assert heir.adopt() == 1
    assert read_all(heir) == lines(0, 10)
    heir.settle(segment)
    heir.close()
    assert not list((tmp_path / "s").iterdir())


def test_files_that_somebody_deleted_are_no_trouble(spill: Spill) -> None:
    """An operator empties the directory: nothing waits any more, and new records find their place."""
    spill.append(lines(0, 10))
    (segment,) = spill.waiting()
    segment.path.unlink()
    assert (spill.waiting(), spill.size) == ([], 0)
    spill.settle(segment)
    assert spill.append(lines(10, 20)) == 10
    assert read_all(spill) == lines(10, 20)


def test_clusters_do_not_mix() -> None:
    """Without a directory of the user's choice there is one per cluster and prefix; with one, one per prefix."""
    places = {
        spill_directory(Settings(kafka=kafka, topic_prefix=prefix)) for kafka in ("a:1", "b:1") for prefix in "pq"
    }
    assert len(places) == 4
    chosen = Settings(spill_dir="/var/lib/x")
    assert spill_directory(chosen) == Path("/var/lib/x/penaltybox")
