"""What is remembered of one subject, and its bytes in the store.

The store looks at the first 20 bytes only: codec, array header, version number, nonce. The rest is msgpack.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.events import Hold, Ladder, Penalty

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy

CODEC: Final = 1
HEADER_BYTES: Final = 20
NEVER: Final = 1 << 40
"""Number and nonce of a state that was never stored; as large as real ones, so that the header has a fixed length."""
FOREVER: Final = 1 << 62
_KEEP_FENCE_MS: Final = 7 * 86_400_000
_KEEP_OUTBOX_MS: Final = 7 * 86_400_000


NOTHING: Final[dict[Any, Any]] = {}
"""What most subjects have of most things. It is shared by all of them and never written to."""


def _nothing() -> dict[Any, Any]:
    return NOTHING


class Counter(msgspec.Struct, array_like=True, gc=False):
    """What a count rule saw within its window, oldest first: when, which (hash of the event id), how many."""

    times: list[int] = []
    ids: list[int] = []
    weights: list[int] = []


class Track(msgspec.Struct, array_like=True, gc=False):
    """One ladder of one subject: the real one, or that of a shadow rule."""

    rung: str = ""
    """Name of the rung of the last step, empty when there was none."""
    rung_ms: int | None = 0
    at: int = 0
    """The fence: time of the last step. A decision not later than this is history."""
    end: int | None = 0
    """End of the last penalty; None is permanent."""
    deny: Hold | None = None
    challenge: Hold | None = None
    counters: dict[int, Counter] = msgspec.field(default_factory=_nothing)
    """Count rules: rule key -> what counted."""
    sets: dict[int, dict[int, int]] = {}
    """Distinct rules: rule key -> hash of the value -> granule in which it was last seen."""
    scores: tuple[tuple[int, int, int], ...] = ()
    """Risk: (time, key of the contribution, points)."""
    outlasted: tuple[tuple[str, int], ...] = ()
    """Challenges that gave way to longer ones while they ran: (rule, end)."""
    used: dict[int, dict[int, int]] = msgspec.field(default_factory=_nothing)
    """Distinct rules: rule key -> hash of a value that a step used -> until when a sighting of it is that same one."""


class SubjectState(msgspec.Struct, array_like=True, gc=False):
    """All of one subject. Fields are encoded in this order; number and nonce must stay first.

    Neither it nor anything in it ever refers back to it, so the interpreter need not look for cycles (`gc=False`).
    """

    number: int
    nonce: int
    subject: str
    real: Track
    quiet_until: int = 0
    """No rule of the real ladder sees a decision before this: the latest of fence, grace and end of the block."""
    shadows: dict[int, Track] = msgspec.field(default_factory=_nothing)
    grace_until: int = 0
    pass_until: int = 0
    trust: tuple[tuple[int, int, int], ...] = ()
    """Outcomes that count for trust: (time, hash of the id, points)."""
    shared: dict[int, int] = msgspec.field(default_factory=_nothing)
    """Established users seen on this address: hash -> granule."""
    outbox: list[Penalty] = []
    """Penalties that Kafka has not confirmed, in order."""

    @classmethod
    def fresh(cls, subject: str) -> SubjectState:
        """The state of a subject that nothing is known of."""
        return cls(number=NEVER, nonce=NEVER, subject=subject, real=Track())

    def settle(self) -> None:
        """Derives `quiet_until`; whoever changes a fence, a block or a grace calls it."""
        deny = self.real.deny
        blocked = 0 if deny is None else FOREVER if deny.until is None else deny.until
        self.quiet_until = max(self.grace_until, self.real.at + 1 if self.real.at else 0, blocked)

    def slim(self) -> None:
        """Lets go of empty mappings that decoding made: there are hundreds of thousands of states in memory."""
        if not self.shadows:
            self.shadows = NOTHING
        if not self.shared:
            self.shared = NOTHING
        if not self.real.counters:
            self.real.counters = NOTHING
        if not self.real.used:
            self.real.used = NOTHING

    @property
    def read_number(self) -> int:
        """The version number that a write expects: 0 when nothing was stored."""
        return 0 if self.number == NEVER else self.number

    @property
    def dimension(self) -> str:
        """The subject's dimension or combination."""
        return self.subject.split(":", 1)[0]


_encode_into = msgspec.msgpack.Encoder().encode_into
_decode = msgspec.msgpack.Decoder(SubjectState).decode
_NUMBERS = struct.Struct(">BBBQBQ")


