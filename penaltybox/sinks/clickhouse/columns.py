"""Events as Arrow columns: one list per column, built column by column, because rows are what makes Python slow."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyarrow import compute

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.ids import stable_id
from penaltybox.contracts.subjects import MAX_VALUE_BYTES, Canonicaliser, canonical_ip, most_specific

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penaltybox.contracts.events import DeadLetter, Decision, Outcome, Penalty

    Columns = dict[str, pa.Array]

OWN_COLUMNS: Final = ("user", "device", "ip", "api_key")
"""Dimensions with a column of their own; all others share the map `others`."""

_INT64_MAX: Final = (1 << 63) - 1
_LAST_MS: Final = 10_413_791_999_999
"""2299-12-31T23:59:59.999Z, the last instant of a DateTime64."""
_MILLIS: Final = pa.timestamp("ms", tz="UTC")
_MEMO: Final = 200_000
_PREFIX_V6: Final = 48
_SAFE: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"^(?:{_OCTET}\.){{3}}{_OCTET}$"
_encode_json = msgspec.json.encode


class Memo(dict[Any, Any]):
    """A bounded cache that fills itself: `memo[key]` is `make(key)`."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> Any:
        if len(self) >= _MEMO:
            self.clear()
        made = self[key] = self._make(key)
        return made


