"""CloudFront's standard logs, tab-separated (by their ``#Fields`` line) or JSON: 429, and the distribution's quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.producers.adapters.choices import KEYED_BY, known, status_of
from penaltybox.producers.adapters.reading import (
    NO_ADDRESS,
    NO_SUCH_TIME,
    Format,
    Passed,
    Unmatched,
    decoded,
)
from penaltybox.producers.adapters.request_log import RequestLog

if TYPE_CHECKING:
    from penaltybox.contracts.events import Reason
    from penaltybox.producers.adapters.reading import Options, Read

_HEADER: Final = (
    "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) "
    "cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes "
    "time-taken x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status "
    "fle-encrypted-fields c-port time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len "
    "sc-range-start sc-range-end"
)
_FIELDS: Final = _HEADER.split()[1:]
_HEAD: Final = b"#Fields:"
_QUOTAS: Final = frozenset({"LimitExceeded", "CapacityExceeded"})
_NO_LINE: Final = Unmatched("not a line with c-ip, sc-status and a time in the fields that #Fields names")
_NO_ANSWER: Final = Passed("a connection that ended before an answer (status 000)")
_COMMENT: Final = Passed("a header line")

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class CloudFront(RequestLog):
    """Reads requests. The log's own header says which fields there are; CloudFront encodes what clients send."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._fields = _FIELDS

    def begin(self, head: bytes) -> None:
        """See `Adapter.begin`: remembers the fields."""
        for line in head.split(b"\n")[:2]:
            if line.startswith(_HEAD):
                self._fields = decoded(line[len(_HEAD) :]).split()

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        if line.startswith(b"#"):
            self.begin(line)
            return _COMMENT
        found = self._values(line)
        client, code = found.get("c-ip"), found.get("sc-status")
        if not isinstance(client, str) or code is None:
            return _NO_LINE
        status = status_of(code)
        if status is None:
            return _NO_ANSWER
        ts_ms = self._time(found)
        if ts_ms is None:
            return NO_SUCH_TIME
        ip = self._options.address(client)
        if ip is None:
            return NO_ADDRESS
        kinds = {str(found.get("x-edge-result-type")), str(found.get("x-edge-detailed-result-type"))} & _QUOTAS
        target = self._options.targets.of(str(found.get("cs-method")), str(found.get("cs-uri-stem")))
        quota = next(iter(kinds), "")
        limit = quota or (f"status_{status}" if status in self._refusals else "")
        reason: Reason | None = "over_limit" if limit else None
        return self._request(ts_ms, status, {"ip": ip}, target, reason, limit, "shared" if quota else "")

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        if line.startswith(b"{"):
            return ""
        count = line.count(b"\t") + 1
        return f"{count} fields, wanted {len(self._fields)}: {' '.join(self._fields[:12])} …"

    def _values(self, line: bytes) -> dict[str, Any]:
        if line.startswith(b"{"):
            try:
                return _decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return {}
        values = decoded(line).split("\t")
        # Exactly as many as were named: a field more or less would move all others.
        return dict(zip(self._fields, values, strict=True)) if len(values) == len(self._fields) else {}

    def _time(self, found: dict[str, Any]) -> int | None:
        exact = found.get("timestamp(ms)")
        if isinstance(exact, int | float | str) and known(str(exact)):
            return self._times.millis(exact)
        return self._times.rfc3339(f"{found.get('date')}T{found.get('time')}Z")


def _sample(*values: str) -> bytes:
    filled = dict.fromkeys(_FIELDS, "-") | dict(
        zip(
            ("date", "time", "c-ip", "cs-method", "cs-uri-stem", "sc-status", "x-edge-result-type"), values, strict=True
        )
    )
    filled |= {"cs(User-Agent)": "Mozilla/5.0%20(X11)", "x-forwarded-for": "-", "cs-uri-query": "x=1"}
    return "\t".join(filled.values()).encode()


FORMAT: Final = Format(
    "cloudfront",
    CloudFront,
    (
        b"#Version: 1.0",
        _HEADER.encode(),
        _sample("2026-05-17", "10:05:03", "203.0.113.7", "POST", "/login", "429", "Error"),
        _sample("2026-05-17", "10:05:04", "2001:db8::7", "GET", "/cart", "200", "Miss"),
        (
            b'{"timestamp(ms)":"1779012305123","date":"2026-05-17","time":"10:05:05","c-ip":"203.0.113.8",'
            b'"cs-method":"GET","cs-uri-stem":"/","sc-status":"503","x-edge-result-type":"LimitExceeded"}'
        ),
    ),
    {"keyed-by": KEYED_BY},
)
