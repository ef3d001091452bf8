"""The records on the wire: Decision, Outcome, Penalty, Ladder, Control, Command, DeadLetter (JSON, version 1).

JSON Schemas are generated from these structs into ``docs/schemas/``. Reading a record that came from outside is
``contracts/decoding.py``.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

Action = Literal["allow", "delay", "challenge", "deny", "shadow"]
Reason = Literal["over_limit", "blocklist", "challenged", "fail_open", "fail_closed", "local_fallback", "unknown"]
Label = Literal[
    "challenge_issued",
    "challenge_passed",
    "challenge_failed",
    "payment_ok",
    "chargeback",
    "identity_verified",
    "appeal_granted",
    "manual_unban",
    "duplicate_request",
    "confirmed_abuse",
]
Remedy = Literal["warn", "challenge", "deny", "lift", "note"]
Verb = Literal["ban", "unban", "pardon", "grant"]

MAX_RECORD_BYTES: Final = 4096
AHEAD_MS: Final = 5 * 60_000
"""A ``ts`` further than this ahead of the broker's timestamp cannot be true."""

MAX_SUBJECTS: Final = 16
MAX_SCENARIO: Final = 128
MAX_ROUTE: Final = 256
"""Characters; whoever makes decisions of what others wrote keeps to these, for workers refuse what is longer."""

Id = Annotated[str, Meta(min_length=1, max_length=128, description="ULID, or a stable hash of where it was read")]
Millis = Annotated[int, Meta(ge=1, le=1 << 52, description="milliseconds since the epoch")]
Text = Annotated[str, Meta(max_length=128)]
Subjects = Annotated[
    dict[str, str], Meta(min_length=1, max_length=MAX_SUBJECTS, description="dimension -> value, at least one")
]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a limiter decided about one request (or about `count` identical ones)."""

    v: Annotated[Literal[1], Meta(description="version of this schema")]
    id: Id
    ts: Millis
    source: Annotated[str, Meta(min_length=1, max_length=128, description="limiter/instance")]
    scenario: Annotated[
        str, Meta(max_length=MAX_SCENARIO, description="which use case of the API, e.g. coupon_claim")
    ] = ""
    action: Action
    reason: Annotated[Reason | None, Meta(description="required on deny and challenge")] = None
    violated: Annotated[tuple[Text, ...], Meta(max_length=16, description="<dimension>:<limit name>, all of them")] = ()
    subjects: Subjects
    established: Annotated[bool | None, Meta(description="the authenticated user is known and trusted")] = None
    route: Annotated[str, Meta(max_length=MAX_ROUTE, description="a template, never a raw path")] = ""
    status: Annotated[int, Meta(ge=100, le=599)] | None = None
    limit: Annotated[int, Meta(ge=0)] | None = None
    window_s: Annotated[int, Meta(ge=0)] | None = None
    remaining: Annotated[int, Meta(ge=0)] | None = None
    retry_after_s: Annotated[int, Meta(ge=0)] | None = None
    cost: Annotated[int, Meta(ge=0, le=1 << 31)] = 1
    enforced: Annotated[bool, Meta(description="false: a dry run, only shadow rules see it")] = True
    count: Annotated[int, Meta(ge=1, le=1_000_000, description="identical denials this record stands for")] = 1
    cached: Annotated[bool, Meta(description="answered by a local cache of the limiter")] = False
    sample_rate: Annotated[float, Meta(ge=1e-6, le=1, description="of sampled allows")] | None = None
    attrs: Annotated[dict[str, Text], Meta(max_length=8, description="up to 8 short strings")] = {}


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What became of a subject: a label. Labels lift nothing by themselves."""

    v: Literal[1]
    id: Id
    ts: Millis
    label: Label
    subjects: Subjects
    ref: Annotated[str, Meta(max_length=128, description="the decision or order it is about")] = ""


class Penalty(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One step of one subject, up or down, by a rule or by hand. The audit trail.

    `from_`/`to` name rungs. `until` is absolute (ms); null is permanent. Consumers of one subject take the highest
    `seq`, the subject's state version.
    """

    v: Literal[1] = 1
    id: str
    ts: int
    subject: str
    from_: str = msgspec.field(name="from")
    to: str
    from_ms: int | None = 0
    to_ms: int | None = 0
    action: Remedy
    until: int | None
    rule: str
    policy_version: str
    evidence: dict[str, str | int | list[str]] = {}
    trigger_id: str
    seq: int = 0
    origin: Literal["rule", "hand"] = "rule"
    actor: str = ""
    note: str = ""
    shadow: bool = False
    late: bool = False


class Hold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block or a challenge in force: until when (absolute ms, null = permanent), on which rung, by what."""

    until: int | None
    rung: str
    rule: str
    penalty: str


class Ladder(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A subject's ladder after a step: enough to restore it. Counters may be lost."""

    v: Literal[1] = 1
    subject: str
    seq: int
    ts: int
    rung: str
    rung_ms: int | None = 0
    at: int
    end: int | None
    deny: Hold | None = None
    challenge: Hold | None = None
    grace_until: int = 0
    pass_until: int = 0
    trust: list[tuple[int, int, int]] = []
    shared: list[tuple[int, int]] = []


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step by hand. Its own ULID is the trigger id; reason and actor are required."""

    v: Literal[1] = 1
    id: Id
    ts: Millis
    verb: Verb
    subject: str
    actor: Annotated[str, Meta(min_length=1, max_length=128)]
    reason: Annotated[str, Meta(min_length=1, max_length=512)]
    level: Annotated[str, Meta(max_length=32, description="ban: the rung; empty = the next one up")] = ""
    for_ms: Annotated[int | None, Meta(description="ban: its own duration instead of the rung's")] = None
    keep_level: Annotated[bool, Meta(description="unban: lift the block, keep the rung as a prior")] = False
    grace_ms: Annotated[int, Meta(ge=0, description="unban: nothing counts for this long")] = 0
    points: Annotated[int, Meta(description="grant: trust points")] = 0


class Control(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Policy versions and switches, allowlist, pauses: keyed by `key`, compacted."""

    v: Literal[1] = 1
    id: Id
    ts: Millis
    key: str
    kind: Literal[
        "policy", "policy_in_use", "allow", "cidr", "pause", "resume", "grant", "override", "restore", "retry", "forget"
    ]
    value: str = ""
    actor: str = ""
    reason: str = ""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record that could not be judged: its raw bytes (base64 on the wire), why, and where it was."""

    v: Literal[1] = 1
    ts: int
    reason: str
    detail: str
    topic: str
    partition: int
    offset: int
    raw: bytes


WIRE_TYPES: Final[tuple[type[msgspec.Struct], ...]] = (
    Decision,
    Outcome,
    Penalty,
    Ladder,
    Command,
    Control,
    DeadLetter,
)

_encoder = msgspec.json.Encoder()


def encode(record: msgspec.Struct) -> bytes:
    """The wire form of any record here: JSON, defaults omitted."""
    return _encoder.encode(record)
