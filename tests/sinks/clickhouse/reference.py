"""The false-positive definitions once more, in slow Python that shares nothing with the SQL."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from penaltybox.contracts.events import Decision, Outcome, Penalty
    from tests.sinks.clickhouse.worlds import World

HOUR_S = 3600
WEIGHT = {
    "manual_unban": 0.98, "appeal_granted": 0.95, "payment_ok": 0.90, "identity_verified": 0.90,
    "duplicate_request": 0.85, "challenge_passed": 0.70,
}  # fmt: skip
MATURES_S = {
    "manual_unban": 720 * HOUR_S, "appeal_granted": 720 * HOUR_S, "payment_ok": 24 * HOUR_S,
    "identity_verified": 168 * HOUR_S, "duplicate_request": 24 * HOUR_S, "challenge_passed": HOUR_S,
}  # fmt: skip
ONLY_LIMITED = {"manual_unban", "appeal_granted", "challenge_passed"}
ABUSE = {"confirmed_abuse", "chargeback"}
RANK = {"api_key": 0, "user": 1, "device": 2, "ip": 9}
DENIED = {"deny", "challenge", "shadow"}
CHARGED = {"over_limit", "local_fallback"}


class Episode(NamedTuple):
    dimension: str
    subject: str
    started: int
    ended: int
    denials: int


def canonical(dimension: str, value: str) -> str:
    """For the values of these worlds: IPv6 as its /64, all else as it is."""
    if dimension == "ip" and ":" in value:
        return f"ip:{value.rsplit('::', 1)[0]}::/64"
    return f"{dimension}:{value}"


def charged(decision: Decision) -> tuple[str, str]:
    names = [limit.split(":")[0] for limit in decision.violated]
    dimension = min(names, key=lambda name: (RANK.get(name, 3), name))
    return dimension, decision.violated[names.index(dimension)]


def episodes(decisions: list[Decision], penalties: list[Penalty], from_ms: int, to_ms: int) -> list[Episode]:
    denials: dict[tuple[str, str, str], list[tuple[int, int, str, int]]] = defaultdict(list)
    for d in decisions:
        if from_ms <= d.ts < to_ms and d.enforced and d.action in DENIED and d.reason in CHARGED and d.violated:
            dimension, limit = charged(d)
            key = (limit, dimension, canonical(dimension, d.subjects[dimension]))
            denials[key].append((d.ts, max((d.window_s or 0) * 1000, 600_000), d.id, d.count))
    for p in penalties:
        if from_ms <= p.ts < to_ms and not p.shadow and p.origin == "rule" and p.action in {"deny", "challenge"}:
            window = 10**12 if p.to_ms is None else max(p.to_ms, 600_000)
            denials[f"rule {p.rule}", p.subject.split(":")[0], p.subject].append((p.ts, window, p.id, 1))
    found = []
    for (_, dimension, subject), times in denials.items():
        start = end = gap = count = None
        for ts, window, _, number in sorted(times):
            if end is not None and ts - end > gap:
                found.append(Episode(dimension, subject, start, end, count))
                end = None
            if end is None:
                start, count = ts, 0
            end, gap, count = ts, window, count + number
        found.append(Episode(dimension, subject, start, end, count))
    return found


def product(kinds: set[str]) -> float:
    return 1 - math.prod(1 - WEIGHT[kind] for kind in kinds)


def wilson(p: float, n: float) -> tuple[float, float]:
    z = 1.959963984540054
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def labels_of(outcomes: list[Outcome], from_ms: int, as_of_ms: int) -> dict[str, list[tuple[str, int]]]:
    labels: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for o in outcomes:
        if o.ts < as_of_ms and (o.label in ABUSE or (o.ts >= from_ms and o.label in WEIGHT)):
            for dimension, value in o.subjects.items():
                labels[canonical(dimension, value)].append((o.label, o.ts))
    return labels


def false_positives(world: World, from_ms: int, to_ms: int, as_of_ms: int, matures_s: int) -> dict[str, dict[str, Any]]:
    """By dimension: what the query of the same name says."""
    labels = labels_of(world.outcomes, from_ms, as_of_ms)
    horizon = {kind: (matures_s if matures_s >= 0 else s) * 1000 for kind, s in MATURES_S.items()}
    in_use = {o.label for o in world.outcomes if from_ms <= o.ts < as_of_ms and o.label in WEIGHT}
    longest = matures_s * 1000 if matures_s >= 0 else max((horizon[kind] for kind in in_use), default=0)
    before = as_of_ms - longest
    out: dict[str, dict[str, Any]] = defaultdict(
        lambda: (
            {"episodes": 0, "immature": 0, "labelled": 0, "legitimate": 0.0, "seen": [], "hurt": []}
            | {"clusters": defaultdict(list), "strata": {True: [], False: []}, "weighted": None}
        )
    )
    limited = set()
    for e in episodes(world.decisions, world.penalties, from_ms, to_ms):
        row = out[e.dimension]
        if e.ended >= before:
            row["immature"] += 1
            continue
        limited.add(e.subject)
        row["episodes"] += 1
        mine = labels.get(e.subject, [])
        abusive = any(label in ABUSE for label, _ in mine)
        kinds = {k for k, ts in mine if k in WEIGHT and e.started <= ts <= e.ended + horizon[k]}
        row["labelled"] += bool(abusive or kinds)
        row["clusters"][e.subject].append((bool(abusive or kinds), 0.0 if abusive else product(kinds)))
        row["legitimate"] += 0.0 if abusive else product(kinds)
    seen = {
        canonical(dimension, value)
        for d in world.decisions
        if from_ms <= d.ts < min(to_ms, before)
        for dimension, value in d.subjects.items()
    }
    for subject in seen:
        mine = labels.get(subject, [])
        kinds = {k for k, _ in mine if k in WEIGHT and k not in ONLY_LIMITED}
        abusive = any(k in ABUSE for k, _ in mine)
        p = 0.0 if abusive else product(kinds)
        row = out[subject.split(":")[0]]
        row["strata"][subject in limited].append(p if abusive or p > 0 else None)
        if p > 0:
            row["seen"].append(p)
            row["hurt"].append(p if subject in limited else 0.0)
    for row in out.values():
        row["estimate"] = estimate(row["clusters"], labels)
        row["weighted"] = weighted(row["strata"])
    return {name: row for name, row in out.items() if row["episodes"] + row["immature"] or row["seen"]}


def estimate(
    clusters: dict[str, list[tuple[bool, float]]], labels: dict[str, list[tuple[str, int]]]
) -> dict[str, float]:
    """FDR among episodes of subjects with a label, whenever it came; subjects are what is independent."""
    numbers, good = [], 0.0
    for subject, judged in clusters.items():
        mine = labels.get(subject, [])
        abusive = any(k in ABUSE for k, _ in mine)
        p = 0.0 if abusive else product({k for k, _ in mine if k in WEIGHT and k not in ONLY_LIMITED})
        told = abusive or p > 0
        numbers.append(len(judged) if told else sum(known for known, _ in judged))
        good += max(p * len(judged), sum(q for _, q in judged)) if told else sum(q for _, q in judged)
    known = sum(numbers)
    return {"n": known**2 / sum(n * n for n in numbers), "share": good / known} if known else {"n": 0, "share": 0}


def weighted(strata: dict[bool, list[float | None]]) -> dict[str, float]:
    """FPR with each labelled subject standing for those of its stratum, limited or not, that have no label."""
    good, low, high = {}, {}, {}
    squares = 0.0
    for limited, subjects in strata.items():
        told = [p for p in subjects if p is not None]
        share = sum(told) / len(told) if told else 0.0
        good[limited] = share * len(subjects)
        ends = wilson(share, max(len(told), 1))
        low[limited], high[limited] = ends[0] * len(subjects), ends[1] * len(subjects)
        squares += sum((p * len(subjects) / len(told)) ** 2 for p in told)
    total = good[True] + good[False]
    unknown = any(subjects and all(p is None for p in subjects) for subjects in strata.values())
    if not squares or total**2 / squares < 30 or unknown:
        return {"n": total**2 / squares if squares else 0, "unknown": unknown}
    return {
        "n": total**2 / squares,
        "unknown": False,
        "fpr": good[True] / total,
        "low": low[True] / (low[True] + high[False]),
        "high": high[True] / (high[True] + low[False]),
    }


def nat(world: World, from_ms: int, to_ms: int) -> dict[str, dict[str, Any]]:
    """By canonical address: effective users, over-limit users, episodes, denied users."""
    decisions = [d for d in world.decisions if from_ms <= d.ts < to_ms]
    over = {
        d.subjects["user"] for d in decisions if any(limit.startswith("user:") for limit in d.violated)
    } | {
        p.subject[5:]
        for p in world.penalties
        if p.subject.startswith("user:") and not p.shadow and p.origin == "rule" and p.action in {"deny", "challenge"}
        and p.ts < to_ms and (p.until is None or p.until >= from_ms)
    }  # fmt: skip
    out: dict[str, dict[str, Any]] = {}
    for address in {canonical("ip", d.subjects["ip"]) for d in decisions}:
        mine = [d for d in decisions if canonical("ip", d.subjects["ip"]) == address]
        weight: dict[str, float] = defaultdict(float)
        for d in mine:
            weight[d.subjects["user"]] += d.count / (d.sample_rate or 1)
        trusted = {d.subjects["user"] for d in mine if d.established}
        total = sum(weight[u] for u in trusted)
        denied = {d.subjects["user"] for d in mine if d.enforced and d.action in DENIED}
        out[address[3:]] = {
            "requests": sum(weight.values()),
            "users": len(weight),
            "n_eff": 1 / sum((weight[u] / total) ** 2 for u in trusted) if trusted else 0,
            "users_over_limit": len(over & weight.keys()),
            "denied_users": len(denied),
            "denied_within_limit": len(denied - over),
            "ip_episodes": sum(e.subject == address for e in episodes(decisions, world.penalties, from_ms, to_ms)),
        }
    return out
