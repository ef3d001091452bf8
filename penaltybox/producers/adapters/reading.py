"""What a format says about a line, and what it may know: the interface between formats and whatever reads logs.

Whoever sends requests writes parts of these lines: path, user agent, referer, user name. So a format takes the subject
from one place that only the server writes, found by its position (anchored patterns, typed JSON), never by searching
the line. Anything else that a client can write may make its own line unreadable, and nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import msgspec

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import Action, Reason  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.producers.adapters.targets import Targets

LONGEST_LABEL: Final = 128


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one line says about a request: a `Decision` whose id and source are still to be given.

    `ts_ms` is milliseconds since the epoch. `action` is ``allow`` for a request that the limiter let pass: such lines
    are read too, and whoever reads the log says whether they are published (``--allowed``). `subjects` are values as
    they came, checked by `Canonicaliser`. `violated` holds ``dimension:limit name``, `route` a template (see
    `Targets`). `id` is set only by formats whose lines carry an id that is theirs alone (CloudEvents); everything else
    gets a hash of where it was read.
    """

    ts_ms: int
    action: Action
    subjects: dict[str, str]
    reason: Reason | None = None
    violated: tuple[str, ...] = ()
    scenario: str = ""
    route: str = ""
    status: int | None = None
    enforced: bool = True
    established: bool | None = None
    limit: int | None = None
    window_s: int | None = None
    remaining: int | None = None
    retry_after_s: int | None = None
    cost: int = 1
    count: int = 1
    cached: bool = False
    sample_rate: float | None = None
    attrs: dict[str, str] = {}
    id: str = ""


class Passed(NamedTuple):
    """A well-formed line that is not about a request that a limiter looked at; `why` is one of few constant texts."""

    why: str


class Unmatched(NamedTuple):
    """Not a line of the format, or one whose subject, time or status cannot be true; `why` is a constant text."""

    why: str


Read = Reading | tuple[Reading, ...] | Passed | Unmatched
"""A document that holds several records gives a tuple, in the order of the records."""


NO_SUCH_TIME: Final = Unmatched("a time that does not exist")
NO_TIME: Final = Unmatched("no time, or one that does not exist")
NO_ADDRESS: Final = Unmatched("the client is no address")
NO_ANSWER: Final = Passed("a connection that ended before an answer")


class Adapter(ABC):
    """Reads the lines of one log (one instance per file: `begin` and times may depend on the lines before)."""

    longest: ClassVar[int] = 32_768
    """Bytes of a line; a longer one is not given to `read`. Documents that hold many records may set up to 1 MiB."""

    @abstractmethod
    def read(self, line: bytes) -> Read:
        """What a line says. It has no newline and is at most `longest` bytes; never raises."""

    def begin(self, head: bytes) -> None:  # noqa: B027 - most logs have no head
        """The log's first bytes (whole lines, 64 KiB at most), before `read` continues in its middle.

        Then the lines just before that place are read once more, and what they say is dropped: so that what depends
        on the lines before is as it was.
        """

    def explain(self, line: bytes) -> str:
        """For people: how far an unmatched line got, and what was wanted there. Empty: `why` says it all."""
        del line
        return ""


class Options(NamedTuple):
    """What formats may be told.

    Attributes:
        canonicaliser: checks subjects.
        targets: request -> route template and scenario.
        zone: of times without an offset (``--tz``).
        now_ms: for times without a year; a clock where lines are read for days.
        reject_statuses: ``--status``: the statuses that mean a refusal; empty: the format's own default.
        values: ``--option NAME=VALUE``: only names that the format's `Format.options` has.
        programs: ``--program``: whose lines are read in syslog and the journal; empty: the format's own default.
    """

    canonicaliser: Canonicaliser
    targets: Targets
    zone: tzinfo = UTC
    now_ms: int | Callable[[], int] = 0
    reject_statuses: frozenset[int] = frozenset()
    values: Mapping[str, str] = {}
    programs: frozenset[str] = frozenset()

    def address(self, text: str) -> str | None:
        """The text if it is an IP address (no port, no brackets, no host name)."""
        if text in self.canonicaliser.known.get("ip", ()):
            return text
        try:
            self.canonicaliser.name("ip", text)
        except BadEvent:
            return None
        return text

    def subject(self, dimension: str, text: str) -> str | None:
        """The text if it may be a subject's value."""
        try:
            self.canonicaliser.name(dimension, text)
        except BadEvent:
            return None
        return text

    def endpoint(self, text: str) -> str | None:
        """The address of ``203.0.113.7:4711``, ``[2001:db8::1]:4711`` or of either without a port; None if none."""
        if text.startswith("["):
            host, bracket, port = text[1:].partition("]")
            return self.address(host) if bracket and (not port or _is_port(port)) else None
        host, colon, port = text.rpartition(":")
        if colon and ":" not in host:
            return self.address(host) if _is_port(f":{port}") else None
        return self.address(text)


class Format(NamedTuple):
    """A format as a module of it says: the constant ``FORMAT``.

    Attributes:
        name: as in ``penaltybox ingest NAME``.
        make: an adapter for one log; raises ConfigurationError for options that make no sense.
        examples: lines in the real format, written by us; at least one is read as a `Reading`.
        options: name -> one line of help, of what ``--option`` may say.
        given: the options under which the examples are read, if they need any.
        programs: whose lines they are, as syslog and the journal call them.
    """

    name: str
    make: Callable[[Options], Adapter]
    examples: tuple[bytes, ...]
    options: Mapping[str, str] = {}
    given: Mapping[str, str] = {}
    programs: frozenset[str] = frozenset()


def label(text: str, longest: int = LONGEST_LABEL) -> str:
    """A text of the log as it may stand in `violated`, `attrs` or `scenario`: printable, and of bounded length."""
    text = text[:longest]
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def decoded(line: bytes) -> str:
    r"""A line as text; bytes that are no UTF-8 become ``\xNN``, so no two lines become the same by accident."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("utf-8", "backslashreplace")


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdigit()
