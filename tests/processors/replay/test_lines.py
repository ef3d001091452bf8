"""Files of JSON lines: compressed or not, with what does not belong there."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Decision, Outcome, encode
from tests.processors.replay.traffic import Recorder, households, run, write

if TYPE_CHECKING:
    from pathlib import Path


def outcome(event: Decision) -> Outcome:
    """What became of a decision's subjects."""
    return Outcome(v=1, id="o", ts=event.ts, label="payment_ok", subjects=dict(event.subjects))


def test_compressed_files_are_the_same(tmp_path: Path) -> None:
    """gzip and Zstandard (of several frames) are known by their first bytes and give what the plain file gives."""
    plain = write(tmp_path / "d.jsonl", households())
    raw = plain.read_bytes()
    (tmp_path / "zipped").write_bytes(gzip.compress(raw))
    codec = pa.Codec("zstd")
    half = len(raw) // 2
    frames = codec.compress(raw[:half], asbytes=True) + codec.compress(raw[half:], asbytes=True)
    (tmp_path / "frames").write_bytes(frames)
    results = [run(plain), run(tmp_path / "zipped"), run(tmp_path / "frames")]
    assert len({result.result_hash for result in results}) == 1
    assert {result.decisions for result in results} == {3000}


def test_a_damaged_archive_is_a_sentence(tmp_path: Path) -> None:
    """A file that ends too soon, or is damaged, says so and is no result."""
    raw = write(tmp_path / "d.jsonl", households()).read_bytes()
    codec = pa.Codec("zstd")
    for name, data in (("a.gz", gzip.compress(raw)[:-4000]), ("b.zst", codec.compress(raw, asbytes=True)[:40] * 40)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigurationError, match=f"{name}: cannot be read"):
            run(tmp_path / name)


def test_line_ends_and_empty_lines(tmp_path: Path) -> None:
    """Lines may end as on Windows, be empty, the last one may lack its end, the first have a byte order mark."""
    plain = write(tmp_path / "d.jsonl", households(600))
    raw = plain.read_bytes()
    (tmp_path / "w.jsonl").write_bytes(raw.replace(b"\n", b"\r\n")[:-2])
    (tmp_path / "e.jsonl").write_bytes(raw.replace(b"\n", b"\n\n"))
    (tmp_path / "m.jsonl").write_bytes(b"\xef\xbb\xbf" + raw)
    (tmp_path / "z.jsonl").write_bytes(gzip.compress(b"\xef\xbb\xbf" + raw))
    expected = run(plain)
    for name in ("w.jsonl", "e.jsonl", "m.jsonl", "z.jsonl"):
        result = run(tmp_path / name)
        assert (result.result_hash, result.decisions, result.refused) == (expected.result_hash, 600, {})


def test_lines_that_cannot_be_judged_are_counted(tmp_path: Path) -> None:
    """Bad lines are counted by reason and change nothing else."""
    plain = write(tmp_path / "d.jsonl", households(600))
    raw = plain.read_bytes()
    bad = b'{"v":1}\nnonsense\n' + raw + b'{"label":"payment_ok"}\n'
    (tmp_path / "bad.jsonl").write_bytes(bad)
    result = run(tmp_path / "bad.jsonl")
    assert result.result_hash == run(plain).result_hash
    assert result.refused == {"not_json": 1, "wrong_type": 2}


def test_a_file_of_something_else(tmp_path: Path) -> None:
    """A file without one decision says what its first line lacks; one that is not there says what is wanted."""
    (tmp_path / "notes.txt").write_text("a\nb\n")
    with pytest.raises(
        ConfigurationError, match=r"none of its 2 records can be judged; line 1: .*docs/events.md.*combined:FILE"
    ):
        run(tmp_path / "notes.txt")
    with pytest.raises(ConfigurationError, match="there is no such file"):
        run(tmp_path / "nothing.jsonl")
    (tmp_path / "long").write_bytes(b"x" * (10 << 20))
    with pytest.raises(ConfigurationError, match="a line is longer than 8 MiB"):
        run(tmp_path / "long")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="nothing to replay"):
        run(tmp_path / "empty")


def test_outcomes_after_the_range_label_it(tmp_path: Path) -> None:
    """Also those in the middle of the file, which is in no order; they step nothing."""
    events = households(600)
    to_ms = events[300].ts
    late = [
        Outcome(v=1, id=f"o{n}", ts=to_ms + n, label="payment_ok", subjects=dict(events[0].subjects)) for n in (0, 1)
    ]
    file = write(tmp_path / "d.jsonl", [*events[:100], late[1], *events[100:], late[0]])
    plain = run(write(tmp_path / "plain.jsonl", events), to_ms=to_ms)
    recorder = Recorder()
    result = run(file, observer=recorder, to_ms=to_ms)
    assert (result.decisions, result.outcomes, result.result_hash) == (plain.decisions, 0, plain.result_hash)
    assert [one for one in recorder.told if one[0] == "outcome"] == [("outcome", "o0", True), ("outcome", "o1", True)]
    assert result.last_ms == plain.last_ms


def test_recognised_lines_are_the_same(tmp_path: Path) -> None:
    """Lines that are only recognised give what decoding them gives, in a part of the file too, with others between."""
    events = households()
    lines = [encode(event) for event in events]
    lines[7:7] = [json.dumps(msgspec.to_builtins(events[6])).encode(), b"nonsense", encode(outcome(events[6]))]
    file = tmp_path / "d.jsonl"
    file.write_bytes(b"\n".join(lines))
    part = {"from_ms": events[400].ts, "to_ms": events[2500].ts, "warm_up_ms": 1000}
    for options in ({}, part):
        recognised, decoded = run(file, **options), run(file, observer=Recorder(), **options)
        assert recognised.result_hash == decoded.result_hash
        assert recognised.candidate.penalties > 100
        for name in ("decisions", "outcomes", "refused", "first_ms", "last_ms", "warm_up_decisions", "remarks"):
            assert getattr(recognised, name) == getattr(decoded, name)
