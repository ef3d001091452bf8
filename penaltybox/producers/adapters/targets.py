"""What a request was for: its route template and scenario, remembered for requests that come again."""

from __future__ import annotations

from typing import Final, NamedTuple

from penaltybox.producers.http.paths import written_path
from penaltybox.producers.routes import METHODS, Routes, split_request
from penaltybox.producers.scenario_map import ScenarioMap

_MAX_CACHED: Final = 10_000


class Target(NamedTuple):
    """Route template (never a raw path) and scenario."""

    route: str
    scenario: str


class Targets:
    """Targets of requests.

    Args:
        routes: bounds the templates.
        scenarios: method and path -> scenario.
    """

    def __init__(self, routes: Routes | None = None, scenarios: ScenarioMap | None = None) -> None:
        self._routes = routes or Routes()
        self._scenarios = scenarios or ScenarioMap()
        self._lines: dict[str, Target] = {}
        self._pairs: dict[tuple[str, str], Target] = {}

    @property
    def unknown(self) -> Target:
        """Of a line that does not say what was asked for."""
        return Target("", self._scenarios.default)

    def of_line(self, line: str) -> Target:
        """Of a request line such as ``GET /a?b HTTP/1.1``; the route of one that is none is ``INVALID``."""
        known = self._lines.get(line)
        if known is None:
            if len(self._lines) >= _MAX_CACHED:
                self._lines.clear()
            known = self._lines[line] = self._made(*split_request(line))
        return known

    def of(self, method: str, path: str) -> Target:
        """Of a method and a path, whose query (if it has one) is dropped; without a path as `unknown`."""
        if not path:
            return self.unknown
        pair = (method, path)
        known = self._pairs.get(pair)
        if known is None:
            if len(self._pairs) >= _MAX_CACHED:
                self._pairs.clear()
            plain = path.partition("?")[0].partition("#")[0]
            known = self._pairs[pair] = self._made(method if method in METHODS else "", plain)
        return known

    def _made(self, method: str, path: str) -> Target:
        path = written_path(path)  # as servers read it: a disguised path is the path that it is
        return Target(self._routes.template(method, path), self._scenarios.scenario(method, path))
