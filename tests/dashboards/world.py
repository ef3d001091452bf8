"""Minutes of demo traffic in ClickHouse: the campaign under the default policy, the engine's penalties, and what the
campaign has none of: shadow rules, steps by hand, a second policy, a Redis outage, dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.events import DeadLetter, Decision, Outcome, Penalty
from penaltybox.contracts.ids import stable_id
from penaltybox.contracts.policy_file import default_policy_path, load_policy
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.engine import Engine, Handling
from penaltybox.processors.state import SubjectState
from penaltybox.producers.campaign import Campaign
from penaltybox.producers.campaign_cast import Sizes
from penaltybox.producers.limiter import Listed
from penaltybox.sinks.clickhouse.writer import Writer
from tests.sinks.clickhouse.worlds import batch

if TYPE_CHECKING:
    from penaltybox.producers.limiter import Request
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.records import Table

START_MS: Final = 1_766_400_000_000  # 2025-12-22T10:40Z
LENGTH_MS: Final = 300_000
SIZES: Final = Sizes(
    normal=150, office=60, farm_accounts=60, families=5, cafes=2, scrapers=6, stuffing_per_s=1, labelled=0.9
)


class Played:
    """The campaign, punished as workers would."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.outcomes: list[Outcome] = []
        self.penalties: list[Penalty] = []
        self._policy = load_policy(default_policy_path())
        self._engine = Engine(self._policy, Canonicaliser())
        self._states: dict[str, SubjectState] = {}
        self._blocks: dict[str, Penalty] = {}

    def play(self) -> None:
        campaign = Campaign(
            self._policy, start_ms=START_MS, length_ms=LENGTH_MS, seed=3, sizes=SIZES, listed=self._listed
        )
        for event in [*campaign.history(), *campaign.until(START_MS + LENGTH_MS)]:
            if isinstance(event, Outcome):
                self.outcomes.append(event)
            else:
                self.decisions.append(event)
                self._punish(event)

    def _punish(self, decision: Decision) -> None:
        for subject, plan in self._engine.touches(decision):
            state = self._states.setdefault(subject, SubjectState.fresh(subject))
            self._engine.apply(state, plan, decision, Handling(decision.ts))
            for penalty in state.outbox:
                penalty.seq = len(self.penalties) + 1
                self.penalties.append(penalty)
                if not penalty.shadow:
                    self._blocks[subject] = penalty
            state.outbox = []

    def _listed(self, request: Request) -> Listed | None:
        for dimension, value in request.subjects.items():
            penalty = self._blocks.get(self._engine.canonicaliser.subject(dimension, value))
            if penalty is None or penalty.action not in ("deny", "challenge"):
                continue
            if penalty.until is None or penalty.until > request.ts_ms:
                return Listed(penalty.action, penalty.until)
        return None


def extras(played: Played) -> None:
    """What the demo does not have, and a dashboard shows."""
    third = len(played.penalties) // 3
    played.penalties[-third:] = [
        msgspec.structs.replace(one, policy_version="later") for one in played.penalties[-third:]
    ]
    some = played.penalties[0]
    later = START_MS + LENGTH_MS
    changes: tuple[dict[str, object], ...] = (
        {"shadow": True, "rule": "trial"},
        {"origin": "hand", "actor": "alice", "note": "ticket 4711", "rule": "", "action": "lift", "to": "none"},
        {"late": True},
    )
    for number, change in enumerate(changes):
        extra = {"id": stable_id("extra", str(number)), "ts": later + number, "seq": 100_000 + number, **change}
        played.penalties.append(msgspec.structs.replace(some, **extra))
    for number, reason in enumerate(("fail_open", "fail_closed", "local_fallback") * 5):
        like = msgspec.structs.replace(
            played.decisions[number],
            id=stable_id("outage", str(number)),
            ts=later + number,
            action="allow" if reason == "fail_open" else "deny",
            reason=reason,
            violated=(),
        )
        played.decisions.append(like)
    for number in range(9):
        drawn = msgspec.structs.replace(
            played.decisions[number],
            id=stable_id("drawn", str(number)),
            ts=later + number,
            action="challenge",
            reason="over_limit",
            violated=("user:daily",),
            subjects={"user": f"drawn{number}"},
            attrs={"probe": "0.02"},
            enforced=True,
        )
        played.decisions.append(drawn)


def letters() -> list[DeadLetter]:
    return [
        DeadLetter(
            ts=START_MS + 1000 * number,
            reason=("not_json", "no_reason")[number % 2],
            detail="it's not",
            topic="penaltybox.decisions",
            partition=0,
            offset=number,
            raw=b"{",
        )
        for number in range(12)
    ]


def store_world(clickhouse: ClickHouse) -> Played:
    """Play it, and store it as the role analytics would."""
    played = Played()
    played.play()
    extras(played)
    writer = Writer(clickhouse, Canonicaliser())
    tables: tuple[tuple[Table, list[msgspec.Struct]], ...] = (
        ("decisions", list(played.decisions)),
        ("outcomes", list(played.outcomes)),
        ("penalties", list(played.penalties)),
        ("dead_letters", list(letters())),
    )
    for table, events in tables:
        writer.store(writer.prepare(batch(table, events)))
    return played
