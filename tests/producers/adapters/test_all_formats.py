"""What holds for every format: no line breaks it, and nothing that a client writes is anybody else's doing."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.events import encode
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.adapters.reading import Passed, Reading, Unmatched
from penaltybox.producers.adapters.registry import SUMMARIES, load
from penaltybox.producers.logs.blocks import Block
from penaltybox.producers.logs.progress import Progress
from penaltybox.producers.logs.reader import LogReader
from tests.producers.adapters.reading_of import options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penaltybox.contracts.events import Decision

NAMES: Final = sorted(SUMMARIES)
RAW: Final = {"nginx-error": b"request: "}
"""Formats whose programs write what clients sent as it came, without escaping quotes: from where on in a line."""
ENDS: Final = rb"""" \" \ \x22 ' ] } { | , ; -""".split(b" ")
FORGED: Final = "198.51.100.66"
ANY_TIME: Final = 1 << 52
CALM: Final = settings(max_examples=25, deadline=None, derandomize=True)


def _read(name: str, line: bytes) -> list[Decision]:
    """The decisions of one line, as a log gives them: behind the format's header lines, wrapped or not."""
    form = load(name)
    reader = LogReader(form, options(values=form.given), f"{name}/1", Progress(), allowed=True)
    for header in form.examples:
        if header.startswith(b"#"):
            reader.read(Block(0, header, len(header) + 1))
    return [one.decision for one in reader.read(Block(0, line, len(line) + 1))]


@cache
def _samples(name: str) -> list[bytes]:
    """The examples that are about a request."""
    return [line for line in load(name).examples if not line.startswith(b"#") and _read(name, line)]


SAMPLES: Final = [(name, line) for name in NAMES for line in _samples(name)]


def _check(decisions: list[Decision]) -> None:
    canonicaliser = Canonicaliser()
    for decision in decisions:
        decode_decision(encode(decision), ANY_TIME, canonicaliser)


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_what_they_should_be(name: str) -> None:
    """At least one example is about a request; each is read without complaint, and makes a record that is valid."""
    form = load(name)
    assert form.name == name
    assert _samples(name)
    adapter = form.make(options(values=form.given))
    for line in form.examples:
        assert not isinstance(adapter.read(line), Unmatched), line
        _check(_read(name, line))


@pytest.mark.parametrize(("name", "line"), SAMPLES)
@given(data=st.data())
@CALM
def test_no_line_breaks_a_format(name: str, line: bytes, data: st.DataObject) -> None:
    """Whatever bytes come, in or instead of a line: an answer of the right kind, and records that are valid."""
    form = load(name)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(line)))
        end = data.draw(st.integers(start, min(len(line), start + 40)))
        piece = data.draw(st.one_of(st.binary(max_size=12), st.sampled_from(_pieces(name))))
        line = (line[:start] + piece + line[end:]).replace(b"\n", b"")
    adapter = form.make(options(values=form.given))
    said = adapter.read(line)
    readings = said if isinstance(said, tuple) and not isinstance(said, Passed | Unmatched) else ()
    assert isinstance(said, Reading | Passed | Unmatched) or all(isinstance(one, Reading) for one in readings)
    assert isinstance(adapter.explain(line), str)
    _check(_read(name, line))


@pytest.mark.parametrize("name", NAMES)
@given(line=st.binary(max_size=200).map(lambda data: data.replace(b"\n", b" ")))
@CALM
def test_noise_is_no_decision(name: str, line: bytes) -> None:
    """Random bytes are nobody's request."""
    assert _read(name, line) == []


@cache
def _pieces(name: str) -> list[bytes]:
    """What attackers would try: ends of fields, other clients' fields, whole lines of the format."""
    whole = [_forged(name, line) for line in _samples(name)]
    return [
        *ENDS,
        *(b" ", b"\t", b"\x00", b"\xff"),
        FORGED.encode(),
        f'", client: {FORGED}, server: s, request: "'.encode(),
        f'","remote_addr":"{FORGED}","status":"429'.encode(),
        f'" 429 0 "-" "-" {FORGED} '.encode(),
        b" 429 - ",
        *whole,
        *(b'" ' + line + b' "' for line in whole),
    ]


def _forged(name: str, line: bytes) -> bytes:
    """A line of the format, about another client."""
    for decision in _read(name, line):
        for value in decision.subjects.values():
            line = line.replace(value.encode(), FORGED.encode())
    return line


def _as_nginx(text: str) -> str:
    plain = range(32, 127)
    return "".join(chr(byte) if byte in plain and byte not in b'"\\' else f"\\x{byte:02X}" for byte in text.encode())


def _as_apache(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("\n", "\\n")


def _as_it_came(text: str) -> str:
    return text.replace("\r", "").replace("\n", "")


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, index))
    elif isinstance(value, str):
        yield path, value


def _with_leaf(document: Any, path: tuple[Any, ...], text: str) -> Any:
    if not path:
        return text
    copied = dict(document) if isinstance(document, dict) else list(document)
    copied[path[0]] = _with_leaf(document[path[0]], path[1:], text)
    return copied


def _hostile(name: str, line: bytes, own: set[str]) -> list[Callable[[str], bytes]]:
    """Ways in which a client's text gets into a line: as any text of it that is not the subject."""
    if line.startswith((b"{", b"[{")):
        document = msgspec.json.decode(line)
        places = [path for path, value in _leaves(document) if not any(one in value for one in own)]
        return [
            lambda text, path=path: json.dumps(_with_leaf(document, path, text), ensure_ascii=False).encode(
                "utf-8", "surrogatepass"
            )
            for path in places
        ]
    found: list[Callable[[str], bytes]] = []
    for match in re.finditer(rb'"([^"]*)"', line):
        if any(one.encode() in match[1] for one in own) or match.start() < line.find(RAW.get(name, b"")):
            continue
        for escaped in [_as_nginx, _as_apache] if name not in RAW else [_as_it_came]:
            start, end = match.span(1)
            found.append(
                lambda text, start=start, end=end, escaped=escaped: (
                    line[:start] + escaped(text).encode("utf-8", "surrogatepass") + line[end:]
                )
            )
    return found


@pytest.mark.parametrize(("name", "line"), SAMPLES)
@given(data=st.data())
@CALM
def test_nothing_that_a_client_writes_changes_the_subject(name: str, line: bytes, data: st.DataObject) -> None:
    """Path, agent, referer, user name: whatever stands in them, the subjects are the same, or it is no decision."""
    before = [decision.subjects for decision in _read(name, line)]
    own = {value for subjects in before for value in subjects.values()}
    ways = _hostile(name, line, own)
    if not ways:
        return
    pieces = st.one_of(st.text(max_size=8), st.sampled_from([one.decode("utf-8", "replace") for one in _pieces(name)]))
    text = "".join(data.draw(st.lists(pieces, min_size=1, max_size=4)))
    forged = data.draw(st.sampled_from(ways))(text)
    for decision in _read(name, forged.replace(b"\n", b"")):
        assert decision.subjects in before, forged
    _check(_read(name, forged.replace(b"\n", b"")))
