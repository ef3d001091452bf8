"""No line is slow: what a client repeats in it costs in proportion to its length."""

from __future__ import annotations

import time

import pytest

from penaltybox.producers.adapters.registry import SUMMARIES, load
from tests.producers.adapters.reading_of import options

PIECES = [b" ", b'"', b'\\"', b'" "', b'[file "x"] [line "1"] ', b'{"', b" ---- 1/1/1/1/0 0/0 ", b"x, ", b"\xff"]
LINEAR_S = 3.0
"""CPU time of one line; 40 ms are usual on a slow machine, and what grows with the square takes ten seconds."""


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_no_line_is_slow(name: str) -> None:
    """Lines of every format that go on, from anywhere, with a piece over and over."""
    form = load(name)
    for example in form.examples[:4]:
        for start in range(0, len(example), max(1, len(example) // 6)):
            for piece in PIECES:
                adapter = form.make(options(values=form.given))
                longest = min(adapter.longest, 32_768)
                line = (example[:start] + piece * longest)[:longest]
                begun = time.thread_time()
                adapter.read(line)
                assert time.thread_time() - begun < LINEAR_S, (start, piece)
