"""Which scenario a request belongs to, by method and path."""

from __future__ import annotations

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.producers.scenario_map import ScenarioMap


def test_scenarios_by_prefix() -> None:
    """The longest prefix wins, a prefix ends with its segment, everything else is the default."""
    scenarios = ScenarioMap({"/api": "api", "/api/login": "login", "POST /api": "write"})
    asked = [("GET", "/api"), ("GET", "/api/login/x"), ("POST", "/api/a"), ("GET", "/apis"), ("", "")]
    assert [scenarios.scenario(*one) for one in asked] == ["api", "login", "write", "web", "web"]


@pytest.mark.parametrize("mapping", [{"login": "x"}, {"P0ST /x": "x"}, {"/x": ""}])
def test_bad_scenario_map(mapping: dict[str, str]) -> None:
    """A mapping that means nothing is an error."""
    with pytest.raises(ConfigurationError, match="scenario map"):
        ScenarioMap(mapping)


def test_routes_of_a_policy() -> None:
    """A policy says which paths its scenarios have; "/" is all the others, and without it they have no scenario."""
    text = (
        "limits: {login: {}, web: {}}\nscenarios: {login: {routes: ['POST /login', /api/login]}, web: {routes: [%s]}}"
    )
    asked = [("POST", "/login"), ("GET", "/login"), ("PUT", "/api/login/x"), ("GET", "/")]
    for other, name in (("/", "web"), ("", "")):
        found = ScenarioMap.of(parse_policy(text % other))
        assert [found.scenario(*one) for one in asked] == ["login", name, "login", name]
