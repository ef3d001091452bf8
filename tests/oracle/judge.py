"""The oracle: a slow second implementation of the engine's definitions, for the tests.

It keeps every event that counted since a subject's last step in plain lists and works everything out anew from them
each time. It shares the records, the policy and the canonical subjects with the engine, and no code of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penaltybox.contracts.events import Command, Decision, Hold, Outcome, Penalty
from penaltybox.contracts.ids import penalty_id
from penaltybox.contracts.subjects import Canonicaliser, most_specific, value_hash
from tests.oracle.fences import draw_fence, granule, restart
from tests.oracle.person import Case, Entry, Fired, Person, Track, Trigger, active, ends_later
from tests.oracle.sight import allowlisted, sees, subject_of, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.policy import Policy, Rule, Rung

NONE = -1
HAND = "hand"
TRUSTED = ("user", "device", "api_key")


class Oracle:
    """Feed it events in order; then read `people` and `penalties`. `policy` may be changed between two events."""

    def __init__(self, policy: Policy, canonicaliser: Canonicaliser | None = None) -> None:
        self.policy = policy
        self.canonicaliser = canonicaliser or Canonicaliser()
        self.people: dict[str, Person] = {}
        self.penalties: list[Penalty] = []
        self._seen: tuple[Decision, Policy, list[tuple[Rule, str | None]]] | None = None

    # --- what comes in

    def judge(self, event: Decision | Outcome | Command, broker_ms: int, *, late: bool = False) -> None:
        """One event, for all subjects that it concerns."""
        for subject in self.concerned(event):
            self.apply(subject, event, broker_ms, late=late)

    def concerned(self, event: Decision | Outcome | Command) -> list[str]:
        if isinstance(event, Command):
            return [event.subject]
        found = [self.canonicaliser.subject(*pair) for pair in event.subjects.items()]
        if isinstance(event, Decision):
            combinations = {rule.on for rule in self.policy.rules if "+" in rule.on}
            found += filter(None, (subject_of(on, event, self.canonicaliser) for on in sorted(combinations)))
        return found

    def apply(self, subject: str, event: Decision | Outcome | Command, broker_ms: int, *, late: bool = False) -> None:
        """One event, for one subject."""
        person = self.people.setdefault(subject, Person(subject))
        trigger = Trigger(event.id, min(event.ts, broker_ms), broker_ms, late)
        if isinstance(event, Decision):
            self._decision(person, event, trigger)
        elif isinstance(event, Outcome):
            self._outcome(person, event, trigger)
        else:
            self._command(person, event, trigger)

    # --- decisions

    def _decision(self, person: Person, decision: Decision, trigger: Trigger) -> None:
        if allowlisted(self.policy, person.subject, trigger.t):
            return
        self._share(person, decision, trigger)
        if trigger.t < person.grace_until:
            return
        mine = [rule for rule, subject in self._seeing(decision) if subject == person.subject]
        self._look(Case(person, person.real, trigger), [rule for rule in mine if not rule.shadow], decision)
        for rule in mine:
            if rule.shadow:
                track = person.shadows.setdefault(rule.key, Track(shadow=True))
                self._look(Case(person, track, trigger), [rule], decision)

    def _seeing(self, decision: Decision) -> list[tuple[Rule, str | None]]:
        """Rules that see the decision, each with the subject it counts it for; remembered for the next subject."""
        if self._seen is None or self._seen[0] is not decision or self._seen[1] is not self.policy:
            found = [
                (rule, subject_of(rule.on, decision, self.canonicaliser))
                for rule in self.policy.rules
                if sees(rule, decision)
            ]
            self._seen = (decision, self.policy, found)
        return self._seen[2]

    def _share(self, person: Person, decision: Decision, trigger: Trigger) -> None:
        if self.policy.shared_ip is None or not self._is_address(person):
            return
        if decision.established is not True or "user" not in decision.subjects:
            return
        before = self._shared(person, trigger.t)
        user = self.canonicaliser.subject("user", decision.subjects["user"]).split(":", 1)[1]
        person.colleagues.append((trigger.t, value_hash(user)))
        hold = person.real.deny
        if not before and self._shared(person, trigger.t) and hold is not None and self._softens(hold, trigger.t):
            until = trigger.t + self.policy.challenge_ms if hold.until is None else hold.until
            person.real.deny = None
            # all that the broker had until now was suppressed, as far as the block would have gone
            passed = trigger.broker_ms if hold.until is None else min(hold.until - 1, trigger.broker_ms)
            person.real.at = max(person.real.at, trigger.t, passed)
            self._hold_challenge(person.real, Hold(until, hold.rung, hold.rule, hold.penalty))
            self._note(Case(person, person.real, trigger), "shared_ip", "challenge", until, trigger.t)

    def _is_address(self, person: Person) -> bool:
        """An address, or an address on a route or in a scenario."""
        return most_specific(person.subject.split(":", 1)[0].split("+")) == "ip"

    def _softens(self, hold: Hold, t: int) -> bool:
        return active(hold, t) and hold.rule != HAND

    def _shared(self, person: Person, at: int) -> bool:
        shared = self.policy.shared_ip
        if shared is None or not self._is_address(person):
            return False
        return len(self._newest(person.colleagues, shared.window_ms, at)) >= shared.established

    def _newest(self, seen: Iterable[tuple[int, int]], window_ms: int, at: int) -> set[int]:
        """Values that are still in the window at the later of `at` and the newest; times in steps of a 32nd."""
        seen = list(seen)
        step = granule(window_ms)
        latest = max([at, *(t for t, _ in seen)]) // step * step
        return {value for t, value in seen if t // step * step > latest - window_ms}

    def _look(self, case: Case, rules: list[Rule], decision: Decision) -> None:
        track, trigger = case.track, case.trigger
        if trigger.t <= track.at or active(track.deny, trigger.t):
            return
        fired = []
        for rule in rules:
            if rule.then.challenge_ms and trigger.t < track.asked.get(rule.name, 0):
                continue  # it has what it asks for
            value = value_of(rule, decision, self.canonicaliser) if rule.kind == "distinct" else None
            if rule.kind == "distinct" and value is None:
                continue
            if any(key == rule.key and one == value and trigger.t < end for key, one, end in track.used):
                continue  # a step used that very sighting, for all that is known
            before = track.counted.setdefault(rule.key, [])
            granule_ms = granule(rule.window_ms) if rule.kind == "distinct" else 0
            new = Entry(trigger.t, value_hash(trigger.id), decision.count, value, granule_ms)
            latest = max(entry.t for entry in [*before, new])
            if value is None and any(entry.id == new.id and entry.t > latest - rule.window_ms for entry in before):
                continue  # within a window an id counts once
            if not self._reached(rule, before, latest) and self._reached(rule, [*before, new], latest):
                fired.append(Fired(rule.name, rule.then, rule.key))
            before.append(new)
        if fired:
            self._follow(case, fired)

    def _reached(self, rule: Rule, entries: list[Entry], latest: int) -> bool:
        if rule.kind == "distinct":
            pairs = ((entry.t, entry.value or 0) for entry in entries)
            return len(self._newest(pairs, rule.window_ms, latest)) >= rule.n
        return sum(entry.weight for entry in entries if entry.t > latest - rule.window_ms) >= rule.n

    # --- what follows

    def _follow(self, case: Case, fired: list[Fired]) -> None:
        track = case.track
        asked = fired + self._score(track, fired, case.trigger)
        counted = [entry for entries in track.counted.values() for entry in entries]
        s = max([case.trigger.t, *(entry.t for entry in counted if not entry.granule_ms)])
        climbs = [one for one in asked if one.then.step or one.then.level is not None]
        challenges = [one for one in asked if one.then.challenge_ms is not None]
        longest = max(challenges, key=lambda one: one.then.challenge_ms or 0) if challenges else None
        action = self._step(case, climbs, s, longest) if climbs else ""
        if longest is not None and action in ("", "warn"):
            self._own_challenge(case, challenges, longest, s)

    def _score(self, track: Track, fired: list[Fired], trigger: Trigger) -> list[Fired]:
        points = [
            (trigger.t, value_hash(one.name + trigger.id), one.then.score)
            for one in fired
            if one.then.score is not None
        ]
        if not points:
            return []
        window = self.policy.score.window_ms
        now = max([trigger.t, *(t for t, _, _ in track.risk)])

        def value(contributions: list[tuple[int, int, int]]) -> int:
            return sum(points * max(0, window - (now - t)) // window for t, _, points in contributions)

        before = value(track.risk)
        known = {key for _, key, _ in track.risk}
        track.risk = sorted(track.risk + [one for one in points if one[1] not in known])[-64:]
        after = value(track.risk)
        return [
            Fired(f"score:{threshold.at}", threshold.then)
            for threshold in self.policy.score.thresholds
            if before < threshold.at <= after
        ]

    def prior(self, track: Track, s: int) -> int:
        """Index of the rung that still stands at s, after forgiveness; -1 is none."""
        if track.rung is None:
            return NONE
        index = self.index(track.rung, track.rung_ms)
        if track.end is None:
            return index
        if s >= track.end + self.policy.ladder.memory_ms:
            return NONE
        forgiven = (s - track.end) // self.policy.ladder.forgive_ms if s > track.end else 0
        return max(NONE, index - forgiven)

    def index(self, name: str, length_ms: int | None) -> int:
        """Where a stored rung stands in today's ladder."""
        rungs = self.policy.ladder.rungs
        for position, rung in enumerate(rungs):
            if rung.name == name:
                return position
        fits = [
            position
            for position, rung in enumerate(rungs)
            if length_ms is None or rung.action == "warn" or (rung.duration_ms or 1 << 60) <= length_ms
        ]
        return max(fits, default=NONE)

    def _step(self, case: Case, climbs: list[Fired], s: int, longest: Fired | None) -> str:
        track = case.track
        names = [rung.name for rung in self.policy.ladder.rungs]
        prior = self.prior(track, s)
        asks = [(prior + 1 if one.then.step else names.index(one.then.level or ""), one) for one in climbs]
        highest = max(ask for ask, _ in asks)
        decisive = [one for ask, one in asks if ask == highest]
        rung, ceiling_ms = self._capped(case, max(min(highest, len(names) - 1), prior))
        softer = rung.action == "deny" and self._softer(case.person, decisive, s)
        action = "challenge" if softer else rung.action
        rule = decisive[0].name
        pid = self._id(case, rule, rung.name)
        until = None
        if rung.duration_ms is not None:
            jitter = int(pid[:8], 16) % (self.policy.ladder.jitter_percent + 1)
            until = s + min(rung.duration_ms * (100 + jitter) // 100, ceiling_ms or 1 << 60)
        elif softer:
            until = s + self.policy.challenge_ms
        if until is not None and softer and longest is not None:
            until = max(until, s + (longest.then.challenge_ms or 0))
        came_from = names[prior] if prior >= 0 else "none"
        track.rung, track.rung_ms, track.end = rung.name, rung.duration_ms, until
        draw_fence(case, s)
        if action == "deny":
            track.deny = Hold(until, rung.name, rule, pid)
        restart(self.policy, case)
        if action == "challenge":
            self._hold_challenge(track, Hold(until, rung.name, rule, pid))
        self._record(case, rule, action, until, s, (came_from, rung.name))
        return action

    def _capped(self, case: Case, target: int) -> tuple[Rung, int | None]:
        rungs = self.policy.ladder.rungs
        names = [rung.name for rung in rungs]
        cap = self._cap(case.person)
        ceiling_ms = None
        if cap in names:
            target = min(target, names.index(cap))
            ceiling_ms = rungs[names.index(cap)].duration_ms
        if case.trigger.late:
            target = min(target, max(at for at, rung in enumerate(rungs) if rung.duration_ms is not None))
        return rungs[target], ceiling_ms

    def _cap(self, person: Person) -> str:
        dimension = person.subject.split(":", 1)[0]
        caps = self.policy.ladder.caps
        return caps.get(dimension) or caps.get(most_specific(dimension.split("+"))) or ""

    def _softer(self, person: Person, decisive: list[Fired], s: int) -> bool:
        """Whether a denial has to become a challenge."""
        denies = {rung.name for rung in self.policy.ladder.rungs if rung.action == "deny"}
        on_ip = most_specific(person.subject.split(":", 1)[0].split("+")) == "ip"
        return (
            self._cap(person) == "challenge"
            or self._shared(person, s)
            or (on_ip and not any(one.then.level in denies for one in decisive))
        )

    def _own_challenge(self, case: Case, challenges: list[Fired], longest: Fired, s: int) -> None:
        until = s + (longest.then.challenge_ms or 0)
        standing = self._standing(case.track, s)
        pid = self._id(case, longest.name, standing)
        draw_fence(case, s)
        for one in challenges:
            case.track.counted.pop(one.key, None)
        self._hold_challenge(case.track, Hold(until, standing, longest.name, pid))
        self._note(case, longest.name, "challenge", until, s)

    def _standing(self, track: Track, s: int) -> str:
        prior = self.prior(track, s)
        return self.policy.ladder.rungs[prior].name if prior >= 0 else "none"

    def _hold_challenge(self, track: Track, hold: Hold) -> None:
        if track.challenge is None or not ends_later(track.challenge, hold):
            track.challenge = hold
            track.asked[hold.rule] = hold.until or 0  # a challenge always ends

    def _id(self, case: Case, rule: str, to: str) -> str:
        subject = f"shadow:{case.person.subject}" if case.track.shadow else case.person.subject
        return penalty_id(subject, rule, case.trigger.id, to)

    def _note(self, case: Case, rule: str, action: str, until: int | None, s: int) -> None:
        """A record that is no step: from and to are the rung that stands."""
        standing = self._standing(case.track, s)
        self._record(case, rule, action, until, s, (standing, standing))

    def _record(self, case: Case, rule: str, action: str, until: int | None, s: int, rungs: tuple[str, str]) -> None:
        self.penalties.append(
            Penalty(
                id=self._id(case, rule, rungs[1]),
                ts=s,
                subject=case.person.subject,
                from_=rungs[0],
                to=rungs[1],
                action=action,  # type: ignore[arg-type]
                until=until,
                rule=rule,
                policy_version=self.policy.version,
                trigger_id=case.trigger.id,
                shadow=case.track.shadow,
                late=case.trigger.late,
            )
        )

    # --- outcomes and commands

    def _outcome(self, person: Person, outcome: Outcome, trigger: Trigger) -> None:
        if allowlisted(self.policy, person.subject, trigger.t):
            return
        dimension = person.subject.split(":", 1)[0]
        points = self.policy.trust.points.get(outcome.label, 0)
        if points and dimension in TRUSTED:
            person.trust.setdefault(value_hash(outcome.id), (points, trigger.t))
        if outcome.label == "challenge_passed" and dimension in ("user", "device"):
            person.pass_until = max(person.pass_until, trigger.t + self.policy.pass_ms)
            if active(person.real.challenge, trigger.t) and person.real.at < trigger.t:
                person.real.challenge = None
                person.real.asked.clear()
                person.real.at = trigger.t
                self._note(Case(person, person.real, trigger), "challenge_passed", "lift", trigger.t, trigger.t)

    def points(self, subject: str, now_ms: int) -> int:
        """Trust points of a subject that have not run out."""
        trust = self.people[subject].trust if subject in self.people else {}
        newest = sorted(((t, key, points) for key, (points, t) in trust.items()), reverse=True)[:32]
        return sum(points for t, _, points in newest if t > now_ms - self.policy.trust.ttl_ms)

    def _command(self, person: Person, command: Command, trigger: Trigger) -> None:
        case = Case(person, person.real, trigger)
        track, t = person.real, trigger.t
        if command.verb == "grant":
            person.trust.setdefault(value_hash(command.id), (command.points, t))
            self._note(case, HAND, "note", None, t)
            return
        standing = self._standing(track, t)
        if command.verb == "ban":
            self._ban(case, command, standing)
        else:
            names = ["none", *(rung.name for rung in self.policy.ladder.rungs)]
            down = max(0, names.index(standing) - 1)
            left = names[down] if command.verb == "pardon" else standing if command.keep_level else "none"
            track.deny = track.challenge = None
            track.asked.clear()
            track.rung = None if left == "none" else left
            track.rung_ms = next((rung.duration_ms for rung in self.policy.ladder.rungs if rung.name == left), 0)
            track.end = t
            track.risk = []
            if command.grace_ms:
                person.grace_until = max(person.grace_until, t + command.grace_ms)
            self._record(case, HAND, "lift", t, t, (standing, left))
        track.at = max(track.at, t)
        track.counted.clear()

    def _ban(self, case: Case, command: Command, standing: str) -> None:
        track, t = case.track, case.trigger.t
        rungs = self.policy.ladder.rungs
        above = rungs if standing == "none" else rungs[[rung.name for rung in rungs].index(standing) + 1 :]
        rung = next((rung for rung in rungs if rung.name == command.level), None)
        rung = rung or next((rung for rung in above if rung.action == "deny"), rungs[-1])
        length_ms = rung.duration_ms if command.for_ms is None else command.for_ms
        until = None if length_ms is None else t + length_ms
        action = rung.action if command.for_ms is None else "deny"
        if action == "deny":
            track.deny = Hold(until, rung.name, HAND, self._id(case, HAND, rung.name))
        track.rung, track.rung_ms, track.end = rung.name, rung.duration_ms, until
        self._record(case, HAND, action, until, t, (standing, rung.name))
