"""CloudEvents 1.0: JSON, batches, and Kafka records as ``kcat -J`` prints them (binary mode in ``ce_`` headers).

The data of an event of the type `DECISION` is a decision in its wire form. Other events are read by a mapping, whose
fields are those of the event (``data.client.ip``, ``time``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from penaltybox.contracts.errors import BadEvent
from penaltybox.producers.adapters.json import read_document, read_rules
from penaltybox.producers.adapters.mapped import Mapped
from penaltybox.producers.adapters.own_records import carried
from penaltybox.producers.adapters.reading import Adapter, Format, Passed, Reading, Unmatched

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.producers.adapters.reading import Options, Read

DECISION: Final = "penaltybox.decision.v1"
PENALTY: Final = "penaltybox.penalty.v1"
STRUCTURED: Final = "application/cloudevents+json"
REQUIRED: Final = ("id", "source", "specversion", "type")
_LONGEST: Final = 1 << 20
_MOST_EVENTS: Final = 1_000
_NO_JSON: Final = Unmatched("not JSON, nor a JSON array of events")
_NO_EVENT: Final = Unmatched("not a CloudEvent: id, source, specversion 1.0 and type are required")
_NO_DECISION: Final = Unmatched("data that is no decision in its wire form")
_TOO_MANY: Final = Unmatched(f"a batch of more than {_MOST_EVENTS} events")
_EMPTY: Final = Passed("an empty batch")
_OTHER: Final = Passed("an event of another type; --option mapping=FILE reads those")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class CloudEvents(Adapter):
    """Reads documents, one a line."""

    longest: ClassVar[int] = _LONGEST

    def __init__(self, options: Options) -> None:
        self._options = options
        self._rules = read_rules(options) if options.values.get("mapping") else ()
        self._mapped = Mapped(options)

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        document = _document(line)
        if isinstance(document, list):
            if len(document) > _MOST_EVENTS:
                return _TOO_MANY
            return self._batch([self._event(_unpacked(one)) for one in document])
        told: Read = self._event(_unpacked(document))
        return told

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        document = _document(line)
        one = document[0] if isinstance(document, list) and document else document
        event = _unpacked(one)
        if event is None:
            return "wanted an object, an array of objects, or a Kafka record with headers"
        missing = [name for name in REQUIRED if not isinstance(event.get(name), str) or not event[name]]
        if missing:
            return f"missing: {', '.join(missing)}"
        try:
            self._decision(event)
        except BadEvent as error:
            return str(error)
        return ""

    def _batch(self, told: list[Any]) -> Read:
        """The readings of a batch; what the others were only if there is none."""
        readings = tuple(one for one in told if isinstance(one, Reading))
        if readings:
            return readings
        return next((one for one in told if isinstance(one, Unmatched)), told[0] if told else _EMPTY)

    def _event(self, event: dict[str, Any] | None) -> Any:
        if event is None:
            return _NO_JSON
        if event.get("specversion") != "1.0" or not all(
            isinstance(event.get(name), str) and event[name] for name in REQUIRED
        ):
            return _NO_EVENT
        if event["type"] != DECISION:
            return self._other(event)
        try:
            return self._decision(event)
        except BadEvent:
            return _NO_DECISION

    def _decision(self, event: Mapping[str, Any]) -> Reading:
        data = event.get("data")
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else _encode(data)
        return carried(raw, self._options.canonicaliser)

    def _other(self, event: dict[str, Any]) -> Any:
        if not self._rules:
            return _OTHER
        told = read_document(event, self._rules, self._mapped)
        if not isinstance(told, Reading) or told.id:
            return told
        # An event is known by source and id together; ids alone may come twice.
        parts = "\0".join((event["source"], event["id"])).encode("utf-8", "surrogatepass")
        return msgspec.structs.replace(told, id=hashlib.blake2b(parts, digest_size=16).hexdigest())


def _document(line: bytes) -> Any:
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _unpacked(document: Any) -> dict[str, Any] | None:
    """The event's attributes and data; None if the document is no object."""
    if not isinstance(document, dict):
        return None
    headers = _headers(document.get("headers"))
    if headers:
        record = _from_record(headers, document)
        return None if record is None else _with_data(record)
    return _with_data(document)


def _with_data(document: dict[str, Any]) -> dict[str, Any]:
    """The event with its data as JSON, where it is JSON inside of a text or of base64."""
    if "data" not in document and isinstance(document.get("data_base64"), str):
        try:
            text = base64.b64decode(document["data_base64"], validate=True).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            return document
        document = {**document, "data": text}
    if isinstance(document.get("data"), str):
        inner = _document(document["data"].encode("utf-8", "surrogatepass"))
        if isinstance(inner, dict):
            document = {**document, "data": inner}
    return document


def _headers(found: Any) -> dict[str, str]:
    """Of a record: an object, or names and values in turn."""
    if isinstance(found, list):
        found = dict(zip(found[::2], found[1::2], strict=False)) if all(isinstance(one, str) for one in found) else {}
    if not isinstance(found, dict):
        return {}
    return {name.lower(): value for name, value in found.items() if isinstance(value, str)}


def _from_record(headers: dict[str, str], record: dict[str, Any]) -> dict[str, Any] | None:
    value = next((record[name] for name in ("payload", "value", "body") if name in record), None)
    if headers.get("content-type", "").partition(";")[0].strip() == STRUCTURED:
        inner = _document(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else value
        return inner if isinstance(inner, dict) else None
    return {name[3:]: text for name, text in headers.items() if name[:3] in ("ce_", "ce-")} | {"data": value}


_DATA: Final = (
    b'{"v":1,"id":"01K3ZB5Q0V7M2X8R4T6Y9WABCD","ts":1779012303123,"source":"shop/edge-1","scenario":"login",'
    b'"action":"deny","reason":"over_limit","violated":["ip:login"],"subjects":{"ip":"203.0.113.7"},"status":429}'
)
_EVENT: Final = (
    b'{"specversion":"1.0","id":"01K3ZB5Q0V7M2X8R4T6Y9WABCD","source":"/penaltybox/shop/edge-1",'
    b'"type":"penaltybox.decision.v1","time":"2026-05-17T10:05:03.123Z","datacontenttype":"application/json",'
    b'"data":' + _DATA + b"}"
)
FORMAT: Final = Format(
    "cloudevents",
    CloudEvents,
    (
        _EVENT,
        b"[" + _EVENT + b"]",
        (
            b'{"topic":"events","partition":0,"offset":7,"ts":1779012303123,"headers":["ce_specversion","1.0","ce_id",'
            b'"e1","ce_source","/shop","ce_type","penaltybox.decision.v1","content-type","application/json"],'
            b'"payload":' + msgspec.json.encode(_DATA.decode()) + b"}"
        ),
        b'{"specversion":"1.0","id":"1","source":"/shop","type":"com.example.order.placed","data":{"order":7}}',
    ),
    {"mapping": "a YAML file with rules for events of other types, as for json; fields are the event's: data.client"},
)
