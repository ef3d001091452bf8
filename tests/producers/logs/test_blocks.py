"""Bytes cut into lines."""

from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.producers.logs import blocks
from penaltybox.producers.logs.blocks import LONGEST_LINE, Block, Splitter, backwards

PIECES = st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\x00", b"\n")), max_size=12)


def _placed(found: list[Block]) -> list[tuple[int, bytes]]:
    placed = []
    for block in found:
        start = block.start
        for line in block.data.split(b"\n"):
            placed.append((start, line))
            start += len(line) + 1
    return placed


@settings(deadline=None)
@given(PIECES)
def test_lines_are_the_same_however_they_come(pieces: list[bytes]) -> None:
    """Each line has its offset, whatever the reads were cut into; what has no newline is held until the end."""
    data = b"".join(pieces)
    splitter = Splitter()
    found = [block for piece in pieces for block in splitter.feed(piece)]
    assert splitter.complete == data.rfind(b"\n") + 1
    last = splitter.rest()
    placed = _placed([*found, last] if last else found)
    cut = data.split(b"\n")
    assert [line for _, line in placed] == (cut[:-1] if cut[-1] == b"" else cut)
    assert all(data[start : start + len(line)] == line for start, line in placed)


@settings(deadline=None)
@given(PIECES, st.integers(min_value=1, max_value=9))
def test_backwards_gives_the_same_lines(pieces: list[bytes], size: int) -> None:
    """From the end, in blocks of any size, the lines and offsets are those of the file."""
    data = b"".join(pieces)
    before, blocks.BLOCK_BYTES = blocks.BLOCK_BYTES, size
    try:
        found = list(backwards(io.BytesIO(data), len(data)))
    finally:
        blocks.BLOCK_BYTES = before
    placed = sorted(_placed(found))
    cut = data.split(b"\n")
    assert [line for _, line in placed] == (cut[:-1] if cut[-1] == b"" else cut)
    assert all(data[start : start + len(line)] == line for start, line in placed)


def test_a_line_without_end_is_cut() -> None:
    """A line of any length takes bounded memory, and what follows keeps its offset."""
    splitter = Splitter()
    chunk = b"x" * LONGEST_LINE
    found = [block for _ in range(5) for block in splitter.feed(chunk)]
    assert not found
    found = list(splitter.feed(b"end\nnext\n"))
    assert [len(block.data) for block in found] == [LONGEST_LINE, 4]
    assert found[1] == Block(5 * LONGEST_LINE + 4, b"next", 5 * LONGEST_LINE + 9)


def test_a_hole_is_no_part_of_a_line() -> None:
    """NULs before a line, as a truncation leaves them, however many, take neither memory nor the line behind them."""
    for hole in (1, 5000, 3 * LONGEST_LINE):
        splitter = Splitter()
        data = b"\x00" * hole + b"one\ntwo\n"
        found = [block for at in range(0, len(data), 1 << 16) for block in splitter.feed(data[at : at + (1 << 16)])]
        assert [(start - hole, line) for start, line in _placed(found)] == [(0, b"one"), (4, b"two")]
        assert splitter.complete == len(data)
    assert [line for _, line in _placed(list(Splitter().feed(b"a\x00b\n")))] == [b"a\x00b"]
