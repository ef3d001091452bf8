"""Scenarios: a folder with `policy.yaml`, `decisions.jsonl` and `expected.jsonl`, in times relative to its start.

A line of `decisions.jsonl` is a record with `"t"` (such as `"1h5m"`) in place of `ts`; `v`, `id`, `source` may be left
out. Beside the record's own fields it may say

* `"times"` and `"every"`: so many of them; `{n}` in any text becomes 0, 1, 2, …
* `"handled"`: how long after `t` the worker has it (`late` follows from the policy's `late_after`);
  `"broker"`: how long after `t` the broker stamped it (negative: the sender's clock is ahead).
* `"label"` makes it an outcome, `"verb"` a command.
* `{"policy": "other.yaml"}` alone switches the policy; `{"again": true}` delivers everything so far once more.

A line of `expected.jsonl` is one penalty: `t`, `subject`, `rule`, `from`, `to`, `action`, `until` (relative; `never` is
permanent), and `shadow`, `late` where true.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from penaltybox.contracts.events import Command, Decision, Outcome, Penalty
from penaltybox.contracts.policy_file import load_policy
from penaltybox.contracts.subjects import Canonicaliser

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penaltybox.contracts.policy import Policy

START_MS = 1_766_400_000_000
_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
Event = Decision | Outcome | Command


@dataclass(frozen=True)
class Delivery:
    """An event as a worker gets it; `policy` is the one in force."""

    event: Event
    broker_ms: int
    late: bool
    policy: Policy


@dataclass(frozen=True)
class Line:
    """A line of decisions.jsonl as it is read aloud: what happens, from when to when."""

    first_ms: int
    last_ms: int
    words: str
    subjects: frozenset[str]
    """Values and subjects that it names."""


@dataclass
class Scenario:
    """A folder that was read."""

    name: str
    title: str
    deliveries: list[Delivery] = field(default_factory=list)
    expected: list[dict[str, Any]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


def read_scenario(folder: Path) -> Scenario:
    policy = load_policy(folder / "policy.yaml")
    title = (folder / "policy.yaml").read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    scenario = Scenario(folder.name, title)
    for number, line in enumerate(_lines(folder / "decisions.jsonl"), 1):
        if line.keys() == {"policy"}:
            policy = load_policy(folder / line["policy"])
            scenario.lines.append(_remark(scenario, f"the policy becomes {line['policy']}"))
        elif line.keys() == {"again"}:
            scenario.deliveries += list(scenario.deliveries)
            scenario.lines.append(_remark(scenario, "all of the above is delivered once more"))
        else:
            words = _words(line)
            new = list(_expand(number, line, policy))
            times = [min(one.event.ts, one.broker_ms) for one in new]
            scenario.deliveries += new
            scenario.lines.append(Line(times[0], times[-1], words, _named(new)))
    scenario.expected = list(_lines(folder / "expected.jsonl"))
    return scenario


def _remark(scenario: Scenario, words: str) -> Line:
    at_ms = scenario.lines[-1].last_ms
    return Line(at_ms, at_ms, words, frozenset())


def _named(deliveries: list[Delivery]) -> frozenset[str]:
    found: set[str] = set()
    for delivery in deliveries:
        event = delivery.event
        if isinstance(event, Command):
            found.add(event.subject)
        else:
            found |= {Canonicaliser().subject(*pair) for pair in event.subjects.items()}
    return frozenset(found)


def _words(line: dict[str, Any]) -> str:
    times = f"{line['times']} x " if line.get("times", 1) > 1 else ""
    if "verb" in line:
        options = [f"{name}={line[name]}" for name in ("level", "keep_level", "grace_ms", "for_ms") if name in line]
        return " ".join(["by hand:", line["verb"], *options])
    if "label" in line:
        return f"{times}outcome {line['label']}"
    parts = [line["action"], line.get("reason", ""), " ".join(line.get("violated", []))]
    if line.get("count", 1) > 1:
        parts.append(f"(stands for {line['count']})")
    if line.get("established"):
        parts.append("(established)")
    if line.get("enforced") is False:
        parts.append("(dry run)")
    if "handled" in line:
        parts.append(f"(handled {line['handled']} later)")
    return times + " ".join(filter(None, parts))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("//"):
            yield json.loads(line)


def _expand(number: int, line: dict[str, Any], policy: Policy) -> Iterator[Delivery]:
    times, every = line.pop("times", 1), since(line.pop("every", "0s"))
    handled, broker = since(line.pop("handled", "0s")), since(line.pop("broker", "0s"))
    start = START_MS + since(line.pop("t"))
    kind: type[Event] = Outcome if "label" in line else Command if "verb" in line else Decision
    extra = {"source": "test/1"} if kind is Decision else {}
    record = {"v": 1, "id": f"line{number}-{{n}}", **extra, **line}
    for n in range(times):
        ts = start + n * every
        text = json.dumps(record).replace("{n}", str(n))
        event = msgspec.convert({**json.loads(text), "ts": ts}, kind)
        yield Delivery(event, ts + broker, handled > policy.late_after_ms, policy)


def since(text: str) -> int:
    """Milliseconds of `1h5m`, `-30s`, `0s`."""
    sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
    parts = re.findall(r"(\d+)(ms|[dhms])", text)
    if "".join(amount + unit for amount, unit in parts) != text:
        raise ValueError(text)
    return sign * sum(int(amount) * _UNITS[unit] for amount, unit in parts)


def spoken(at_ms: int | None) -> str:
    """The reverse: an absolute time as it stands in a scenario."""
    if at_ms is None:
        return "never"
    rest = at_ms - START_MS
    sign, rest = ("-", -rest) if rest < 0 else ("", rest)
    found = ""
    for unit, size in _UNITS.items():
        if rest >= size:
            found += f"{rest // size}{unit}"
            rest %= size
    return sign + (found or "0s")


def line_of(penalty: Penalty) -> dict[str, Any]:
    """A penalty as a line of `expected.jsonl`."""
    line = {
        "t": spoken(penalty.ts),
        "subject": penalty.subject,
        "rule": penalty.rule,
        "from": penalty.from_,
        "to": penalty.to,
        "action": penalty.action,
        "until": spoken(penalty.until),
    }
    return line | {name: True for name in ("shadow", "late") if getattr(penalty, name)}
