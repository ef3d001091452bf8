"""What Redis is asked about a request, compiled once per scenario and set of dimensions; and what it answered."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penaltybox.contracts.keyspace import Keyspace
from penaltybox.contracts.subjects import TRUSTED, Canonicaliser, specificity
from penaltybox.producers.limiter import VIRTUAL, subject_of
from penaltybox.producers.scripts import script
from penaltybox.producers.verdict import LimitState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.contracts.policy import Limit, Policy, Scenario
    from penaltybox.links.exchange import Script
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.pseudonyms import Pseudonyms

_AUTHENTICATED: Final = ("api_key", "user")
_MAX_QUESTIONS: Final = 4096
_WITH_BURST: Final = frozenset({"token_bucket", "leaky_bucket", "gcra"})
_MAX_LEVEL: Final = 1 << 53
_made: Final = tuple.__new__
_MAX_ASKED: Final = 16_384
_HEAD: Final = Struct("<6Hd")
_NUMBERS: Final = Struct("<2d")
_LIMIT: Final = Struct("<3d2B")
_spell: Final = msgspec.json.Encoder().encode


class Applied(NamedTuple):
    """One limit of a question.

    Attributes:
        name: ``dimension:limit name``.
        limit: as the policy has it.
        at: which of the question's subjects it counts.
        tail: of its counter's key, after the subject's stem.
        path: ``scenario/dimension:limit name``, its name in plans and overrides.
        plans: plan -> the limit instead.
    """

    name: str
    limit: Limit
    at: int
    tail: str
    path: str
    plans: dict[str, int]

    @property
    def burst_or_slots(self) -> int:
        """The fourth number that its algorithm wants; 0 when it wants none."""
        if self.limit.algorithm in _WITH_BURST:
            return self.limit.burst or self.limit.limit
        return self.limit.slots if self.limit.algorithm == "sliding_window_counter" else 0

    @property
    def follows(self) -> bool:
        """Whether that number grows and shrinks with the limit."""
        return self.limit.algorithm in _WITH_BURST

    def packed(self) -> bytes:
        """What the scripts are told about it; see lua/limits.lua. The algorithm's name in front ends in a zero."""
        return self._packed(self.limit.limit, self.burst_or_slots, follows=self.follows)

    def packed_with(self, quota: int) -> bytes:
        """The same with a quota that is in force already."""
        burst = self.burst_or_slots
        if self.follows and quota != self.limit.limit:
            burst = max(1, burst * quota // self.limit.limit)
        return self._packed(quota, burst, follows=False)

    def _packed(self, quota: int, burst_or_slots: int, *, follows: bool) -> bytes:
        limit = self.limit
        numbers = _LIMIT.pack(quota, limit.window_ms, burst_or_slots, limit.dry_run, follows)
        return limit.algorithm.encode() + b"\0" + numbers

    def capacity(self, quota: int) -> int:
        """The largest cost that fits when nothing is taken, for a quota in force."""
        return max(1, self.burst_or_slots * quota // self.limit.limit) if self.follows else quota

    def in_force(self, customer: Mapping[str, Any] | None, share: int) -> int:
        """The quota after override, plan and trust (`share` in 1/10,000); the same as in lua/limits.lua."""
        limit = quota = self.limit.limit
        if customer is not None:
            quota = self._of_customer(customer)
        if share != 10_000:  # noqa: PLR2004 - all of it
            quota = quota * share // 10_000
        return quota if quota == limit else max(1, min(quota, _MAX_LEVEL // self.limit.window_ms))

    def _of_customer(self, customer: Mapping[str, Any]) -> int:
        limits, plan = customer.get("limits"), customer.get("plan")
        own = limits.get(self.path) if isinstance(limits, dict) else None
        if isinstance(own, int | float) and not isinstance(own, bool) and own >= 1:
            return int(own)
        return (self.plans.get(plan) if isinstance(plan, str) else None) or self.limit.limit


class Question:
    """What is asked about requests of one scenario that have the same dimensions.

    Attributes:
        scenario: how the scenario is treated.
        missing: a dimension that such requests lack and must not.
        on: dimensions and combinations whose blocks are looked up, and which limits count.
        trusted: place of the subject whose trust counts; None for none.
        customer: place of the subject whose plan counts; None for none.
        passing: places of the subjects whose passed challenge exempts them from the address' challenge.
        address: place of the address; None for none.
        limits: that apply.
        deadline_s: for the answer.
        lasting: whether its subjects follow from those of the request alone, not from its route.
        longest_ms: the longest window.
        algorithms: of the limits.
    """

    def __init__(self, policy: Policy, name: str, dimensions: tuple[str, ...], combinations: Sequence[str]) -> None:
        self.scenario: Scenario = policy.scenario(name)
        self.dimensions = dimensions
        wanted = (one for one, how in self.scenario.missing.items() if how == "refuse")
        self.missing = next((one for one in wanted if one not in dimensions), "")
        known = VIRTUAL.union(dimensions)
        limited = [on for on in policy.limits.get(name, ()) if known.issuperset(on.split("+"))]
        more = [on for on in (*limited, *combinations) if on not in dimensions and known.issuperset(on.split("+"))]
        self.on = (*dimensions, *dict.fromkeys(more))
        self.authenticated = any(one in dimensions for one in _AUTHENTICATED)
        self.trusted = self._first(TRUSTED)
        self.customer = self._first(_AUTHENTICATED)
        self.passing = [self.on.index(one) for one in TRUSTED if one in dimensions] if "ip" in dimensions else []
        self.address = self.on.index("ip") if "ip" in dimensions else None
        self.limits = tuple(
            self._applied(policy, name, on, limit) for on in limited for limit in policy.limits[name][on]
        )
        self._counters = [(one.at, one.tail) for one in self.limits]
        self._marks = self._marked()
        self._told = [
            (one.name, one.limit.limit, one.limit.window_ms, one.limit.answer, one.limit.dry_run) for one in self.limits
        ]
        self.deadline_s = self.scenario.deadline_ms / 1000
        self.lasting = not any("route" in on.split("+") for on in self.on)
        self.longest_ms = max((one.limit.window_ms for one in self.limits), default=0)
        self.algorithms = frozenset(one.limit.algorithm for one in self.limits)
        self.script: Script = script("decide", self.algorithms)
        self.packed = b"".join([self._packed(), *(one.packed() for one in self.limits), self._names()])
        """The question, its limits and their names, as lua/asked.lua wants them."""

    def _first(self, dimensions: Sequence[str]) -> int | None:
        return next((self.on.index(one) for one in dimensions if one in self.dimensions), None)

    def _applied(self, policy: Policy, scenario: str, on: str, limit: Limit) -> Applied:
        path = f"{scenario}/{on}:{limit.name}"
        plans = {plan: limits[path] for plan, limits in policy.plans.items() if path in limits}
        return Applied(
            f"{on}:{limit.name}", limit, self.on.index(on), Keyspace.counter_tail(scenario, limit.name), path, plans
        )

    def _packed(self) -> bytes:
        reads = 2 * len(self.on)
        trust = reads + 1 if self.trusted is not None else 0
        plan = max(reads, trust) + 1 if self.customer is not None else 0
        address = 0 if self.address is None else self.address + 1
        head = _HEAD.pack(
            max(reads, trust, plan), len(self.on), address, trust, plan, len(self.passing),
            self.scenario.newcomers_percent,
        )  # fmt: skip
        return head + b"".join([_NUMBERS.pack(one.limit.limit, one.limit.window_ms) for one in self.limits])

    def _marked(self) -> list[tuple[int, str]]:
        places = range(len(self.on))
        marked = [(at, ":block") for at in places] + [(at, ":challenge") for at in places]
        marked += [(at, ":trust") for at in (self.trusted,) if at is not None]
        marked += [(at, ":plan") for at in (self.customer,) if at is not None]
        return marked + [(at, ":pass") for at in self.passing]

    def _names(self) -> bytes:
        return msgspec.json.encode([(one.path, one.plans) for one in self.limits])

    def counters(self, stems: Sequence[str]) -> list[str]:
        """The keys of the limits' counters, for the stems of the subjects `on`."""
        return [stems[at] + tail for at, tail in self._counters]

    def marks(self, stems: Sequence[str]) -> list[str]:
        """The keys that are only read, as lua/asked.lua wants them."""
        return [stems[at] + tail for at, tail in self._marks]

    def states(self, numbers: Sequence[int], at: int) -> tuple[LimitState, ...]:
        """The limits as the script told them: from place `at` on quota, wait, remaining and reset of each."""
        found = []
        for name, _, window_ms, answer, dry_run in self._told:
            # As NamedTuple does it, but for the call in between: it would take half of the time.
            state = (name, numbers[at], window_ms, numbers[at + 2], numbers[at + 3], numbers[at + 1], answer, dry_run)
            found.append(_made(LimitState, state))
            at += 4
        return tuple(found)

    def states_that_fit(self, remaining: Sequence[int], at: int) -> tuple[LimitState, ...]:
        """The limits as lua/at_once.lua told them: from place `at` on what remains of each."""
        return tuple(
            [
                _made(LimitState, (name, limit, window_ms, left, window_ms, 0, answer, dry_run))
                for (name, limit, window_ms, answer, dry_run), left in zip(self._told, remaining[at:], strict=True)
            ]
        )


class Answer(msgspec.Struct, gc=False):
    """What Redis said.

    Attributes:
        now_ms: its time, if somebody is listed.
        trust: whether the trusted subject is established; None when nothing is known.
        blocks: (place of the subject, value) of the block keys that are there.
        challenges: the same of the challenge keys that are there and stand; empty when there is a block.
        states: the limits; empty when listed.
        fits: whether it is known already that no limit is violated.
    """

    now_ms: int
    trust: bool | None
    blocks: Sequence[tuple[int, bytes]] = ()
    challenges: Sequence[tuple[int, bytes]] = ()
    states: tuple[LimitState, ...] = ()
    fits: bool = False


class Asked(msgspec.Struct, gc=False):
    """What is asked about certain subjects: all that stays the same from one request of theirs to the next.

    Attributes:
        question: about them.
        subjects: canonical texts of `question.on`.
        stems: what the keys of these subjects start with.
        call: whatever the counters have made of it, for the next time.
    """

    question: Question
    subjects: tuple[str, ...]
    stems: tuple[str, ...]
    call: Any = None


class Questions:
    """The questions of a policy.

    Args:
        policy: its limits, scenarios and plans; combinations that its rules are about can have blocks.
        keyspace: how keys are called.
        canonicaliser: how subjects count.
        pseudonyms: stand for values that must not be stored as they are.
    """

    def __init__(
        self,
        policy: Policy,
        keyspace: Keyspace,
        canonicaliser: Canonicaliser,
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        self.policy = policy
        self._pseudonyms = pseudonyms
        self._stem = f"{keyspace.prefix}:{{"
        self._canonicaliser = canonicaliser
        ruled = {rule.on for rule in policy.rules if "+" in rule.on}
        self._combinations = sorted(ruled, key=specificity)
        self._known: dict[tuple[str, ...], Question] = {}
        self._asked: dict[bytes, Asked] = {}
        self._order: list[bytes] = []
        self._oldest = 0

    def asked(self, request: Request) -> Asked:
        """What is asked about the subjects of a request; remembered, because who asks once mostly asks again.

        Raises:
            BadEvent: a subject that is not allowed.
        """
        subjects = request.subjects
        if self._pseudonyms is not None:
            subjects = self._pseudonyms.of_subjects(subjects)
        try:
            key = _spell((request.scenario, subjects))
        except UnicodeEncodeError:
            key = b""
        return self._asked.get(key) or self._learn(key, request, subjects)

    def _learn(self, key: bytes, request: Request, subjects: dict[str, str]) -> Asked:
        question = self.about(request)
        texts = self._texts(question, request, subjects)
        stem = self._stem
        asked = Asked(question, texts, tuple([f"{stem}{text}}}" for text in texts]))
        if question.lasting and key:
            self._remember(key, asked)
        return asked

    def _remember(self, key: bytes, asked: Asked) -> None:
        if len(self._order) < _MAX_ASKED:
            self._order.append(key)
        else:  # one by one: to drop all of them at once would hold up whoever comes next
            self._asked.pop(self._order[self._oldest], None)
            self._order[self._oldest] = key
            self._oldest = (self._oldest + 1) % _MAX_ASKED
        self._asked[key] = asked

    def about(self, request: Request) -> Question:
        """The question about requests like this."""
        key = (request.scenario, *request.subjects)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_QUESTIONS:  # whoever makes up dimensions must not fill the memory
                self._known.clear()
            found = Question(self.policy, request.scenario, tuple(request.subjects), self._combinations)
            self._known[key] = found
        return found

    def _texts(self, question: Question, request: Request, subjects: dict[str, str]) -> tuple[str, ...]:
        """Canonical texts of the subjects `question.on`."""
        text_of = self._canonicaliser.text
        found = [text_of(dimension, value) for dimension, value in subjects.items()]
        for on in question.on[len(found) :]:
            text = subject_of(on, request, subjects, self._canonicaliser)
            if text is not None:  # the question is only about combinations whose parts are there
                found.append(text)
        return tuple(found)
