"""Reading a policy file: YAML in, a validated `Policy` out, or an error that says where, what it got and wanted."""

from __future__ import annotations

import ipaddress
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import Label
from penaltybox.contracts.listing import listed_range
from penaltybox.contracts.policy import (
    AllowEntry,
    BreakerPolicy,
    LadderPolicy,
    Policy,
    Rung,
    ScorePolicy,
    SharedIpPolicy,
    Threshold,
    TrustPolicy,
)
from penaltybox.contracts.policy_limits import read_limits, read_plans, read_scenarios
from penaltybox.contracts.policy_rules import check_sampling, read_rules, read_then
from penaltybox.contracts.policy_yaml import Node, read_policy_text, read_yaml
from penaltybox.contracts.subjects import parse_subject

if TYPE_CHECKING:
    from collections.abc import Mapping

_POINTS: Final = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, UTC: the calendar's last."""
DEFAULT_RUNGS: Final = ["warn", "5m", "1h", "permanent"]
MAX_RUNGS: Final = 100
CHALLENGE: Final = "challenge"
_SECTIONS: Final = (
    "limits", "scenarios", "plans", "rules", "ladder", "score", "shared_ip", "trust", "allow", "breaker",
    "challenge", "pass", "lateness", "late_after",
)  # fmt: skip


def load_policy(path: Path | str) -> Policy:
    """The policy in a file.

    Raises:
        ConfigurationError: unreadable, not YAML, or not a policy; the message names file and place.
    """
    return parse_policy(read_policy_text(Path(path), f"policy {path}"), str(path))


def parse_policy(text: str, name: str = "policy") -> Policy:
    """The policy in a text; `name` stands before every error. See `load_policy`."""
    return policy_from(read_yaml(text, name), name)


def policy_from(document: object, name: str = "policy") -> Policy:
    """A policy from plain data (what YAML or JSON gives)."""
    root = Node(document if document is not None else {}, name).mapping(_SECTIONS)
    ladder = _ladder(root.child("ladder", {}))
    limits = read_limits(root.child("limits", {}))
    scenarios = read_scenarios(root.child("scenarios", {}), limits)
    rules = read_rules(root.child("rules", {}), ladder, limits)
    check_sampling(root.child("rules", {}), rules, scenarios)
    return Policy(
        limits=limits,
        scenarios=scenarios,
        plans=read_plans(root.child("plans", {}), limits),
        rules=rules,
        ladder=ladder,
        score=_score(root.child("score", {}), ladder),
        shared_ip=_shared_ip(root.child("shared_ip", None)),
        trust=_trust(root.child("trust", {})),
        allow=tuple(_allow(node) for node in root.child("allow", []).items()),
        breaker=_breaker(root.child("breaker", None)),
        challenge_ms=root.duration("challenge", "1h"),
        pass_ms=root.duration("pass", "30m"),
        lateness_ms=root.duration("lateness", "60s"),
        late_after_ms=root.duration("late_after", "10m"),
    )


def _ladder(node: Node) -> LadderPolicy:
    node.mapping(("rungs", "warn", "forgive", "memory", "caps", "jitter"))
    warn_ms = node.duration("warn", "10m")
    rungs: list[Rung] = []
    rungs_node = node.child("rungs", DEFAULT_RUNGS)
    for item in rungs_node.items():
        if len(rungs) == MAX_RUNGS:
            raise rungs_node.error("more", f"a ladder of at most {MAX_RUNGS} rungs")
        rungs.append(_rung(item, warn_ms, rungs))
    if not rungs:
        raise rungs_node.error("an empty list", "at least one rung, e.g. [warn, 5m, 1h, permanent]")
    names = [rung.name for rung in rungs]
    caps_node = node.child("caps", {"ip": "1h" if "1h" in names else CHALLENGE, "login_name": CHALLENGE})
    caps: dict[str, str] = {}
    for dimension, value in caps_node.pairs():
        caps_node.dimensions(dimension)
        caps[dimension] = value.one_of((*names, CHALLENGE))
    return LadderPolicy(
        rungs=tuple(rungs),
        forgive_ms=node.duration("forgive", "8h"),
        memory_ms=node.duration("memory", "72h"),
        caps=caps,
        jitter_percent=node.integer("jitter", 0, least=0, most=100),
    )


def _rung(node: Node, warn_ms: int, before: list[Rung]) -> Rung:
    text = node.text()
    if text == "warn":
        if any(rung.action != "warn" for rung in before):
            raise node.error("warn after a rung that blocks", "warn before the rungs that block")
        rung = Rung(name="warn", action="warn", duration_ms=warn_ms)
    elif text == "permanent":
        rung = Rung(name="permanent", action="deny", duration_ms=None)
    else:
        rung = Rung(name=text, action="deny", duration_ms=parse_duration(text, node.where))
    last = before[-1] if before else None
    if last is not None and last.action == "deny" and _length(rung) < _length(last):
        raise node.error(f"{text} after {last.name}", "a ladder whose durations don't decrease")
    same = sum(1 for other in before if other.name.split("#")[0] == rung.name)
    return Rung(name=f"{rung.name}#{same + 1}", action=rung.action, duration_ms=rung.duration_ms) if same else rung


