"""Words that others wrote, on a terminal: nothing that it would obey, however they come to it."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from penaltybox.cli.console import Plain, one_line, plain

OBEYED = [
    chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
]


@given(st.text(st.sampled_from([*OBEYED, "a", "é", "漢", "\\"])))
def test_what_a_terminal_obeys_is_told_by_its_code(text: str) -> None:
    """One line is one line; `plain` and the console keep line ends, which are theirs to begin."""
    said = one_line(text)
    assert not set(said) & set(OBEYED)
    assert said.isprintable()
    assert not set(plain(text)) & (set(OBEYED) - {"\n"})
    shown = io.StringIO()
    Plain(file=shown, width=200).print(text, markup=False, soft_wrap=True)
    assert not set(shown.getvalue()) & (set(OBEYED) - {"\n"})


def test_what_can_be_printed_stays() -> None:
    """Names in any script are read, not decoded."""
    assert one_line("user:漢字 é 👍") == "user:漢字 é 👍"
    assert one_line("a\nb\x1b[2J") == "a\\u{a}b\\u{1b}[2J"
