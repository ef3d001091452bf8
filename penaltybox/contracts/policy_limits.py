"""Reading what a policy file says to the inline limiter: `limits`, `scenarios` and `plans`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, get_args

from penaltybox.contracts.policy import Algorithm, Answer, Failure, Limit, Missing, Scenario, limits_by_path

if TYPE_CHECKING:
    from penaltybox.contracts.policy_yaml import Node

Limits = dict[str, dict[str, tuple[Limit, ...]]]
_LIMIT_KEYS: Final = ("name", "limit", "window", "algorithm", "burst", "slots", "answer", "dry_run")
_SCENARIO_KEYS: Final = (
    "routes", "failure", "deadline", "missing", "costs", "newcomers", "check", "publish", "probe", "allow_cache",
    "messages",
)  # fmt: skip
_ROUTE: Final = re.compile(r"([A-Z]{3,16} )?/[^\s?#*]*")
_WITH_BURST: Final = ("token_bucket", "leaky_bucket", "gcra")
_MAX_DEADLINE_MS: Final = 10_000
_MAX_ALLOW_CACHE_MS: Final = 1000
_MAX_COST: Final = 1 << 31
_MAX_PROBE_PERCENT: Final = 5
# A level of limit x window must be exact in a double, Lua's only number.
_MAX_LEVEL: Final = 1 << 53


def read_limits(node: Node) -> Limits:
    """Scenario -> dimension or combination -> its thresholds."""
    limits: Limits = {}
    for scenario, dimensions in node.pairs():
        limits[scenario] = {}
        for dimension, entries in dimensions.pairs():
            entries.dimensions(dimension)
            found = tuple(_limit(entry) for entry in entries.items())
            names = [limit.name for limit in found]
            if len(set(names)) != len(names):
                raise entries.error(f"the names {', '.join(names)}", "names that differ within a dimension")
            limits[scenario][dimension] = found
    return limits


def _limit(node: Node) -> Limit:
    node.mapping(_LIMIT_KEYS)
    algorithm = _choice(node, "algorithm", "sliding_window", get_args(Algorithm))
    if node.has("burst") and algorithm not in _WITH_BURST:
        raise node.child("burst", None).error(f"a burst for {algorithm}", f"none, or one of {', '.join(_WITH_BURST)}")
    if node.has("slots") and algorithm != "sliding_window_counter":
        raise node.child("slots", None).error(f"slots for {algorithm}", "algorithm: sliding_window_counter")
    limit = Limit(
        name=node.child("name", None).text(),
        limit=node.integer("limit", None, least=1, most=1_000_000_000),
        window_ms=node.duration("window", None),
        algorithm=algorithm,
        burst=node.integer("burst", None, least=1, most=1_000_000_000) if node.has("burst") else None,
        slots=node.integer("slots", 60, least=2, most=1000),
        answer=_choice(node, "answer", "deny", get_args(Answer)),
        dry_run=node.boolean("dry_run", default=False),
    )
    if algorithm in _WITH_BURST and max(limit.limit, limit.burst or 0) * limit.window_ms > _MAX_LEVEL:
        raise node.error(
            f"limit {max(limit.limit, limit.burst or 0):,} in a window of {limit.window_ms:,} ms",
            f"a product of at most 2^53 for {algorithm}, so that it counts exactly",
        )
    if algorithm == "sliding_window_counter" and limit.slots > limit.window_ms:
        raise node.error(f"{limit.slots} slots in {limit.window_ms} ms", "slots of at least a millisecond")
    return limit


def _choice(node: Node, key: str, default: str, choices: tuple[str, ...]) -> Any:
    return node.child(key, default).one_of(choices)


def read_scenarios(node: Node, limits: Limits) -> dict[str, Scenario]:
    """How each scenario is treated; a scenario that has no limits is refused."""
    found = {}
    owners: dict[str, str] = {}
    for name, child in node.pairs():
        if name not in limits:
            raise node.error(f"the unknown scenario {name!r}", f"one of limits: {', '.join(limits) or '(none)'}")
        found[name] = _scenario(child, limits[name])
        for route in found[name].routes:
            if owners.setdefault(route, name) != name:
                raise child.child("routes", None).error(
                    f"{route!r}, which {owners[route]} has", "one scenario per route"
                )
    return found


def _scenario(node: Node, dimensions: dict[str, tuple[Limit, ...]]) -> Scenario:
    node.mapping(_SCENARIO_KEYS)
    # A request waits as long as `deadline` when Redis hangs.
    deadline_ms = node.duration("deadline", "20ms", most_ms=_MAX_DEADLINE_MS)
    allow_cache_ms = node.duration("allow_cache", None, most_ms=_MAX_ALLOW_CACHE_MS) if node.has("allow_cache") else 0
    return Scenario(
        routes=tuple(_route(child) for child in node.child("routes", []).items()),
        failure=_choice(node, "failure", "open", get_args(Failure)),
        deadline_ms=deadline_ms,
        missing=_missing(node.child("missing", {}), dimensions),
        costs=tuple(
            (pattern, cost.whole(least=0, most=_MAX_COST)) for pattern, cost in node.child("costs", {}).pairs()
        ),
        newcomers_percent=node.integer("newcomers", 100, least=1, most=100),
        check_percent=_percent(node.child("check", 100)),
        publish_percent=_percent(node.child("publish", 100)),
        probe_percent=_probe(node.child("probe", 0)),
        allow_cache_ms=allow_cache_ms,
        messages=_messages(node.child("messages", {})),
    )


def _route(node: Node) -> str:
    text = node.text()
    if not _ROUTE.fullmatch(text):
        raise node.error(
            text, "/prefix or METHOD /prefix, without wildcard and query: every path below it belongs to it"
        )
    return text


def _missing(node: Node, dimensions: dict[str, tuple[Limit, ...]]) -> dict[str, Missing]:
    known = sorted({part for on in dimensions for part in on.split("+")} - {"scenario", "route"})
    found: dict[str, Any] = {}
    for dimension, child in node.pairs():
        if dimension not in known:
            raise node.error(f"the dimension {dimension!r}", f"one that this scenario limits: {', '.join(known)}")
        found[dimension] = child.one_of(get_args(Missing))
    return found


def _percent(node: Node) -> float:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 100:  # noqa: PLR2004 - percent
        raise node.error(value, "a percentage above 0 and up to 100")
    return value


def _probe(node: Node) -> float:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_PROBE_PERCENT:
        raise node.error(value, f"a percentage from 0 (none) to {_MAX_PROBE_PERCENT}: each of them is a refusal less")
    return value


def _messages(node: Node) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for answer, languages in node.pairs():
        if answer not in get_args(Answer):
            raise node.error(f"the answer {answer!r}", f"one of {', '.join(get_args(Answer))}")
        found[answer] = {language.lower(): text.text() for language, text in languages.pairs()}
    return found


def read_plans(node: Node, limits: Limits) -> dict[str, dict[str, int]]:
    """Plan -> `scenario/dimension:limit name` -> limit; a name that no limit has is refused."""
    known = limits_by_path(limits)
    found: dict[str, dict[str, int]] = {}
    for plan, entries in node.pairs():
        found[plan] = {}
        for name, value in entries.pairs():
            if name not in known:
                raise entries.error(
                    f"the unknown limit {name!r}", f"scenario/dimension:name, one of {', '.join(sorted(known))}"
                )
            found[plan][name] = value.whole(least=1, most=1_000_000_000)
    return found
