"""The lines of the feed: JSON objects, one a line; docs/feed.md describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind: TypeAlias = Literal["subject", "range", "allow"]
Name: TypeAlias = tuple[Kind, str]
"""What a line is about: a subject, a banned range of addresses, or an entry of the allowlist."""


class InForce(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One thing that is in force: until when (ms since the epoch; null is for good), and by which rung and rule."""

    action: Literal["deny", "challenge", "allow"]
    until: int | None
    rung: str = ""
    rule: str = ""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line.

    Attributes:
        op: `add` and `remove` change what is known of a name; `resync` begins a whole list and `synced` ends it;
            `beat` says that nothing changed; `again` ends the answer.
        kind: of the name.
        name: canonical subject, or a range.
        in_force: everything that is in force against the name now; takes the place of what was.
        cursor: what to ask on from once this line is taken up.
        now: the sender's clock, ms.
        reason: why, for people.
        after_ms: how long to wait before asking again.
        stale: changes are not heard at the moment, because Redis is away.
    """

    op: Literal["add", "remove", "resync", "synced", "beat", "again"]
    kind: Kind | Literal[""] = ""
    name: str = ""
    in_force: tuple[InForce, ...] = ()
    cursor: str = ""
    now: int = 0
    reason: str = ""
    after_ms: int = -1
    stale: bool = False


def encoded(line: Line) -> bytes:
    """The line with its end."""
    return msgspec.json.encode(line) + b"\n"


def change(name: Name, in_force: Sequence[InForce], cursor: str = "") -> bytes:
    """The line that says what is in force against a name now."""
    kind, text = name
    return encoded(Line("add" if in_force else "remove", kind, text, tuple(in_force), cursor))


class Mark(Protocol):
    """A block or challenge as it was found in Redis."""

    @property
    def subject(self) -> str:
        """Canonical."""

    @property
    def kind(self) -> Literal["deny", "challenge"]:
        """What it does."""

    @property
    def until(self) -> int | None:
        """Its end, ms; None: for good, or not said."""

    @property
    def rung(self) -> str:
        """Of the ladder."""

    @property
    def rule(self) -> str:
        """That led to it."""

    @property
    def ttl_ms(self) -> int | None:
        """What Redis says is left; None: it stays."""


def mark_in_force(mark: Mark, now_ms: int) -> InForce:
    """A mark for enforcers. The key's own end counts where its value, perhaps another program's, says none."""
    until = mark.until
    if until is None and mark.ttl_ms is not None:
        until = now_ms + mark.ttl_ms
    return InForce(mark.kind, until, mark.rung, mark.rule)
