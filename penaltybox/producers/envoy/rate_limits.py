"""What is decided about a question of Envoy's: by the limiter, or by another service, whose answer is told."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import MAX_ROUTE, MAX_SCENARIO, MAX_SUBJECTS, Decision
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.subjects import DIMENSION, Canonicaliser
from penaltybox.producers.adapters.reading import label
from penaltybox.producers.envoy.wire import Status, WrongMessage, read_answer, read_question, write_answer
from penaltybox.producers.http.answers import AnswerOptions, answer
from penaltybox.producers.http.testimony import MAX_COST, SECRETS, secret_name
from penaltybox.producers.limiter import Request
from penaltybox.producers.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penaltybox.contracts.policy import Policy
    from penaltybox.producers.envoy.wire import Question
    from penaltybox.producers.memory import Offering
    from penaltybox.producers.verdict import Decider, LimitState

_log = logging.getLogger(__name__)
_NAMED: Final = {"remote_address": "ip"}
_SAYS_NOBODY: Final = frozenset(
    {"generic_key", "header_match", "query_match", "source_cluster", "destination_cluster", "masked_remote_address"}
)
_NOBODY: Final = "shared"
"""Of a limit whose descriptor names nobody: all requests share it, and nobody is charged."""
_WITHHELD: Final = "x-penaltybox-action"


class Asked(NamedTuple):
    """A question in our words: subjects, scenario, route, how much is taken."""

    subjects: dict[str, str]
    scenario: str
    route: str
    cost: int


def asked_by(question: Question, scenarios: Callable[[str], bool]) -> Asked:
    """A question in our words: an entry's key is a dimension (`remote_address`: `ip`), or `scenario`, or `route`.

    Args:
        question: Envoy's.
        scenarios: whether there is one of this name: then the domain names it, unless an entry does.

    Of an API key only its digest is a subject, as everywhere. A cost that no event can say is the largest one that can.
    """
    subjects: dict[str, str] = {}
    said = {"scenario": question.domain if scenarios(question.domain) else "", "route": ""}
    for descriptor in question.descriptors:
        for key, value in descriptor:
            name = _NAMED.get(key, key)
            if name in said:
                said[name] = value
            elif value and key not in _SAYS_NOBODY and DIMENSION.fullmatch(name) and _fits(name, subjects):
                subjects[name] = secret_name(value) if name in SECRETS else value
    # what workers do not take would hide the address beside it
    return Asked(subjects, said["scenario"], label(said["route"], MAX_ROUTE), min(question.hits, MAX_COST))


def _fits(name: str, subjects: dict[str, str]) -> bool:
    return name in subjects or len(subjects) < MAX_SUBJECTS


class RateLimits:
    """Answers by the limiter.

    Args:
        decider: decides.
        policy: how scenarios are treated.
        options: what clients are told.
    """

    def __init__(self, decider: Decider, policy: Policy, options: AnswerOptions | None = None) -> None:
        self._decider = decider
        self._policy = policy
        self._options = options or AnswerOptions()

    def replace_policy(self, policy: Policy) -> None:
        """From the next question on this policy holds here."""
        self._policy = policy

    async def answer(self, raw: bytes) -> bytes:
        """A `RateLimitResponse` for a `RateLimitRequest`.

        Raises:
            WrongMessage: it is none, or names a scenario that the policy does not have.
        """
        question = read_question(raw)
        asked = asked_by(question, lambda name: name in self._policy.limits)
        if asked.scenario and asked.scenario not in self._policy.limits:
            raise WrongMessage(f"scenario {asked.scenario[:40]!r} is none of the policy's")
        at_ms = now_ms()
        request = Request(
            id=ulid(at_ms), ts_ms=at_ms, scenario=asked.scenario, subjects=asked.subjects, route=asked.route,
            cost=asked.cost,
        )  # fmt: skip
        try:
            verdict = await self._decider.decide(request)
        except BadEvent:
            verdict = Verdict(action="deny", reason="unknown", missing="subject")
        over = verdict.action in ("deny", "challenge")
        said = answer(verdict, self._policy.scenario(asked.scenario), self._options, now_ms=at_ms)
        status = _status(verdict, over=over)
        return write_answer(
            over=over,
            statuses=[status] * len(question.descriptors),
            response_headers=[(name.lower(), value) for name, value in said.headers] if over or verdict.allowed else (),
            request_headers=() if over else ((_WITHHELD, verdict.action),),
            body=(said.body or b"") if over else b"",
        )  # fmt: skip


def _status(verdict: Verdict, *, over: bool) -> Status:
    states = [state for state in verdict.limits if not state.dry_run]
    if not states:
        return Status(over)
    told: LimitState = min(states, key=lambda state: (state.name not in verdict.violated, state.remaining))
    return Status(over, told.limit, told.window_ms // 1000, max(0, told.remaining), -(-told.reset_ms // 1000))


def _possible(subjects: dict[str, str]) -> dict[str, str]:
    """Those that workers take: a header that a client has made impossible does not hide its address."""
    found = {}
    for dimension, value in subjects.items():
        with suppress(BadEvent):
            Canonicaliser().subject(dimension, value)  # remembers nothing: values are many
            found[dimension] = value
            if len(found) == MAX_SUBJECTS:
                break
    return found


class Tee:
    """Passes questions on to another service, and tells what it decides; its answer goes back as it came.

    Args:
        ask: the other service.
        publisher: takes decisions.
        scenarios: whether there is one of this name.
        source: `limiter/instance`.
    """

    def __init__(
        self,
        ask: Callable[[bytes], Awaitable[bytes]],
        publisher: Offering,
        scenarios: Callable[[str], bool],
        *,
        source: str = "",
    ) -> None:
        self._ask = ask
        self._publisher = publisher
        self._scenarios = scenarios
        self._source = source or f"envoy/{socket.gethostname()}"[:128]
        self.untold = 0
        """Decisions that could not be told."""

    async def answer(self, raw: bytes) -> bytes:
        """The other service's answer; whatever it raises."""
        answered = await self._ask(raw)
        try:
            decision = self._decision(raw, answered)
            if decision is not None:
                self._publisher.offer(decision)
        except Exception:  # noqa: BLE001 - whatever it is, Envoy gets its answer
            self.untold += 1
            if self.untold & (self.untold - 1) == 0:  # the 1st, 2nd, 4th, 8th: no flood
                _log.exception("a decision of the other rate limit service was not told (%d so far)", self.untold)
        return answered

    def _decision(self, raw: bytes, answered: bytes) -> Decision | None:
        question = read_question(raw)
        over, statuses = read_answer(answered)
        asked = asked_by(question, self._scenarios)
        asked = asked._replace(subjects=_possible(asked.subjects))
        if not asked.subjects:
            return None
        violated: list[str] = []
        told = statuses[0] if statuses else Status(over)
        for descriptor, status in zip(question.descriptors, statuses, strict=False):
            named = asked_by(question._replace(descriptors=(descriptor,)), self._scenarios).subjects
            if status.over:
                told = status if not violated else told
                whose = next((name for name in named if name in asked.subjects), _NOBODY)
                violated.append(f"{whose}:{status.limit}_per_{status.window_s}s")
        if over and not violated:
            violated.append(f"{next(iter(asked.subjects))}:limit")
        at_ms = now_ms()
        return Decision(
            v=1,
            id=ulid(at_ms),
            ts=at_ms,
            source=self._source,
            scenario=label(asked.scenario, MAX_SCENARIO),
            action="deny" if over else "allow",
            reason="over_limit" if over else None,
            violated=tuple(violated[:16]) if over else (),
            subjects=asked.subjects,
            route=asked.route,
            status=429 if over else None,
            limit=told.limit or None,
            window_s=told.window_s or None,
            remaining=told.remaining if told.limit else None,
            cost=asked.cost,
        )
