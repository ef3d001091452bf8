"""What was asked for, of records that say it and of those that do not."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.producers.adapters.reading import Reading
from penaltybox.producers.adapters.registry import SUMMARIES, load
from penaltybox.producers.adapters.targets import Targets
from penaltybox.producers.combined import CombinedLog
from penaltybox.producers.ingest import LogIngest, read_lines
from penaltybox.producers.limiter import Limiter
from penaltybox.producers.routes import INVALID
from penaltybox.producers.scenario_map import ScenarioMap
from tests.producers.adapters.reading_of import adapter

if TYPE_CHECKING:
    from collections.abc import Iterator

SCENARIOS = ScenarioMap({"POST /login": "login", "/coupons": "coupons"})
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


@pytest.mark.parametrize(
    ("path", "scenario", "route"),
    [
        ("/login", "login", "POST /login"),
        ("//login", "login", "POST /login"),
        ("/%6cogin", "login", "POST /login"),
        ("/%6Cogin?next=/coupons", "login", "POST /login"),
        ("/x/../login", "login", "POST /login"),
        ("/./login/", "login", "POST /login/"),
        ("/../../login", "login", "POST /login"),
        ("http://shop//login", "login", "POST /login"),
        ("/login/../coupons/7", "coupons", "POST /coupons/{n}"),
        ("/login%2f..%2fcart", "web", "POST /cart"),
        ("/%256cogin", "web", "POST /{text}"),
        ("/ann%40example.com", "web", "POST /{text}"),
    ],
)
def test_a_disguised_path_is_the_path_that_it_is(path: str, scenario: str, route: str) -> None:
    """In no log a client chooses its scenario, or hides from it, by how it writes the path of its request."""
    targets = Targets(scenarios=SCENARIOS)
    line = f"POST {path} HTTP/1.1"
    told = [targets.of_line(line), *([targets.of("POST", path)] if path.startswith("/") else [])]
    ingest = LogIngest(Limiter({}, source="access-log/test"), CombinedLog(), scenarios=SCENARIOS)
    log = f'203.0.113.7 - - [17/May/2026:10:05:03 +0000] "{line}" 200 12 "-" "-"\n'.encode()
    (decision,) = ingest.decisions(read_lines(io.BytesIO(log)))
    for one in (*told, decision):
        assert (one.scenario, one.route.rstrip("/")) == (scenario, route.rstrip("/"))
