"""Why a subject is treated as it is: state, rules and arithmetic, as data that a command can print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penaltybox.contracts.allowlist import Allowlist
from penaltybox.contracts.durations import format_duration
from penaltybox.contracts.listing import listed_range
from penaltybox.processors.detections import score_at, values_within
from penaltybox.processors.ladder import NONE, active, prior_rung
from penaltybox.processors.remedies import trust_of
from penaltybox.processors.steps import is_shared

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penaltybox.contracts.events import Hold
    from penaltybox.contracts.policy import AllowEntry, Policy, Rule
    from penaltybox.processors.state import SubjectState, Track
    from penaltybox.sinks.blocklist import Block
    from penaltybox.sinks.lists import Banned


class InForce(msgspec.Struct, kw_only=True):
    """A block or a challenge that is in force."""

    action: str
    until: int | None
    left_ms: int | None
    rung: str
    rule: str
    penalty: str

    @classmethod
    def of(cls, hold: Hold | Block, action: str, left_ms: int | None) -> InForce:
        """What a state's hold, or a block in Redis, is to people; `left_ms` is None for good."""
        return cls(
            action=action, until=hold.until, left_ms=left_ms, rung=hold.rung, rule=hold.rule, penalty=hold.penalty
        )


class RuleNow(msgspec.Struct, kw_only=True):
    """How far a rule is from firing on this subject."""

    rule: str
    says: str
    seen: int
    threshold: int
    shadow: bool


class Explanation(msgspec.Struct, kw_only=True):
    """Everything the state tells about a subject at one moment. Times in ms since the epoch."""

    subject: str
    known: bool
    allowlisted: bool = False
    listed_by: list[str] = []
    """Entries of the allowlist that match it, in force or ended."""
    banned_ranges: list[str] = []
    """Ranges around this address that are denied or challenged by hand now."""
    paused: str = ""
    """Why no worker gives anybody a new block now; empty: they do."""
    policy_version: str = ""
    in_force: list[InForce] = []
    strays: list[InForce] = []
    """In force as well, though its state knows nothing of it: another program wrote the key, or somebody by hand."""
    last_rung: str = "none"
    last_step_at: int = 0
    last_ends: int | None = 0
    grace_until: int = 0
    pass_until: int = 0
    prior_now: str = "none"
    forgiven: int = 0
    arithmetic: list[str] = []
    rules: list[RuleNow] = []
    risk: int = 0
    established_users: int = 0
    shared_ip: bool = False
    quota_percent: int = 100
    established: bool = False
    version: int = 0


def explain_state(
    state: SubjectState | None, subject: str, policy: Policy, now_ms: int, allowlist: Allowlist | None = None
) -> Explanation:
    """What is known of a subject now; None is a subject of which nothing is stored.

    Args:
        state: from Redis.
        subject: canonical.
        policy: in force.
        now_ms: wall clock.
        allowlist: with the entries in Redis; else the policy's own.
    """
    allowlist = allowlist or Allowlist(policy.allow)
    listed = allowlist.covers(subject, now_ms)
    listed_by = [describe_entry(entry, now_ms) for entry in allowlist.matching(subject)]
    version = policy.version
    if state is None:
        return Explanation(
            subject=subject, known=False, allowlisted=listed, listed_by=listed_by, policy_version=version
        )
    track = state.real
    prior, forgiven = prior_rung(policy.ladder, track, now_ms)
    trust = trust_of(policy, state)
    shared_ip = policy.shared_ip
    return Explanation(
        subject=subject,
        known=True,
        allowlisted=listed,
        listed_by=listed_by,
        policy_version=version,
        in_force=[] if listed else _in_force(track, now_ms),
        last_rung=track.rung or "none",
        last_step_at=track.at,
        last_ends=track.end,
        grace_until=state.grace_until,
        pass_until=state.pass_until,
        prior_now=_rung_name(policy, prior),
        forgiven=forgiven,
        arithmetic=_arithmetic(policy, state, prior, forgiven, now_ms),
        rules=_rules_now(policy, state, now_ms),
        risk=score_at(track.scores, now_ms, policy.score.window_ms),
        established_users=values_within(state.shared, now_ms, shared_ip.window_ms) if shared_ip else 0,
        shared_ip=is_shared(policy, state, now_ms),
        quota_percent=trust[0] if trust else 100,
        established=bool(trust and trust[1]),
        version=state.read_number,
    )


def _in_force(track: Track, now_ms: int) -> list[InForce]:
    holds: list[tuple[str, Hold | None]] = [("deny", track.deny), ("challenge", track.challenge)]
    return [
        InForce.of(hold, action, None if hold.until is None else hold.until - now_ms)
        for action, hold in holds
        if hold is not None and active(hold, now_ms)
    ]


