"""Decisions of a topic that are recognised by their bytes step a world as decoded ones do."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from penaltybox.contracts.events import Decision, encode
from penaltybox.contracts.recognition import Sighting
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.engine import Engine
from penaltybox.processors.replay.loop import _Counts
from penaltybox.processors.replay.records import EVENT, Window
from penaltybox.processors.replay.sources.kafka import TopicSource
from penaltybox.processors.replay.world import Steady, World
from penaltybox.processors.state import encode_state
from tests.processors.replay.traffic import HOUSEHOLDS, households
from tests.processors.worker_driver import Raw

if TYPE_CHECKING:
    from penaltybox.contracts.events import Penalty
    from penaltybox.processors.replay.merge import Placed


def placed() -> list[Placed]:
    """Households, some of whose denials are a blocklist's, with a few records that cannot be judged or are not ours."""
    found: list[Placed] = []
    events = households()
    clocks = list(accumulate((event.ts for event in events), max))
    for at, (event, clock) in enumerate(zip(events, clocks, strict=True)):
        changed: Decision = event
        if event.action == "deny" and not at % 9:
            changed = msgspec.structs.replace(event, reason="blocklist", violated=(), count=3)
        raw = encode(changed)
        if not at % 501:
            raw = b"{}"
        elif not at % 499:
            raw = raw.replace(b'{"v":1,', b'{ "v":1,')
        found.append((clock, 0, at, Raw(at, clock - at % 3, raw)))
    return found


def stepped(*, alone: bool) -> tuple[dict[str, bytes], list[Penalty], _Counts, dict[str, int], int]:
    """States, penalties, counts, refusals, and how many decisions came undecoded."""
    canonicaliser = Canonicaliser()
    engine = Engine(HOUSEHOLDS, canonicaliser)
    source = TopicSource(Settings(), canonicaliser, Window(), engine=engine if alone else None)
    source.places, source._first_outcome = [("d", 0)], 1
    world, counts = World(Steady(engine)), _Counts()
    penalties: list[Penalty] = []
    undecoded = 0
    records = placed()
    for first in range(0, len(records), 100):
        entries = source._entries(records[first : first + 100])
        undecoded += sum(type(entry[EVENT]) is Sighting for entry in entries)
        penalties += [penalty for _, penalty in world.step(entries).penalties]
        counts.note(entries, counted=True)
    states = {subject: encode_state(state, 1 << 33) for subject, state in world.states.items()}
    return states, penalties, counts, dict(source.refused.reasons), undecoded


def test_recognised_decisions_step_alike() -> None:
    """States, penalties, counts and refusals are the same whether decisions are decoded or recognised."""
    states, penalties, counts, refused, undecoded = stepped(alone=True)
    plain_states, plain_penalties, plain_counts, plain_refused, none = stepped(alone=False)
    assert states == plain_states
    assert penalties == plain_penalties
    assert len(penalties) > 100
    assert vars(counts) == vars(plain_counts)
    assert counts.blocklist > 0
    assert refused == plain_refused == {"wrong_type": refused["wrong_type"]}
    assert undecoded > 500
    assert none == 0
