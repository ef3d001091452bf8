"""Which language and which media type a client prefers: Accept-Language (RFC 4647) and Accept (RFC 9110).

Both come from strangers. What cannot be read is passed over, and only a beginning of either is read at all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MAX_CHARACTERS: Final = 1024
MAX_CHOICES: Final = 32
_RANGE: Final = re.compile(r"(?:\*|[a-z]{1,8}(?:-[a-z0-9]{1,8}){0,7})", re.ASCII)
_MEDIA: Final = re.compile(r"(?:[a-z0-9!#$&^_.+-]{1,64}|\*)/(?:[a-z0-9!#$&^_.+-]{1,64}|\*)", re.ASCII)
_WEIGHT: Final = re.compile(r"q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.ASCII)


class Choice(NamedTuple):
    """One entry of a list of preferences; `weight` is 0 (never) to 1."""

    text: str
    weight: float


def choices(field: str, wanted: re.Pattern[str]) -> list[Choice]:
    """The readable entries of a field, in their order; one with a weight that is none is passed over."""
    if len(field) > MAX_CHARACTERS:
        field = field[:MAX_CHARACTERS].rpartition(",")[0]
    found = []
    for entry in field.lower().split(",")[:MAX_CHOICES]:
        text, *parameters = (part.strip() for part in entry.split(";"))
        weights = [part for part in parameters if part[:1] == "q" and part[1:].lstrip().startswith("=")]
        matches = [_WEIGHT.fullmatch(part) for part in weights]
        if wanted.fullmatch(text) and len(weights) <= 1 and all(matches):
            found.append(Choice(text, float(matches[0][1]) if matches and matches[0] else 1.0))
    return found


def preferred_language(field: str, available: Sequence[str]) -> str | None:
    """The available language that an Accept-Language field likes best; None when it likes none of them.

    Args:
        field: the field's value, ``da, en-gb;q=0.8, en;q=0.7``.
        available: lower-case language tags, ``("en", "zh-tw")``.

    Each range is looked up as RFC 4647 says (``zh-hant-tw``, then ``zh-hant``, then ``zh``), and a general range
    also finds a special language (``zh`` finds ``zh-tw``), because any Chinese is better than none.
    """
    ranges = choices(field, _RANGE)
    refused = {choice.text for choice in ranges if not choice.weight}
    offered = [tag for tag in available if tag not in refused]
    for choice in sorted(ranges, key=lambda one: -one.weight):
        if not choice.weight:
            break
        if choice.text == "*":
            named = {other.text for other in ranges}
            return next((tag for tag in offered if tag not in named), None)
        found = _look_up(choice.text, offered)
        if found is not None:
            return found
    return None


def _look_up(wanted: str, offered: Iterable[str]) -> str | None:
    offered = list(offered)
    cut = wanted
    while cut:
        if cut in offered:
            return cut
        cut = cut.rpartition("-")[0]
        if cut[-2:-1] == "-":  # a single letter introduces what follows and cannot stand at the end
            cut = cut[:-2]
    return next((tag for tag in offered if tag.startswith(f"{wanted}-")), None)


def preferred_media(field: str, available: Sequence[str]) -> str:
    """The media type of `available` that an Accept field likes best; the first one when it likes none or says nothing.

    A refusal in a form that the client did not ask for is better than a 406 about a refusal.
    """
    accepted = choices(field, _MEDIA)
    if not accepted:
        return available[0]
    weights: Callable[[str], float] = lambda media: _weight(media, accepted)  # noqa: E731 - max and its key agree
    best = max(available, key=weights)  # of equals the first
    return best if weights(best) > 0 else available[0]


def _weight(media: str, accepted: list[Choice]) -> float:
    kind = media.partition("/")[0]
    for form in (media, f"{kind}/*", "*/*"):  # the most special one counts
        weights = [choice.weight for choice in accepted if choice.text == form]
        if weights:
            return max(weights)
    return 0.0
