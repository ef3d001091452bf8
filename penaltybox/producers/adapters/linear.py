r"""Patterns that no line can make slow.

Python's `re` goes back and tries again, which for some patterns takes time that grows exponentially, or with a high
power of the line's length; whoever writes into a log could then stop its reading. So a pattern is admitted only if that
cannot happen, which is decided when it is loaded, by its form:

- only one character or class repeats: ``(\w+\s)*`` is refused, ``[\w\s]*`` is fine. A fixed number of a group, such as
  ``{3}``, is written out, so it is as good as what it holds;
- no look-around and no back-references;
- a choice is *clear* if the next character decides it: a repetition whose characters cannot begin what follows
  (``\S+`` before a blank), alternatives with different first characters. A clear choice is made once. The other
  choices are multiplied with each other: ``.*`` counts as the longest line, ``{1,3}`` as 3, alternatives as their
  number. The product may be at most `MOST_WAYS`: one ``.*`` in the middle, or a few short ones, but not two.

What is left takes at most `MOST_WAYS` times the line's length, for lines of at most `LONGEST` bytes. Possessive
repetitions (``.*+``) and atomic groups never go back, so they are clear.
"""

from __future__ import annotations

import re
import warnings
from re import _constants as ops  # type: ignore[attr-defined] # the parser of `re`, which has no public face
from re import _parser  # type: ignore[attr-defined] # as above
from typing import Any, Final, NamedTuple

LONGEST: Final = 4096
"""Bytes of a line that such a pattern is tried on."""
MOST_WAYS: Final = 4 * LONGEST
_MOST_ITEMS: Final = 2_000
_OTHERS: Final = 128
"""Stands for every character that is not ASCII."""
_ALL: Final = frozenset(range(_OTHERS + 1))
_SPACE: Final = frozenset(map(ord, " \t\n\r\f\v"))
_DIGIT: Final = frozenset(map(ord, "0123456789"))
_WORD: Final = frozenset(code for code in range(_OTHERS) if chr(code).isalnum()) | {ord("_")}
_CLASSES: Final = {
    ops.CATEGORY_DIGIT: _DIGIT,
    ops.CATEGORY_NOT_DIGIT: _ALL - _DIGIT,
    ops.CATEGORY_SPACE: _SPACE,
    ops.CATEGORY_NOT_SPACE: _ALL - _SPACE,
    ops.CATEGORY_WORD: _WORD,
    ops.CATEGORY_NOT_WORD: _ALL - _WORD,
}
_REFUSED: Final = {
    ops.ASSERT: "look-ahead or look-behind",
    ops.ASSERT_NOT: "look-ahead or look-behind",
    ops.GROUPREF: "a back-reference",
    ops.GROUPREF_EXISTS: "a conditional group",
}


class Refused(Exception):  # noqa: N818 - an answer, told by whoever reads the pattern
    """The pattern could be slow, or is none; the message says where and what to do instead."""


class _Begin(NamedTuple):
    """With which characters something begins, and whether it may be empty."""

    first: frozenset[int]
    empty: bool


_END: Final = _Begin(frozenset(), empty=True)


