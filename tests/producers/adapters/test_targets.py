"""What was asked for, of records that say it and of those that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.producers.adapters.reading import Reading
from penaltybox.producers.adapters.registry import SUMMARIES, load
from penaltybox.producers.routes import INVALID
from tests.producers.adapters.reading_of import adapter

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED = {"method", "path", "uri", "url", "RequestPath", "RequestMethod", "httpMethod", "resourcePath", "http_method"}


def _without(document: Any) -> Any:
    """A record without what was asked for."""
    if isinstance(document, dict):
        return {key: _without(value) for key, value in document.items() if key not in ASKED}
    return [_without(one) for one in document] if isinstance(document, list) else document


def _records() -> Iterator[tuple[str, bytes]]:
    for name in SUMMARIES:
        for line in load(name).examples:
            if line.startswith(b"{") and load(name).given == {}:
                yield name, msgspec.json.encode(_without(msgspec.json.decode(line)))


@pytest.mark.parametrize(("name", "line"), list(_records()))
def test_what_a_record_does_not_say_is_no_invalid_request(name: str, line: bytes) -> None:
    """A record without method and path has no route; INVALID is of requests that are none."""
    found = adapter(name).read(line)
    for one in (found,) if isinstance(found, Reading) else found if type(found) is tuple else ():
        assert one.route != INVALID