def strays_of(state: SubjectState | None, blocks: Iterable[Block]) -> list[InForce]:
    """Of what lies in Redis against a subject, that of which its state knows nothing. It denies all the same."""
    holds = [] if state is None else [state.real.deny, state.real.challenge]
    known = {hold.penalty for hold in holds if hold is not None}
    return [InForce.of(block, block.kind, block.ttl_ms) for block in blocks if block.penalty not in known]


def banned_by(banned: Mapping[str, Banned], subject: str, now_ms: int) -> list[str]:
    """The banned ranges that an address is in, in words."""
    address = listed_range(subject.partition(":")[2])
    found = []
    for text, ban in banned.items():
        network = listed_range(text)
        if address is None or network is None or network.version != address.version:
            continue
        if network.overlaps(address) and (ban.until is None or ban.until > now_ms):
            found.append(f"{text} ({ban.action}{f': {ban.reason}' if ban.reason else ''})")
    return found


def describe_entry(entry: AllowEntry, now_ms: int) -> str:
    """An allowlist entry in words: what it names, its note, and whether it has ended."""
    note = f" ({entry.note})" if entry.note else ""
    ended = " has ended" if entry.until is not None and entry.until <= now_ms else ""
    return f"{entry.subject or entry.cidr}{note}{ended}"


def _rung_name(policy: Policy, index: int) -> str:
    return "none" if index == NONE else policy.ladder.rungs[index].name


def _arithmetic(policy: Policy, state: SubjectState, prior: int, forgiven: int, now_ms: int) -> list[str]:
    """The sums behind the next step, as sentences."""
    ladder, track = policy.ladder, state.real
    said = [f"ladder: {' → '.join(rung.name for rung in ladder.rungs)}"]
    if track.rung:
        said.append(_forgiveness(policy, track, prior, forgiven, now_ms))
    following = min(prior + 1, len(ladder.rungs) - 1)
    cap = ladder.caps.get(state.dimension)
    said.append(
        f"a step now would go from {_rung_name(policy, prior)} to {ladder.rungs[following].name}"
        + (f", capped at {cap} for {state.dimension}" if cap else "")
    )
    if state.dimension == "ip":
        said.append("a step on an address is a challenge, unless its rule names a rung that denies")
    if is_shared(policy, state, now_ms):
        said.append("shared address: challenged, never denied")
    if now_ms < state.grace_until:
        said.append("grace: nothing counts until it ends")
    return said


def _forgiveness(policy: Policy, track: Track, prior: int, forgiven: int, now_ms: int) -> str:
    ladder = policy.ladder
    if track.end is None:
        return f"{track.rung} does not end by itself"
    if now_ms <= track.end:
        return f"{track.rung} runs; after its end one rung is forgiven for every {format_duration(ladder.forgive_ms)}"
    if now_ms >= track.end + ladder.memory_ms:
        return f"{track.rung} ended more than {format_duration(ladder.memory_ms)} ago: forgotten"
    hours = (now_ms - track.end) / 3_600_000
    return (
        f"{track.rung} ended {hours:.1f} h ago: ⌊{hours:.1f} h / {format_duration(ladder.forgive_ms)}⌋ = {forgiven} "
        f"forgiven, which leaves {_rung_name(policy, prior)}"
    )


def describe_rule(rule: Rule) -> str:
    """A rule in words: ``4 different user within 10m → level 1h``."""
    what = f"{rule.n} decisions" if rule.kind == "count" else f"{rule.n} different {rule.distinct}"
    then = rule.then
    follows = (
        "one rung up"
        if then.step
        else f"at least {then.level}"
        if then.level
        else f"{then.score} points of risk"
        if then.score
        else f"a challenge of {format_duration(then.challenge_ms or 0)}"
    )
    return f"{what} within {format_duration(rule.window_ms)} → {follows}"


def _rules_now(policy: Policy, state: SubjectState, now_ms: int) -> list[RuleNow]:
    found = []
    for rule in policy.rules:
        if rule.on != state.dimension:
            continue
        track = state.shadows.get(rule.key) if rule.shadow else state.real
        seen = 0
        if track is not None and rule.kind == "count" and rule.key in track.counters:
            counter = track.counters[rule.key]
            pairs = zip(counter.times, counter.weights, strict=True)
            seen = sum(weight for time_ms, weight in pairs if time_ms > now_ms - rule.window_ms)
        elif track is not None and rule.key in track.sets:
            seen = values_within(track.sets[rule.key], now_ms, rule.window_ms)
        found.append(RuleNow(rule=rule.name, says=describe_rule(rule), seen=seen, threshold=rule.n, shadow=rule.shadow))
    return found