def _length(rung: Rung) -> float:
    return float("inf") if rung.duration_ms is None else rung.duration_ms


def _score(node: Node, ladder: LadderPolicy) -> ScorePolicy:
    node.mapping(("window", "thresholds"))
    thresholds = []
    for item in node.child("thresholds", []).items():
        item.mapping(("at", "then"))
        then = read_then(item.child("then", None), ladder)
        if then.score is not None:
            raise item.child("then", None).error("score", "step, {level: …} or {challenge: …}")
        thresholds.append(Threshold(at=item.integer("at", None, least=1, most=1_000_000), then=then))
    return ScorePolicy(
        window_ms=node.duration("window", "1h"),
        thresholds=tuple(sorted(thresholds, key=lambda threshold: threshold.at)),
    )


def _shared_ip(node: Node) -> SharedIpPolicy | None:
    if node.value is False:
        return None
    if node.value is None:
        node = Node({}, node.where)
    node.mapping(("established", "window"))
    return SharedIpPolicy(
        established=node.integer("established", 10, least=2, most=64), window_ms=node.duration("window", "14d")
    )


_DEFAULT_POINTS: Final[Mapping[str, int]] = {
    "payment_ok": 2,
    "identity_verified": 5,
    "challenge_passed": 1,
    "chargeback": -20,
    "confirmed_abuse": -20,
}


def _trust(node: Node) -> TrustPolicy:
    node.mapping(("points", "established", "multipliers", "ttl"))
    points_node = node.child("points", dict(_DEFAULT_POINTS))
    points = {}
    for label, _ in points_node.pairs():
        if label not in get_args(Label):
            raise points_node.error(label, f"an outcome label: {', '.join(get_args(Label))}")
        points[label] = points_node.integer(label, None, least=-1000, most=1000)
    multipliers_node = node.child("multipliers", {4: 150, 10: 200})
    multipliers: list[tuple[int, int]] = []
    for key, value in multipliers_node.pairs():
        if not _POINTS.fullmatch(key):
            raise multipliers_node.error(key, "points: percent of the normal quota, e.g. {-10: 50, 4: 150}")
        if int(key) in dict(multipliers):
            raise multipliers_node.error(key, "each number of points once")
        multipliers.append((int(key), value.whole(least=1, most=10_000)))
    return TrustPolicy(
        points=points,
        established_at=node.integer("established", 4, least=1, most=100_000),
        multipliers=tuple(sorted(multipliers)),
        ttl_ms=node.duration("ttl", "90d"),
    )


def _allow(node: Node) -> AllowEntry:
    if isinstance(node.value, str):
        node = Node({"subject": node.value}, node.where)
    node.mapping(("subject", "cidr", "until", "note"))
    until = _instant(node.child("until", None))
    note = node.child("note", "").text(allow_empty=True)
    if node.has("cidr") == node.has("subject"):
        raise node.error(node.value, "one of subject or cidr")
    if node.has("cidr"):
        cidr = node.child("cidr", "")
        network = listed_range(cidr.text())
        if network is None:
            raise cidr.error(cidr.value, "a range such as 203.0.113.0/24 or 2001:db8::/32")
        return AllowEntry(cidr=str(network), until=until, note=note)
    subject = node.child("subject", "")
    try:
        name = parse_subject(subject.text())
        if name.startswith("ip:") and ":" in name[3:]:
            # As a range it is found whatever the setting says about how much of an IPv6 address counts.
            address = subject.text()[3:]
            return AllowEntry(cidr=str(ipaddress.ip_network(address, strict=False)), until=until, note=note)
        return AllowEntry(subject=name, until=until, note=note)
    except BadEvent as error:
        raise subject.error(subject.value, error.detail) from error


def _instant(node: Node) -> int | None:
    if node.value is None:
        return None
    value: Any = node.value
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise node.error(value, "a time with its zone, e.g. 2026-12-01T00:00:00Z") from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise node.error(str(node.value), "a time with its zone, e.g. 2026-12-01T00:00:00Z")
    at = int(value.timestamp() * 1000)
    if not 0 <= at <= _LAST_MS:
        raise node.error(str(node.value), "a time from 1970 to 9999")
    return at


def _breaker(node: Node) -> BreakerPolicy | None:
    if node.value is False:
        return None
    if node.value is None:
        node = Node({}, node.where)
    node.mapping(("denials", "share"))
    return BreakerPolicy(
        denials=node.integer("denials", 1000, least=1, most=1_000_000_000),
        share_percent=node.integer("share", 50, least=1, most=100),
    )


def default_policy_path() -> Path:
    """Where ``policies/default.yaml`` is: inside the installed package, or in the checkout beside it."""
    package = Path(__file__).parent.parent
    installed = package / "policies" / "default.yaml"
    return installed if installed.exists() else package.parent / "policies" / "default.yaml"
