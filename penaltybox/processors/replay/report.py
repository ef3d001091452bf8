"""The report of a comparison, as `penaltybox replay --json` prints it. docs/replay.md explains every figure.

Keys are stable: a later version may add some. Times are ms since the epoch, durations ms.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penaltybox.contracts.rates import Rate  # noqa: TC001 - msgspec reads the annotations when a report is decoded

VERSION: Final = 1


class Split(msgspec.Struct, kw_only=True):
    """A number, and how much of it concerns subjects of which outcomes say something."""

    total: int = 0
    legitimate: int = 0
    abusive: int = 0
    unknown: int = 0


class Pair(msgspec.Struct, kw_only=True):
    """A number on both sides."""

    baseline: int = 0
    candidate: int = 0


class Change(msgspec.Struct, kw_only=True):
    """What differs in one group of penalties. Numbers are subjects, except `penalties`.

    `earlier` to `shorter` are about subjects that both sides penalise: by the time of the first penalty, and by how
    long they are denied in all (where that is equal: challenged, then warned).
    """

    penalties: Pair
    baseline: Split
    candidate: Split
    new: Split
    gone: Split
    earlier: Split
    later: Split
    longer: Split
    shorter: Split


class Row(msgspec.Struct, kw_only=True):
    """The change in the penalties of one rule that led to one rung, as one action, on one dimension."""

    dimension: str
    rule: str
    rung: str
    action: str
    shadow: bool
    change: Change


class SideRates(msgspec.Struct, kw_only=True):
    """The rates of one side on one dimension, and what they are made of. See docs/analytics.md.

    Of those in `legitimate_seen` so many as `legitimate_missed` were not: a sample of the allowed requests missed them.
    """

    fdr: Rate
    fpr: Rate
    episodes: int
    immature: int
    labelled: int
    legitimate: float
    legitimate_seen: float
    legitimate_limited: float
    legitimate_missed: float = 0.0


class Rates(msgspec.Struct, kw_only=True):
    """The rates of both sides on one dimension."""

    dimension: str
    baseline: SideRates
    candidate: SideRates


class Stopped(msgspec.Struct, kw_only=True):
    """Requests that a deny in force would have stopped on a side; recorded blocklist denials are not among them."""

    baseline: Split
    candidate: Split
    by_rule: dict[str, Pair]
    by_rung: dict[str, Pair]


class Demand(msgspec.Struct, kw_only=True):
    """Recorded requests that the policy of then had stopped: what else they would have led to is unknown.

    Attributes:
        blocklist: requests denied by the blocklist of then.
        still_stopped: of these, those that a side would have stopped, too.
        freed: of these, those that it would have let through to the limits.
        challenged: requests that a challenge of then met.
    """

    blocklist: int
    still_stopped: Pair
    freed: Pair
    challenged: int


class SharedAddress(msgspec.Struct, kw_only=True):
    """An address with at least three effective established users that a rule hits.

    Attributes:
        effective_users: at least so many (N_eff).
        baseline: what it meets there: deny, challenge, or nothing (empty).
        candidate: the same.
        attributable: no user there went over a limit of users, so the address is hit for its size.
    """

    subject: str
    effective_users: float
    baseline: str
    candidate: str
    attributable: bool


class Shared(msgspec.Struct, kw_only=True):
    """Addresses that people share and a rule hits: how many on each side, and the largest of them."""

    hit: Pair
    denied: Pair
    attributable: Pair
    addresses: list[SharedAddress]


class Listed(msgspec.Struct, kw_only=True):
    """What happens to those on the allowlist of either policy.

    Attributes:
        subjects: listed subjects that are penalised, because the other policy lists them, or lists them no more.
        requests: requests with a listed subject that a deny stops, its own or that of another of their subjects.
        examples: some of the subjects.
    """

    subjects: Pair
    requests: Pair
    examples: list[str]


class Sighting(msgspec.Struct, kw_only=True):
    """A decision that a penalty came from."""

    ts: int
    id: str
    action: str
    reason: str
    scenario: str
    route: str
    violated: list[str]
    subjects: dict[str, str]
    count: int
    trigger: bool


class Step(msgspec.Struct, kw_only=True):
    """A penalty that only one side has, or has in this form, and what led to it (the trigger is the last)."""

    side: str
    ts: int
    rule: str
    from_: str = msgspec.field(name="from")
    to: str
    action: str
    until: int | None
    shadow: bool
    evidence: dict[str, str | int | list[str]]
    decisions: list[Sighting]


class Top(msgspec.Struct, kw_only=True):
    """A subject for which the sides differ much.

    Attributes:
        change: new, gone, earlier, later, longer, shorter; several where several hold.
        standing: legitimate, abusive, unknown: what outcomes say.
        labels: the kinds of outcomes.
        stopped: its requests that a deny stops.
        denied_ms: how long it is denied in all; permanent counts as a hundred years.
        steps: the first penalties that differ.
    """

    subject: str
    change: list[str]
    standing: str
    labels: list[str]
    stopped: Pair
    denied_ms: Pair
    steps: list[Step]


class Times(msgspec.Struct, kw_only=True):
    """Counts over time, in buckets of `bucket_ms` from `start_ms` on."""

    start_ms: int
    bucket_ms: int
    penalties: dict[str, list[int]]
    stopped: dict[str, list[int]]


class Maturity(msgspec.Struct, kw_only=True):
    """Episodes that ended before `before_ms` are mature; labels may take `longest_ms` to come."""

    as_of_ms: int
    longest_ms: int
    before_ms: int


class Report(msgspec.Struct, kw_only=True):
    """What a candidate policy would have changed."""

    v: int = VERSION
    first_ms: int
    last_ms: int
    decisions: int
    outcomes: int
    requests: int
    subjects: dict[str, int]
    """Dimension -> subjects seen."""
    total: Change
    permanent: Change
    dimensions: dict[str, Change]
    rules: dict[str, Change]
    rungs: dict[str, Change]
    actions: dict[str, Change]
    rows: list[Row]
    shadow: Change
    """All penalties that shadow rules would have given; they are in no other figure but in rows marked so."""
    shadow_rules: dict[str, Change]
    maturity: Maturity
    rates: dict[str, Rates]
    stopped: Stopped
    demand: Demand
    shared: Shared
    allowlisted: Listed
    top: list[Top]
    times: Times
    remarks: list[str]
