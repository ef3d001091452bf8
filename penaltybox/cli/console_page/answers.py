"""What the console's API is sent and answers, one struct each; OpenAPI is made from them. Times are ms since 1970."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(ge=0, le=1)]


class Part(msgspec.Struct, frozen=True):
    """One server or role: whether it is as it should be, and a sentence for people."""

    name: Literal["redis", "kafka", "workers", "clickhouse"]
    state: Literal["ok", "unknown", "away"]
    says: str


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """How decisions flow. What is not known is null.

    Attributes:
        published_per_s: decisions that came into Kafka in the last seconds.
        judged_per_s: decisions that the workers acknowledged in the last seconds.
        lag: decisions that wait for the workers.
        history: `published_per_s` of the last two minutes, oldest first, one a second.
    """

    published_per_s: int | None = None
    judged_per_s: int | None = None
    lag: int | None = None
    history: list[int] = []


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of things in one glance.

    Attributes:
        at: the server's clock.
        paused: why new blocks are paused; empty when they are not.
        version: changes whenever the blocklist does.
    """

    at: int
    parts: list[Part]
    paused: str
    denied: int
    challenged: int
    ranges: int
    version: int
    flow: Flow


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while the page is open: whose console this is, and what it may do."""

    actor: str
    read_only: bool
    policy_version: str
    rungs: list[str]
    package_version: str
    matures_s: int | None


class BlockRow(msgspec.Struct, frozen=True):
    """A block or challenge in force; `until` null is permanent."""

    subject: str
    kind: Literal["deny", "challenge"]
    until: int | None
    rung: str
    rule: str


class RangeRow(msgspec.Struct, frozen=True):
    """A range of addresses that is banned by hand."""

    range: str
    kind: Literal["deny", "challenge"]
    until: int | None
    actor: str
    reason: str


class Tally(msgspec.Struct, frozen=True):
    """How many of one dimension are denied and challenged."""

    dimension: str
    denied: int
    challenged: int


class BlockPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the blocklist.

    Attributes:
        at: the server's clock.
        total: rows that match, on all pages.
        complete: False while the first listing is under way, or when there are more than the console keeps.
    """

    at: int
    version: int
    offset: int
    total: int
    complete: bool
    rows: list[BlockRow]
    ranges: list[RangeRow]
    dimensions: list[Tally]


class FunnelRow(msgspec.Struct, frozen=True):
    """How many penalties a rule led to on one rung."""

    rule: str
    rung: str
    dimension: str
    action: str
    shadow: bool
    penalties: int
    subjects: int


class Funnel(msgspec.Struct, frozen=True, kw_only=True):
    """The ladder funnel of a period: penalties by rule and rung; `rungs` in the ladder's order."""

    from_: int = msgspec.field(name="from")
    to: int
    rungs: list[str]
    rows: list[FunnelRow]


class RateRow(msgspec.Struct, frozen=True, kw_only=True):
    """False positives of one dimension; no rate where there are too few, `status` says so.

    Attributes:
        drawn: episodes whose first denial the probe made a challenge; `fdr_probe` is the FDR that they show.
    """

    dimension: str
    episodes: int
    immature: int
    labelled: int
    fdr_status: str
    fdr: Share | None
    fdr_low: Share | None
    fdr_high: Share | None
    fpr_status: str
    fpr: Share | None
    fpr_low: Share | None
    fpr_high: Share | None
    drawn: int
    probe_status: str
    fdr_probe: Share | None
    fdr_probe_low: Share | None
    fdr_probe_high: Share | None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """False-positive rates of a period with Wilson 95 % intervals; `matures_s` null: each label's own time."""

    from_: int = msgspec.field(name="from")
    to: int
    matures_s: int | None
    rows: list[RateRow]


class PlaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A place (address, prefix) where people were denied.

    Attributes:
        n_eff: effective number of established users.
        attributable: its episodes are its size's fault, not its users'.
        collateral: of the users denied there, the share that stayed within their own limit; null under 30.
    """

    place: str
    users: int
    n_eff: float
    attributable: bool
    episodes: int
    denied_users: int
    within_limit: int
    status: str
    collateral: Share | None
    collateral_low: Share | None
    collateral_high: Share | None


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Shared addresses of a period, the worst first."""

    from_: int = msgspec.field(name="from")
    to: int
    by: Literal["ip", "prefix"]
    total: int
    rows: list[PlaceRow]


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `penaltybox explain --json` tells of a subject.

    Attributes:
        range: it is no subject but a range of addresses; then `now` has its name and nothing more.
    """

    range: str = ""
    now: dict[str, Any]
    ways_out: list[dict[str, Any]]
    timeline: dict[str, Any] | None
    history: list[dict[str, Any]]
    history_missing: str


Why = Annotated[str, Meta(min_length=1, max_length=512, description="one line for the audit trail")]
Who = Annotated[str, Meta(max_length=128, description="who acts; empty: the `actor` of `about`, if it has one")]
Target = Annotated[str, Meta(min_length=1, max_length=512, description="dimension:value, an address, or a range")]


class BanBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deny a subject or a range of addresses, as `penaltybox ban` does.

    Attributes:
        level: a rung; empty: the next one up that denies.
        for_: its own duration instead of the rung's, e.g. 36h.
    """

    subject: Target
    reason: Why
    actor: Who = ""
    level: Annotated[str, Meta(max_length=32)] = ""
    for_: Annotated[str, Meta(max_length=32)] = msgspec.field(name="for", default="")


class UnbanBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lift what is in force against a subject, or the ban of a range, as `penaltybox unban` does.

    Attributes:
        grace: nothing counts against it for so long, e.g. 1h.
        keep_level: its rung stays as a prior for the next step.
    """

    subject: Target
    reason: Why
    actor: Who = ""
    grace: Annotated[str, Meta(max_length=32)] = ""
    keep_level: bool = False


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What an act by hand did.

    Attributes:
        says: a sentence for people.
        penalties: ids of the steps that were written; empty for a range.
    """

    subject: str
    says: str
    actor: str
    penalties: list[str] = []


class Problem(msgspec.Struct, frozen=True):
    """What went wrong (RFC 9457); `detail` is a sentence."""

    type: str
    title: str
    status: int
    detail: str
