"""A policy as plain data in its file's own words, defaults written out: `policy_from` makes the same policy of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penaltybox.contracts.durations import format_duration as span

if TYPE_CHECKING:
    from penaltybox.contracts.policy import AllowEntry, LadderPolicy, Limit, Policy, Rule, Scenario, Then

Document = dict[str, Any]


def document(policy: Policy) -> Document:
    """The policy as its file would say it, with nothing left out; keys in the order of docs/policy.md."""
    score, trust, shared = policy.score, policy.trust, policy.shared_ip
    breaker = policy.breaker
    return {
        "limits": {
            scenario: {on: [_limit(one) for one in thresholds] for on, thresholds in dimensions.items()}
            for scenario, dimensions in policy.limits.items()
        },
        "scenarios": {name: _scenario(one) for name, one in policy.scenarios.items()},
        "plans": {plan: dict(limits) for plan, limits in policy.plans.items()},
        "rules": {rule.name: rule_form(rule) for rule in policy.rules},
        "ladder": _ladder(policy.ladder),
        "score": {
            "window": span(score.window_ms),
            "thresholds": [{"at": one.at, "then": _then(one.then)} for one in score.thresholds],
        },
        "shared_ip": {"established": shared.established, "window": span(shared.window_ms)} if shared else False,
        "trust": {
            "points": dict(trust.points),
            "established": trust.established_at,
            "multipliers": {str(points): percent for points, percent in trust.multipliers},
            "ttl": span(trust.ttl_ms),
        },
        "allow": [_allow(entry) for entry in policy.allow],
        "breaker": {"denials": breaker.denials, "share": breaker.share_percent} if breaker else False,
        "challenge": span(policy.challenge_ms),
        "pass": span(policy.pass_ms),
        "lateness": span(policy.lateness_ms),
        "late_after": span(policy.late_after_ms),
    }


def _limit(limit: Limit) -> Document:
    made: Document = {
        "name": limit.name,
        "limit": limit.limit,
        "window": span(limit.window_ms),
        "algorithm": limit.algorithm,
        "answer": limit.answer,
        "dry_run": limit.dry_run,
    }
    if limit.burst is not None:
        made["burst"] = limit.burst
    if limit.algorithm == "sliding_window_counter":
        made["slots"] = limit.slots
    return made


def _scenario(one: Scenario) -> Document:
    made: Document = {
        "routes": list(one.routes),
        "failure": one.failure,
        "deadline": span(one.deadline_ms),
        "missing": dict(one.missing),
        "costs": dict(one.costs),
        "newcomers": one.newcomers_percent,
        "check": one.check_percent,
        "publish": one.publish_percent,
        "probe": one.probe_percent,
        "messages": {answer: dict(texts) for answer, texts in one.messages.items()},
    }
    return made | ({"allow_cache": span(one.allow_cache_ms)} if one.allow_cache_ms else {})


def rule_form(rule: Rule) -> Document:
    """A rule as the file says it; of `when` only what it says."""
    counted: Document = {"count": rule.n} if rule.kind == "count" else {"distinct": rule.distinct, "n": rule.n}
    fields = ("action", "reason", "scenario", "route", "source", "violated")
    when = {name: list(getattr(rule.when, name)) for name in fields if getattr(rule.when, name) is not None}
    return {
        "on": rule.on,
        **counted,
        "window": span(rule.window_ms),
        "when": when,
        "then": _then(rule.then),
        "shadow": rule.shadow,
    }


def _then(then: Then) -> Any:
    if then.level is not None:
        return {"level": then.level}
    if then.score is not None:
        return {"score": then.score}
    return "step" if then.challenge_ms is None else {"challenge": span(then.challenge_ms)}


def _ladder(ladder: LadderPolicy) -> Document:
    warns = [rung.duration_ms for rung in ladder.rungs if rung.action == "warn" and rung.duration_ms]
    return {
        "rungs": [rung.name.partition("#")[0] for rung in ladder.rungs],
        **({"warn": span(warns[0])} if warns else {}),
        "forgive": span(ladder.forgive_ms),
        "memory": span(ladder.memory_ms),
        "caps": dict(ladder.caps),
        "jitter": ladder.jitter_percent,
    }


def _allow(entry: AllowEntry) -> Document:
    made: Document = {"cidr": entry.cidr} if entry.cidr else {"subject": entry.subject}
    if entry.until is not None:
        made["until"] = datetime.fromtimestamp(entry.until / 1000, UTC).isoformat(timespec="milliseconds")
    return made | ({"note": entry.note} if entry.note else {})
