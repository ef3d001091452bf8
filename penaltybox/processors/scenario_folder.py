"""Scenario folders: recorded events and what they are expected to lead to, played through the engine.

A folder has `decisions.jsonl`, `expected.jsonl` and, if it is about a policy of its own, `policy.yaml`; docs/policy.md
describes the lines. Times are relative to the scenario's start (``1h5m``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penaltybox.contracts.errors import BadEvent, ConfigurationError, cause
from penaltybox.contracts.events import Command, Decision, Outcome
from penaltybox.contracts.policy_file import load_policy
from penaltybox.processors.engine import Engine, Handling
from penaltybox.processors.state import SubjectState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.policy import Policy, Rule

START_MS: Final = 1_766_400_000_000
_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_SPAN: Final = re.compile(r"-?(?:\d{1,9}(?:ms|[dhms]))+", re.ASCII)
_PART: Final = re.compile(r"(\d+)(ms|[dhms])", re.ASCII)
_MOST_TIMES: Final = 1_000_000
Event = Decision | Outcome | Command
Line = dict[str, Any]


class Delivered(NamedTuple):
    """An event as a worker gets it, and the policy that is in force then."""

    event: Event
    handling: Handling
    policy: Policy


class Played(NamedTuple):
    """What a folder led to: penalties found and expected, as lines; the rules in force, and those that fired."""

    found: list[Line]
    expected: list[Line]
    rules: tuple[Rule, ...]
    fired: frozenset[tuple[str, int]]


def play(folder: Path, usual: Policy) -> Played:
    """Play a folder.

    Args:
        folder: with `decisions.jsonl` and `expected.jsonl`.
        usual: the policy, if the folder has none of its own.

    Raises:
        ConfigurationError: a file is missing or a line is none; says which.
    """
    own = folder / "policy.yaml"
    deliveries = list(_deliveries(folder, load_policy(own) if own.exists() else usual))
    states: dict[str, SubjectState] = {}
    engines: dict[str, Engine] = {}
    penalties: list[Penalty] = []
    fired: set[tuple[str, int]] = set()
    for event, handling, policy in deliveries:
        engine = engines.get(policy.version) or engines.setdefault(policy.version, Engine(policy))
        new = list(_judge(engine, states, event, handling))
        keys = {rule.name: rule.key for rule in policy.rules}
        for penalty in new:
            fired |= {(name, keys[name]) for name in _rules_of(penalty) if name in keys}
        penalties += new
    rules = {rule.key: rule for one in deliveries for rule in one.policy.rules} or {one.key: one for one in usual.rules}
    expected = [_checked(line, folder) for line in _lines(folder / "expected.jsonl")]
    return Played([line_of(one) for one in penalties], expected, tuple(rules.values()), frozenset(fired))


def _rules_of(penalty: Penalty) -> Iterator[str]:
    yield penalty.rule
    named = penalty.evidence.get("rules")
    if isinstance(named, list):
        yield from named


def _judge(engine: Engine, states: dict[str, SubjectState], event: Event, handling: Handling) -> Iterator[Penalty]:
    def state_of(subject: str) -> SubjectState:
        return states.setdefault(subject, SubjectState.fresh(subject))

    touched: list[SubjectState] = []
    if isinstance(event, Decision):
        for subject, plan in engine.touches(event):
            touched.append(state_of(subject))
            engine.apply(touched[-1], plan, event, handling)
    elif isinstance(event, Outcome):
        for subject in engine.outcome_subjects(event):
            touched.append(state_of(subject))
            engine.apply_outcome(touched[-1], event, handling)
    else:
        touched.append(state_of(event.subject))
        engine.apply_command(touched[-1], event, handling)
    for state in touched:
        yield from state.outbox
        state.outbox = []


def _deliveries(folder: Path, policy: Policy) -> Iterator[Delivered]:
    sofar: list[Delivered] = []
    for number, line in enumerate(_lines(folder / "decisions.jsonl"), 1):
        if line.keys() == {"policy"}:
            policy = load_policy(folder / str(line["policy"]))
            continue
        try:
            new = list(sofar) if line.keys() == {"again"} else list(_expanded(number, line, policy))
        except (KeyError, TypeError, ValueError, BadEvent, msgspec.MsgspecError) as error:
            says = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigurationError(f"{folder / 'decisions.jsonl'}, event {number}: {says}") from error
        sofar += new
        yield from new


def _lines(path: Path) -> Iterator[Line]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"scenario: {path}: cannot be read: {cause(error)}") from error
    for number, line in enumerate(text.split("\n"), 1):  # no others: JSON may have them in a text
        if not line.strip() or line.startswith("//"):
            continue
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{path}:{number}: got {line[:60]!r}, wanted a JSON object: {error}") from error


def _expanded(number: int, given: Line, policy: Policy) -> Iterator[Delivered]:
    line = dict(given)
    times, every = line.pop("times", 1), since(line.pop("every", "0s"))
    handled, broker = since(line.pop("handled", "0s")), since(line.pop("broker", "0s"))
    start = START_MS + since(line.pop("t"))
    if not isinstance(times, int) or not 1 <= times <= _MOST_TIMES:
        raise ValueError(f"times: got {times!r}, wanted 1 to {_MOST_TIMES:,}")
    kind: Any = Outcome if "label" in line else Command if "verb" in line else Decision
    extra = {"source": "scenario/1"} if kind is Decision else {}
    text = msgspec.json.encode({"v": 1, "id": f"line{number}-{{n}}", **extra, **line}).decode()
    for n in range(times):
        ts = start + n * every
        event = msgspec.convert({**msgspec.json.decode(text.replace("{n}", str(n))), "ts": ts}, kind)
        yield Delivered(event, Handling(ts + broker, handled > policy.late_after_ms), policy)


def _checked(line: Line, folder: Path) -> Line:
    missing = [name for name in ("t", "subject", "rule", "from", "to", "action", "until") if name not in line]
    if missing:
        raise ConfigurationError(f"{folder / 'expected.jsonl'}: a line without {', '.join(missing)}: {line}")
    return line


def since(text: object) -> int:
    """Milliseconds of ``1h5m``, ``-30s``, ``0s``.

    Raises:
        ValueError: something else.
    """
    if not isinstance(text, str) or not _SPAN.fullmatch(text):
        raise ValueError(f"got {text!r}, wanted a time since the scenario's start, e.g. 1h5m")
    total = sum(int(amount) * _UNITS[unit] for amount, unit in _PART.findall(text))
    return -total if text.startswith("-") else total


def spoken(at_ms: int | None) -> str:
    """An absolute time as it stands in a scenario."""
    if at_ms is None:
        return "never"
    rest = abs(at_ms - START_MS)
    found = "-" if at_ms < START_MS else ""
    for unit, size in _UNITS.items():
        if rest >= size:
            found += f"{rest // size}{unit}"
            rest %= size
    return found if found.strip("-") else "0s"


def line_of(penalty: Penalty) -> Line:
    """A penalty as a line of `expected.jsonl`."""
    line: Line = {
        "t": spoken(penalty.ts),
        "subject": penalty.subject,
        "rule": penalty.rule,
        "from": penalty.from_,
        "to": penalty.to,
        "action": penalty.action,
        "until": spoken(penalty.until),
    }
    return line | {name: True for name in ("shadow", "late") if getattr(penalty, name)}


def differences(played: Played) -> list[tuple[str, Line]]:
    """(``-``, a line that was expected and did not come) and (``+``, one that came and was not expected), by subject.

    Of each subject and ladder the lines are compared in their order; between two subjects no order is promised.
    """
    found, expected = _by_ladder(played.found), _by_ladder(played.expected)
    told = []
    for place in dict.fromkeys([*expected, *found]):
        ours, theirs = found.get(place, []), expected.get(place, [])
        same = 0
        while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
            same += 1
        told += [("-", line) for line in theirs[same:]] + [("+", line) for line in ours[same:]]
    return told


def _by_ladder(lines: list[Line]) -> dict[tuple[str, bool], list[Line]]:
    found: dict[tuple[str, bool], list[Line]] = {}
    for line in lines:
        found.setdefault((str(line["subject"]), bool(line.get("shadow"))), []).append(line)
    return found
