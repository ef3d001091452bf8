"""What commands share: settings and policy from the environment, tables and JSON, times for people."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable, shown
from penaltybox.contracts.listing import as_range, subject_text
from penaltybox.contracts.policy_file import default_policy_path, load_policy
from penaltybox.contracts.settings import Settings, read_settings
from penaltybox.contracts.subjects import Canonicaliser, decode_value, hash_value, parse_subject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType

    from penaltybox.contracts.policy import Policy

_PIPED_WIDTH = 110
_HASHED = re.compile(r"[A-Za-z0-9_-]{22}")
_HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def plain(text: str) -> str:
    """What others wrote, with a code for each sign that a terminal would obey or that nobody could see."""
    return _HIDDEN.sub(lambda sign: _code(sign[0]), text)


def one_line(text: str) -> str:
    """What others wrote, with a code for whatever is not for printing, line ends too."""
    return "".join(sign if sign.isprintable() else _code(sign) for sign in text)


def _code(sign: str) -> str:
    return f"\\u{{{ord(sign):x}}}"


class Plain(Console):
    """Prints no sign of a text that moves the cursor, colours what follows, or turns its direction; its own it may."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments, each as `plain` has it."""
        for segment in super().render(renderable, options):
            hides = not segment.control and _HIDDEN.search(segment.text)
            yield Segment(plain(segment.text), segment.style) if hides else segment


out = Plain(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH)
err = Plain(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        help="The policy file, or default or access-log (they come with it); else PENALTYBOX_POLICY, else default.",
        show_default=False,
    ),
]


def settings() -> Settings:
    """Settings of this process: PENALTYBOX_* variables, then `.env` in the working directory."""
    return read_settings(os.environ, Path(".env"))


@contextmanager
def kafka_errors(values: Settings) -> Iterator[None]:
    """Make a sentence of what aiokafka raises: a broker that is away, or refuses us."""
    from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

    try:
        yield
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        raise StoreUnavailable(
            f"Kafka at {values.kafka} ({values.kafka_security_protocol}) does not answer: nothing listens there, it "
            "hangs, or its security settings are others. Start it, or correct PENALTYBOX_KAFKA. What was not finished "
            "is not acknowledged: try again. `penaltybox doctor` looks for what is wrong."
        ) from error
    except KafkaError as error:
        raise StoreUnavailable(
            f"Kafka at {values.kafka} ({values.kafka_security_protocol}): {error!r}. What was not finished is not "
            "acknowledged: try again. `penaltybox doctor` looks for what is wrong."
        ) from error


def policy_path(path: Path | None, values: Settings) -> Path:
    """The file of the policy that a command works with; a bare name is that of one that comes with the package."""
    chosen = path or (Path(values.policy) if values.policy else default_policy_path())
    shipped = default_policy_path().with_name(f"{chosen.name}.yaml")
    return shipped if chosen.name == str(chosen) and not chosen.exists() and shipped.exists() else chosen


def policy_of(path: Path | None, values: Settings) -> Policy:
    """The policy that a command works with."""
    return load_policy(policy_path(path, values))


def typed_subject(text: str, values: Settings, canonicaliser: Canonicaliser | None = None) -> str:
    """Canonical text of a subject as a person types it; where a dimension is hashed, the plain value is hashed.

    A value that looks like an HMAC already (22 characters of base64url) is taken for one: `blocks` prints those.

    Args:
        text: as typed.
        values: how subjects are written.
        canonicaliser: one of those settings, for who asks about many.

    Raises:
        BadEvent: no subject.
    """
    name = parse_subject(text, canonicaliser or Canonicaliser(values.ipv6_prefix, values.hashed_dimensions))
    if not values.hashed_dimensions:
        return name
    dimension, _, encoded = name.partition(":")
    key = values.hash_key.encode()
    parts = [
        hash_value(key, part, decode_value(value), values.ipv6_prefix)
        if part in values.hashed_dimensions and _HASHED.fullmatch(value) is None
        else value
        for part, value in zip(dimension.split("+"), encoded.split("+"), strict=True)
    ]
    return f"{dimension}:{'+'.join(parts)}"


def tell(sentence: str) -> None:
    """A sentence for people on standard error as it is: names of files in it are no markup."""
    err.print(sentence, markup=False, soft_wrap=True)


def one_subject(text: str, values: Settings, canonicaliser: Canonicaliser | None = None) -> str:
    """Canonical text of the one subject that a person means: dimension:value, or a bare address.

    Args:
        text: as typed, or as a file has it.
        values: how subjects are written.
        canonicaliser: one of those settings, for who asks about many.

    Raises:
        ConfigurationError: a range: its first address is not what is meant.
        BadEvent: no subject.
    """
    network = as_range(text)
    if network is not None and network.prefixlen < (32 if network.version == 4 else values.ipv6_prefix):  # noqa: PLR2004 - IPv4
        raise ConfigurationError(
            f"got {shown(text)}, which is a range: wanted one subject, such as ip:{network.network_address}. What "
            "holds for ranges: penaltybox allow list"
        )
    return typed_subject(subject_text(text), values, canonicaliser)


def print_json(document: Any) -> None:
    """One JSON document on one line."""
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> Group:
    """A table for people; columns named in `right` hold numbers."""
    made = Table(header_style="dim", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(f"{cell:,}" if isinstance(cell, int) else escape(str(cell)) for cell in row))
    return Group(f"[bold]{escape(title)}[/bold]", made)


def instant(ts_ms: int | None) -> str:
    """A time for people, UTC to the second; ``never`` for None, milliseconds where the calendar has no such year."""
    if ts_ms is None:
        return "never"
    try:
        return f"{datetime.fromtimestamp(ts_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{ts_ms} ms"


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def left(duration_ms: int | None) -> str:
    """A duration in its two largest units: ``59m 12s``, ``3d 4h``; ``permanent`` for None."""
    if duration_ms is None:
        return "permanent"
    seconds = max(0, -(-duration_ms // 1000))
    parts: list[str] = []
    for size, unit in _UNITS:
        if seconds >= size or (parts and seconds):
            parts.append(f"{seconds // size}{unit}")
            seconds %= size
    return " ".join(part for part in parts[:2] if not part.startswith("0")) or "0s"