def linear(pattern: str) -> re.Pattern[str]:
    """The pattern, compiled (ASCII classes), for `fullmatch` on lines of at most `LONGEST` characters.

    Raises:
        Refused: it is no pattern, or could be slow.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # "possible nested set": may mean something else one day
            tree = _parser.parse(pattern, re.ASCII)
            compiled = re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        raise Refused(f"not a pattern: {error}") from error
    if compiled.flags & ~re.ASCII:
        raise Refused("flags such as (?i) are not for lines of a log; write [Ff]ailed")
    check = _Check()
    check.sequence(list(tree), _END)
    if check.ways > MOST_WAYS:
        raise Refused(
            f"could take {check.ways:,} ways through a line, at most {MOST_WAYS:,} are allowed; unclear are: "
            f"{', '.join(check.unclear[:4])}. Let the character behind a repetition be one that it cannot hold "
            r"(\S+ before a blank, [^]]* before ]), or make it possessive (*+)"
        )
    return compiled


class _Check:
    """Goes through a pattern from its end, so that what follows is known."""

    def __init__(self) -> None:
        self.ways = 1
        self.unclear: list[str] = []
        self._items = 0

    def sequence(self, items: list[Any], follow: _Begin) -> _Begin:
        """How the items begin, `follow` behind them."""
        for op, argument in reversed(items):
            self._items += 1
            if self._items > _MOST_ITEMS:
                raise Refused(f"longer than {_MOST_ITEMS:,} items, repetitions written out")
            follow = self._item(op, argument, follow)
        return follow

    def _item(self, op: Any, argument: Any, follow: _Begin) -> _Begin:
        if op in _REFUSED:
            raise Refused(f"{_REFUSED[op]}; wanted a pattern without")
        characters = _characters(op, argument)
        if characters is not None:
            return _Begin(characters, empty=False)
        if op is ops.AT:
            return follow
        if op is ops.SUBPATTERN:
            _, added, removed, inner = argument
            if added & ~re.ASCII or removed:
                raise Refused("flags such as (?i:…) are not for lines of a log; write [Ff]ailed")
            return self.sequence(list(inner), follow)
        if op is ops.ATOMIC_GROUP:
            self.sequence(list(argument), _END)
            return self._opaque(list(argument), follow)
        if op is ops.BRANCH:
            return self._branch([list(one) for one in argument[1]], follow)
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            return self._repeat(op, argument, follow)
        raise Refused(f"{str(op).lower()}; wanted characters, classes, groups, alternatives and repetitions")

    def _opaque(self, items: list[Any], follow: _Begin) -> _Begin:
        """How the items begin, without counting their choices again."""
        beside = _Check()
        return beside.sequence(items, follow)

    def _branch(self, ways: list[list[Any]], follow: _Begin) -> _Begin:
        begins = [self.sequence(one, follow) for one in ways]
        firsts = [begin.first for begin in begins]
        clear = sum(map(len, firsts)) == len(frozenset().union(*firsts)) and sum(begin.empty for begin in begins) <= 1
        if not clear:
            self._count(len(ways), f"{len(ways)} alternatives that begin alike")
        return _Begin(frozenset().union(*firsts), any(begin.empty for begin in begins))

    def _repeat(self, op: Any, argument: Any, follow: _Begin) -> _Begin:
        least, most = min(int(argument[0]), LONGEST), min(int(argument[1]), LONGEST)
        items, possessive = list(argument[2]), op is ops.POSSESSIVE_REPEAT
        single = _characters(*items[0]) if len(items) == 1 else None
        if single is not None:
            if least != most and not possessive and single & follow.first:
                self._count(most - least + 1, f"a repetition of {_shown(single)} before {_shown(follow.first)}")
            return _Begin(single | follow.first, follow.empty) if least == 0 else _Begin(single, empty=False)
        if possessive or (least != most and most > 1):
            raise Refused("a group that repeats; wanted one character or class, or a fixed number such as {3}")
        if least != most:  # optional
            begin = self.sequence(items, follow)
            if begin.empty or begin.first & follow.first:
                self._count(2, "an optional group that begins like what follows")
            return _Begin(begin.first | follow.first, follow.empty)
        for _ in range(most):
            follow = self.sequence(items, follow)
        return follow

    def _count(self, ways: int, what: str) -> None:
        self.ways *= ways
        self.unclear.append(what)


def _characters(op: Any, argument: Any) -> frozenset[int] | None:
    """The characters that one item matches; None if it is not one character."""
    if op is ops.ANY:
        return _ALL
    if op in (ops.LITERAL, ops.NOT_LITERAL):
        one = frozenset({min(argument, _OTHERS)})
        if op is ops.LITERAL:
            return one
        return _ALL if argument >= _OTHERS else _ALL - one
    if op is not ops.IN:
        return None
    found: frozenset[int] = frozenset()
    negated = False
    for kind, value in argument:
        if kind is ops.NEGATE:
            negated = True
        elif kind is ops.LITERAL:
            found |= {min(value, _OTHERS)}
        elif kind is ops.RANGE:
            found |= frozenset(range(min(value[0], _OTHERS), min(value[1], _OTHERS) + 1))
        else:
            found |= _CLASSES[value]
    if not negated:
        return found
    named = any(kind is ops.LITERAL and value >= _OTHERS for kind, value in argument)
    return (_ALL - found) | ({_OTHERS} if named else frozenset())


def _shown(characters: frozenset[int]) -> str:
    if len(characters) > 8:  # noqa: PLR2004 - as many as can be read
        return "many characters"
    return repr("".join(sorted(chr(code) for code in characters if code < _OTHERS))) if characters else "the end"
