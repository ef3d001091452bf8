"""Which scenario an HTTP request belongs to, by method and path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.contracts.policy import Policy


class ScenarioMap:
    """Which scenario a request belongs to: the longest matching ``[METHOD ]/prefix``, else the default.

    Args:
        prefixes: ``/login`` or ``POST /login`` -> scenario. A prefix ends where a path segment ends. What is said
            of GET holds for HEAD, which servers answer by the same code.
        default: the scenario of everything else.
    """

    def __init__(self, prefixes: Mapping[str, str] | None = None, default: str = "web") -> None:
        self.default = default
        self._rules: list[tuple[str, str, str]] = []
        for text, scenario in (prefixes or {}).items():
            method, space, prefix = text.rpartition(" ")
            if not prefix.startswith("/") or (space and not method.isalpha()) or not scenario:
                raise ConfigurationError(
                    f"scenario map: got {text!r} = {scenario!r}, wanted /prefix=SCENARIO or 'POST /prefix=SCENARIO'"
                )
            self._rules.append((method.upper(), prefix.rstrip("/"), scenario))
        self._rules.sort(key=lambda rule: (-len(rule[1]), not rule[0]))

    @classmethod
    def of(cls, policy: Policy) -> Self:
        """What the policy's ``scenarios.<name>.routes`` say; a request of none of them has no scenario (``""``)."""
        prefixes = {route: name for name, scenario in policy.scenarios.items() for route in scenario.routes}
        return cls(prefixes, default="")

    def scenario(self, method: str, path: str) -> str:
        """The scenario of a request. The path is normal: decoded where that changes nothing, no dot segments."""
        for wanted, prefix, scenario in self._rules:
            if not (wanted in ("", method) or (wanted, method) == ("GET", "HEAD")):
                continue
            if path == prefix or path.startswith(f"{prefix}/"):
                return scenario
        return self.default