class ColumnBuilder:
    """Makes the columns of one table from decoded events. One per process: it remembers canonical forms, bounded.

    Args:
        canonicaliser: the one that judged the events' subjects.
    """

    def __init__(self, canonicaliser: Canonicaliser) -> None:
        self._canonicaliser = canonicaliser
        self._values = {name: Memo(self._value_maker(name)) for name in OWN_COLUMNS}
        self._prefixes = Memo(ip_prefix)
        self._charged = Memo(charged_limit)

    def _value_maker(self, dimension: str) -> Callable[[str | None], str | None]:
        def value(raw: str | None) -> str | None:
            return None if raw is None else self._canonicaliser.subject(dimension, raw).split(":", 1)[1]

        return value

    def _own(self, dimension: str, subjects: Sequence[Mapping[str, str]]) -> pa.Array:
        """The canonical values of a dimension that has a column of its own, null where there is none."""
        values = [s.get(dimension) for s in subjects]
        given = pa.array(values, pa.string())
        if dimension == "ip" and dimension not in self._canonicaliser.hashed:
            if _are_ipv4(given):
                return given
        elif _are_canonical(given):
            return given
        canonical = self._values[dimension]
        return pa.array([canonical[value] for value in values], pa.string())

    def _ip_prefix(self, ip: pa.Array) -> pa.Array:
        if _are_ipv4(ip):
            return compute.replace_substring_regex(ip, r"[0-9]+$", "0/24")
        return pa.array([self._prefixes[value] for value in ip.to_pylist()], pa.string())

    def decisions(self, events: Sequence[Decision]) -> Columns:
        """Columns of table `decisions`, without those of `place`.

        Raises:
            BadEvent: a subject that has no canonical form, where subjects were not judged before.
        """
        subjects = [e.subjects for e in events]
        own = {name: self._own(name, subjects) for name in OWN_COLUMNS}
        charged = [self._charged[e.violated] for e in events]
        return {
            "ts": _instants([e.ts for e in events]),
            "id": _texts([e.id for e in events]),
            "source": _texts([e.source for e in events]),
            "scenario": _texts([e.scenario for e in events]),
            "route": _texts([e.route for e in events]),
            "action": _texts([e.action for e in events]),
            "reason": _texts([e.reason or "" for e in events]),
            "violated": _lists([e.violated for e in events]),
            "dimension": _texts([dimension for dimension, _ in charged]),
            "limit_name": _texts([limit for _, limit in charged]),
            "subject": _texts(
                [self._subject(d, e) if d else "" for (d, _), e in zip(charged, events, strict=True)],
            ),
            **{name: values.fill_null("") for name, values in own.items()},
            "ip_prefix": self._ip_prefix(own["ip"]).fill_null(""),
            "others": _maps(self._others(subjects)),
            "established": pa.array([e.established for e in events], pa.bool_()),
            "status": pa.array([e.status for e in events], pa.uint16()),
            "limit_value": _integers([e.limit for e in events]),
            "window_s": _integers([e.window_s for e in events]),
            "remaining": _integers([e.remaining for e in events]),
            "retry_after_s": _integers([e.retry_after_s for e in events]),
            "cost": pa.array([e.cost for e in events], pa.uint32()),
            "enforced": pa.array([e.enforced for e in events], pa.bool_()),
            "count": pa.array([e.count for e in events], pa.uint32()),
            "cached": pa.array([e.cached for e in events], pa.bool_()),
            "sample_weight": pa.array([1.0 / (e.sample_rate or 1.0) for e in events], pa.float64()),
            "attrs": _maps([e.attrs for e in events]),
        }

    def _subject(self, dimension: str, event: Decision) -> str:
        """Canonical subject of the charged dimension; '' when the decision doesn't carry it."""
        try:
            if "+" not in dimension:
                return self._canonicaliser.subject(dimension, event.subjects[dimension])
            fields = {"scenario": event.scenario, "route": event.route, "source": event.source}
            return self._canonicaliser.combination(dimension, {**fields, **event.subjects})
        except (KeyError, BadEvent):
            return ""

    def _others(self, subjects: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
        if set().union(*subjects) <= set(OWN_COLUMNS):
            return [{}] * len(subjects)
        subject = self._canonicaliser.subject
        return [
            {name: subject(name, value).split(":", 1)[1] for name, value in s.items() if name not in self._values}
            for s in subjects
        ]

    def outcomes(self, events: Sequence[Outcome]) -> Columns:
        """Columns of table `outcomes`."""
        subject = self._canonicaliser.subject
        return {
            "ts": _instants([e.ts for e in events]),
            "id": _texts([e.id for e in events]),
            "label": _texts([e.label for e in events]),
            "subjects": _lists([[subject(name, value) for name, value in e.subjects.items()] for e in events]),
            "ref": _texts([e.ref for e in events]),
        }

    def penalties(self, events: Sequence[Penalty]) -> Columns:
        """Columns of table `penalties`."""
        return {
            "ts": _instants([e.ts for e in events]),
            "id": _texts([e.id for e in events]),
            "subject": _texts([e.subject for e in events]),
            "dimension": _texts([e.subject.split(":", 1)[0] for e in events]),
            "from_rung": _texts([e.from_ for e in events]),
            "to_rung": _texts([e.to for e in events]),
            "from_ms": _integers([e.from_ms for e in events]),
            "to_ms": _integers([e.to_ms for e in events]),
            "action": _texts([e.action for e in events]),
            "until": _instants([None if e.until is None else min(max(e.until, 0), _LAST_MS) for e in events]),
            "rule": _texts([e.rule for e in events]),
            "policy_version": _texts([e.policy_version for e in events]),
            "evidence": _texts([_encode_json(e.evidence).decode() for e in events]),
            "trigger_id": _texts([e.trigger_id for e in events]),
            "seq": _integers([e.seq for e in events]),
            "origin": _texts([e.origin for e in events]),
            "actor": _texts([e.actor for e in events]),
            "note": _texts([e.note for e in events]),
            "shadow": pa.array([e.shadow for e in events], pa.bool_()),
            "late": pa.array([e.late for e in events], pa.bool_()),
        }

    def dead_letters(self, events: Sequence[DeadLetter], incarnation: str) -> Columns:
        """Columns of table `dead_letters`. Their id is where the bytes were: told twice, it is one letter."""
        ids = [stable_id(incarnation, e.topic, str(e.partition), str(e.offset), e.raw.hex()) for e in events]
        return {
            "ts": _instants([e.ts for e in events]),
            "id": _texts(ids),
            "reason": _texts([e.reason for e in events]),
            "detail": _texts([e.detail for e in events]),
            "source_topic": _texts([e.topic for e in events]),
            "source_partition": pa.array([e.partition for e in events], pa.int32()),
            "source_offset": _integers([e.offset for e in events]),
            "raw": pa.array([e.raw for e in events], pa.binary()),
        }


def place_columns(incarnation: str, partition: int, offsets: Sequence[int], logged_ms: Sequence[int]) -> Columns:
    """Columns that say where rows come from: one row per offset, with the broker's timestamp of each."""
    rows = len(offsets)
    return {
        "logged_at": _instants(logged_ms),
        "incarnation": pa.repeat(pa.scalar(incarnation, pa.string()), rows),
        "kafka_partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
        "kafka_offset": _integers(offsets),
    }


def claim(rows: pa.Table, stored_through: int) -> pa.Table:
    """The rows with the column that says how far their partition is stored when they are."""
    return rows.append_column("stored_through", pa.repeat(pa.scalar(stored_through, pa.int64()), rows.num_rows))


def charged_limit(violated: tuple[str, ...]) -> tuple[str, str]:
    """(dimension, limit) that a denial is charged to: the most specific violated one, the first of its limits."""
    if not violated:
        return "", ""
    names = [limit.split(":", 1)[0] for limit in violated]
    dimension = most_specific(names)
    return dimension, violated[names.index(dimension)]


def ip_prefix(ip: str | None) -> str:
    """The neighbourhood of a canonical address: /24 of IPv4, /48 of IPv6; '' of a hashed one."""
    if not ip:
        return ""
    try:
        if ":" in ip:
            return canonical_ip(ip.split("/", 1)[0], _PREFIX_V6)
        return f"{canonical_ip(ip).rpartition('.')[0]}.0/24"
    except BadEvent:
        return ""


def storable(ts_ms: int) -> bool:
    """Whether ClickHouse's calendar has this instant."""
    return 0 <= ts_ms <= _LAST_MS


def _are_canonical(values: pa.Array) -> bool:
    """Whether values are canonical as they are: 1 to 128 safe characters each. One look at the bytes of all."""
    lengths = compute.binary_length(values)
    bounds = compute.min_max(lengths).as_py()
    if bounds["min"] is None:
        return True
    text = memoryview(values.buffers()[2])[: compute.sum(lengths).as_py()]
    return 1 <= bounds["min"] <= bounds["max"] <= MAX_VALUE_BYTES and not bytes(text).translate(None, _SAFE)


def _are_ipv4(values: pa.Array) -> bool:
    """Whether values are IPv4 addresses in canonical form (or null)."""
    return compute.all(compute.match_substring_regex(values, _IPV4), min_count=0).as_py()  # type: ignore[no-any-return]


def _texts(values: list[str]) -> pa.Array:
    return pa.array(values, pa.string())


def _instants(values: Iterable[int | None]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(_MILLIS)


def _integers(values: Sequence[int | None]) -> pa.Array:
    try:
        return pa.array(values, pa.int64())
    except (OverflowError, pa.ArrowInvalid):  # JSON knows no largest integer
        return pa.array([v if v is None else max(min(v, _INT64_MAX), -_INT64_MAX) for v in values], pa.int64())


def _offsets(lengths: Iterable[int]) -> pa.Array:
    return pa.array(accumulate(lengths, initial=0), pa.int32())


def _lists(values: Sequence[Sequence[str]]) -> pa.Array:
    return pa.ListArray.from_arrays(_offsets(map(len, values)), _texts(list(chain.from_iterable(values))))


def _maps(values: Sequence[Mapping[str, str]]) -> pa.Array:
    if not any(values):
        return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(values) + 1), _texts([]), _texts([]))
    keys = list(chain.from_iterable(values))
    items = [item for value in values for item in value.values()]
    return pa.MapArray.from_arrays(_offsets(map(len, values)), _texts(keys), _texts(items))