def encode_state(state: SubjectState, nonce: int) -> bytes:
    """The blob of a state under a new nonce (at least 2**32); the store puts the new number in."""
    blob = bytearray(256)
    _encode_into(state, blob, 1)
    blob[0] = CODEC
    blob[12:20] = nonce.to_bytes(8, "big")
    return bytes(blob)


def decode_state(blob: bytes, subject: str = "a subject") -> SubjectState:
    """The state in a blob. Penalties that were first written with it get its version as their `seq`.

    Args:
        blob: as stored.
        subject: whose it is, for the message.

    Raises:
        PenaltyboxError: unknown codec or damaged bytes: another release wrote it, or something else did.
    """
    if not blob or blob[0] != CODEC:
        raise PenaltyboxError(
            f"the state of {subject}: got codec {blob[:1]!r}, wanted {CODEC}; was it written by a newer release?"
        )
    try:
        state: SubjectState = _decode(memoryview(blob)[1:])
    except msgspec.MsgspecError as error:
        raise PenaltyboxError(
            f"the state of {subject} is damaged: {error}; delete its key, then `penaltybox restore`"
        ) from error
    number_outbox(state)
    state.slim()
    state.settle()  # a writer that changed a block by hand need not know of it
    return state


def number_outbox(state: SubjectState) -> None:
    """Gives penalties that the last write stored their `seq`: the version of that write."""
    for penalty in state.outbox:
        if penalty.seq == 0:
            penalty.seq = state.number


def blob_version(blob: bytes) -> tuple[int, int]:
    """(number, nonce) of a blob."""
    _, _, _, number, _, nonce = _NUMBERS.unpack_from(blob)
    return number, nonce


def copy_state(state: SubjectState) -> SubjectState:
    """An independent copy."""
    copy: SubjectState = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SubjectState)
    return copy


def state_expiry(state: SubjectState, policy: Policy, now_ms: int) -> int | None:
    """When the stored state may go (absolute wall ms): now + the longest horizon that is in it; None = keep for good.

    Horizons are lengths, not dates, because a replayed log is years behind the wall clock.
    """
    keep = policy.longest_window_ms + policy.lateness_ms
    for track in (state.real, *state.shadows.values()):
        if track.end is None or (track.deny is not None and track.deny.until is None):
            return None
        if track.at:
            keep = max(keep, max(track.end - track.at, 0) + max(policy.ladder.memory_ms, _KEEP_FENCE_MS))
            for hold in (track.deny, track.challenge):
                if hold is not None and hold.until is not None:
                    keep = max(keep, hold.until - track.at)
        if track.scores:
            keep = max(keep, policy.score.window_ms)
    if state.shared and policy.shared_ip is not None:
        keep = max(keep, policy.shared_ip.window_ms)
    if state.trust:
        keep = max(keep, policy.trust.ttl_ms)
    if state.outbox:
        keep = max(keep, _KEEP_OUTBOX_MS)
    return max(now_ms + keep, state.grace_until, state.pass_until)


def ladder_record(state: SubjectState) -> Ladder | None:
    """The record that restores this subject's ladder; None (a tombstone) when nothing is left to restore."""
    real = state.real
    if not (real.at or state.grace_until or state.pass_until or state.trust or state.shared):
        return None
    return Ladder(
        subject=state.subject,
        seq=state.number,
        ts=real.at,
        rung=real.rung or "none",
        rung_ms=real.rung_ms,
        at=real.at,
        end=real.end,
        deny=real.deny,
        challenge=real.challenge,
        grace_until=state.grace_until,
        pass_until=state.pass_until,
        trust=list(state.trust),
        shared=sorted(state.shared.items()),
    )


def state_from_ladder(ladder: Ladder) -> SubjectState:
    """A subject as its ladder record restores it: without counters, scores and shadow ladders."""
    state = SubjectState.fresh(ladder.subject)
    state.real = Track(
        rung="" if ladder.rung == "none" else ladder.rung,
        rung_ms=ladder.rung_ms,
        at=ladder.at,
        end=ladder.end,
        deny=ladder.deny,
        challenge=ladder.challenge,
    )
    state.grace_until = ladder.grace_until
    state.pass_until = ladder.pass_until
    state.trust = tuple(ladder.trust)
    state.shared = dict(ladder.shared)
    state.settle()
    return state
