"""The policy file: limits, rules, ladder, shared IPs, trust, allowlist. Typed; a mistake is an error that says where.

Durations in these structs are milliseconds already. The version of a policy is the hash of its canonical form, so
comments and the order of keys don't change it.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

Algorithm = Literal["fixed_window", "sliding_window", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra"]
Answer = Literal["deny", "challenge", "shadow"]
Failure = Literal["open", "closed", "local"]
Missing = Literal["skip", "refuse"]
Filter = tuple[str, ...]

MAX_DISTINCT: Final = 64
MAX_COUNT: Final = 10_000


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One threshold of the inline limiter: `limit` requests (or cost) per window."""

    name: str
    limit: int
    window_ms: int
    algorithm: Algorithm = "sliding_window"
    """`sliding_window` is the log, exact; `sliding_window_counter` its small approximation."""
    burst: int | None = None
    """What a token bucket, leaky bucket or GCRA takes at once; None: `limit`."""
    slots: int = 60
    """Into how many counters a sliding window counter cuts its window."""
    answer: Answer = "deny"
    dry_run: bool = False


class Scenario(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the inline limiter treats the requests of one scenario, beside its limits."""

    routes: tuple[str, ...] = ()
    """``[METHOD ]/prefix``: which HTTP requests are of the scenario, where nobody names it; the longest prefix wins."""
    failure: Failure = "open"
    """What a request gets while Redis does not answer: let through, refused, or judged by a limiter in memory."""
    deadline_ms: int = 20
    """How long a decision may wait for Redis."""
    missing: dict[str, Missing] = {}
    """Dimension -> whether a request without it is refused; the others skip the limits on it."""
    costs: tuple[tuple[str, int], ...] = ()
    """(route pattern, cost), the first that matches; 1 if none does. A caller may say another cost."""
    newcomers_percent: int = 100
    """Quota of requests that are not from an established user."""
    check_percent: float = 100
    """Share of the requests that are checked at all; the others are allowed."""
    publish_percent: float = 100
    """Share of the allowed requests that are published; refusals always are."""
    probe_percent: float = 0
    """Share of the denials by a limit that become challenges, so that false positives can be measured; 0 is none."""
    allow_cache_ms: int = 0
    """How long a process may let a subject with much quota left through without asking Redis again."""
    messages: dict[str, dict[str, str]] = {}
    """Answer -> language -> the sentence that a refused person reads."""


def limits_by_path(limits: Mapping[str, Mapping[str, tuple[Limit, ...]]]) -> dict[str, Limit]:
    """``scenario/dimension:limit name``, a limit's name in plans and overrides -> the limit."""
    return {
        f"{scenario}/{on}:{limit.name}": limit
        for scenario, dimensions in limits.items()
        for on, thresholds in dimensions.items()
        for limit in thresholds
    }


class When(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which decisions a rule sees: literals and ``*`` patterns; an absent filter means the rule's default."""

    action: Filter | None = None
    reason: Filter | None = None
    scenario: Filter | None = None
    route: Filter | None = None
    source: Filter | None = None
    violated: Filter | None = None


class Then(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What follows: exactly one of a step up, at least a level, points of risk, a challenge of a duration."""

    step: bool = False
    level: str | None = None
    score: int | None = None
    challenge_ms: int | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A detection: `n` matching decisions, or `n` distinct values of `distinct`, of one subject within a window."""

    name: str
    on: str
    kind: Literal["count", "distinct"]
    n: int
    window_ms: int
    then: Then
    distinct: str = ""
    when: When = When()
    shadow: bool = False

    @property
    def key(self) -> int:
        """Hash of the definition: counters are kept under it, so a changed rule starts afresh."""
        return int.from_bytes(hashlib.blake2b(msgspec.json.encode(self), digest_size=7).digest(), "big")


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the ladder. `duration_ms` None is permanent. `name` is unique, durations don't decrease."""

    name: str
    action: Literal["warn", "deny"]
    duration_ms: int | None


class LadderPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Rungs, how they are forgiven, and how far each dimension may climb."""

    rungs: tuple[Rung, ...]
    forgive_ms: int
    memory_ms: int
    caps: dict[str, str]
    jitter_percent: int = 0


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """A risk score that is crossed upward fires once: a challenge, a step or a level."""

    at: int
    then: Then


class ScorePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The decaying risk score of a subject: every contribution falls linearly to zero over the window."""

    window_ms: int
    thresholds: tuple[Threshold, ...]


class SharedIpPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """An address with this many distinct established users within the window is challenged, never denied."""

    established: int
    window_ms: int


class TrustPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Points per outcome label, what they earn (or cost), and how long they last."""

    points: dict[str, int]
    established_at: int
    multipliers: tuple[tuple[int, int], ...]
    """(points, quota multiplier in percent), ascending. Points below zero tighten: they count from there downward."""
    ttl_ms: int


class AllowEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subject (canonical), or a CIDR range of addresses, that nothing happens to until `until` (None = always)."""

    subject: str = ""
    cidr: str = ""
    until: int | None = None
    note: str = ""


class BreakerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """More new denials within a minute than both of these pauses new blocks: a bad rule must not ban everybody."""

    denials: Annotated[int, Meta(ge=1)]
    share_percent: Annotated[int, Meta(ge=1, le=100)]


class Policy(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A whole policy, validated."""

    limits: dict[str, dict[str, tuple[Limit, ...]]]
    scenarios: dict[str, Scenario] = {}
    plans: dict[str, dict[str, int]] = {}
    """Plan -> `scenario/dimension:limit name` -> the limit that customers of the plan have instead."""
    rules: tuple[Rule, ...]
    ladder: LadderPolicy
    score: ScorePolicy
    shared_ip: SharedIpPolicy | None
    trust: TrustPolicy
    allow: tuple[AllowEntry, ...]
    breaker: BreakerPolicy | None
    challenge_ms: int
    """How long a challenge lasts that stands for a denial without an end (a permanent rung under a challenge cap)."""
    pass_ms: int
    lateness_ms: int
    late_after_ms: int

    def scenario(self, name: str) -> Scenario:
        """The treatment of a scenario: what the file says, or the defaults."""
        return self.scenarios.get(name, _DEFAULT_SCENARIO)

    @cached_property
    def version(self) -> str:
        """First 12 hex digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:12]

    @cached_property
    def longest_window_ms(self) -> int:
        """Of all rules."""
        return max((rule.window_ms for rule in self.rules), default=60_000)


_DEFAULT_SCENARIO: Final = Scenario()
