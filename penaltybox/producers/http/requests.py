"""What a limiter is asked about an HTTP request: its scenario, its route, and whom it counts for.

Everything here but what the application itself says comes from strangers. A value that cannot be used is never cut
into one that can: it counts as missing, so the scenario's `missing` decides, and it is counted here with its reason.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from penaltybox.contracts.errors import ConfigurationError, shown
from penaltybox.contracts.ids import stable_id, ulid
from penaltybox.contracts.policy_rules import matches
from penaltybox.contracts.subjects import DIMENSION, MAX_VALUE_BYTES, most_specific
from penaltybox.producers.http.client_address import Client, ClientAddresses
from penaltybox.producers.http.fingerprints import Fingerprints
from penaltybox.producers.http.paths import counted_method, plain_path, template_route
from penaltybox.producers.http.testimony import FIELDS_OF_DECISIONS, SECRETS, said_subjects, secret_name, whole_cost
from penaltybox.producers.limiter import Request
from penaltybox.producers.routes import Routes
from penaltybox.producers.scenario_map import ScenarioMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings

MAX_SECRET: Final = 8192
MAX_ATTRS: Final = 8
_MAX_COSTS: Final = 10_000
_KINDS: Final = ("header", "cookie", "proxy-header")
_FIELD: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_IDEMPOTENCY: Final = re.compile(r'"?([A-Za-z0-9._~:+/=-]{8,128})"?', re.ASCII)
_NOT_FROM_CLIENTS: Final = FIELDS_OF_DECISIONS | {"ip"}


class Facts(NamedTuple):
    """What HTTP says about a request.

    Attributes:
        method: as sent.
        path: decoded, without the query (`paths.target_path` makes it of a raw request target).
        headers: (name, value) in the order in which they came.
        peer: address of the connection's other end; None, empty or a path for a Unix socket.
        template: the framework's route (``/coupons/{id}/claim``), if it is known.
    """

    method: str
    path: str
    headers: Sequence[tuple[str, str]] = ()
    peer: str | None = None
    template: str = ""


class Source(NamedTuple):
    """Where a subject's value may stand: ``header:X-Device-Id``, ``cookie:device``, ``proxy-header:X-User``.

    A proxy-header is believed only of a trusted proxy, which must remove what a client sends under that name.
    """

    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The source that a text says.

        Raises:
            ConfigurationError: it says none.
        """
        kind, colon, name = text.partition(":")
        if not colon or kind not in _KINDS or not _FIELD.fullmatch(name):
            raise ConfigurationError(
                f"request source: got {shown(text)}, wanted header:NAME, cookie:NAME or proxy-header:NAME"
            )
        return cls(kind, name if kind == "cookie" else name.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the subjects of requests stand.

    Raises:
        ConfigurationError: no dimension, no source, or one by which clients could name themselves: ``user`` is what
            the application says, or a proxy-header.
    """

    subjects: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"device": ("header:X-Device-Id",)})
    """Dimension -> its sources; of those with a usable value the first one counts."""
    secrets: frozenset[str] = SECRETS
    """Dimensions whose values are secrets: the first 32 hex digits of their SHA-256 stand for them everywhere."""
    idempotency_header: str = ""
    """``Idempotency-Key``: requests that have it can be refunded by it. Empty: clients have no say in this."""

    def __post_init__(self) -> None:
        for dimension, sources in self.subjects.items():
            if not DIMENSION.fullmatch(dimension) or dimension in _NOT_FROM_CLIENTS:
                raise ConfigurationError(f"request sources: {shown(dimension)} is no dimension that a request can name")
            if dimension == "user" and any(Source.parse(text).kind != "proxy-header" for text in sources):
                raise ConfigurationError(
                    "request sources: user from a header or cookie lets everybody be anybody; wanted "
                    "proxy-header:NAME, or the application's own word"
                )

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The sources that the settings name."""
        named = (
            ("user", "proxy-header", settings.user_header),
            ("api_key", "header", settings.api_key_header),
            ("device", "header", settings.device_header),
            ("device", "cookie", settings.device_cookie),
        )
        subjects: dict[str, list[str]] = {}
        for dimension, kind, name in named:
            if name:
                subjects.setdefault(dimension, []).append(f"{kind}:{name}")
        return cls(subjects=subjects)


class Asked(NamedTuple):
    """A request ready for a limiter, and what was found out on the way.

    Attributes:
        request: what the limiter is asked. Without any subject it is nobody's, and only `missing` can refuse it.
        client: whose address it is.
        ignored: what could not be used, ``dimension:reason``.
    """

    request: Request
    client: Client
    ignored: tuple[str, ...]


class _Rules:
    """What a policy says about reading requests; swapped as a whole, since requests are read by several threads."""

    def __init__(self, policy: Policy) -> None:
        self.scenarios = ScenarioMap.of(policy)
        self.policy: Final = policy
        self._costs: dict[tuple[str, str], int] = {}

    def cost(self, scenario: str, route: str) -> int:
        """The cost of the first pattern that matches; remembered, routes are few."""
        costs = self.policy.scenario(scenario).costs
        if not costs:
            return 1
        found = self._costs.get((scenario, route))
        if found is None:
            found = next((cost for pattern, cost in costs if matches(pattern, route)), 1)
            if len(self._costs) < _MAX_COSTS:
                self._costs[scenario, route] = found
        return found


class RequestReader:
    """Reads requests for one policy.

    Args:
        policy: which routes belong to which scenario, and what they cost.
        sources: where subjects stand.
        addresses: how the client's address is found; by default it is the peer's.
        fingerprints: which device ids are usable.
        routes: templates for paths of which no framework says any.

    `ignored` counts what could not be used, by dimension and reason.
    """

    def __init__(
        self,
        policy: Policy,
        sources: Sources | None = None,
        *,
        addresses: ClientAddresses | None = None,
        fingerprints: Fingerprints | None = None,
        routes: Routes | None = None,
    ) -> None:
        self.ignored: Counter[str] = Counter()
        self._rules = _Rules(policy)
        self._sources = sources or Sources()
        self._parsed = {
            dimension: tuple(Source.parse(text) for text in texts)
            for dimension, texts in self._sources.subjects.items()
        }
        self._addresses = addresses or ClientAddresses()
        self._fingerprints = fingerprints or Fingerprints()
        self._routes = routes or Routes()
        self._wanted = self._wanted_fields()

    @classmethod
    def of(cls, settings: Settings, policy: Policy, *, header: str = "") -> Self:
        """A reader as the settings say; `header` names the client where they don't."""
        addresses = ClientAddresses(settings.trusted_proxies, settings.client_ip_header or header)
        return cls(policy, Sources.of(settings), addresses=addresses)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._rules.policy

    def replace_policy(self, policy: Policy) -> None:
        """From now on requests are read for this policy; one that is being read is finished for the old one."""
        self._rules = _Rules(policy)

    def read(
        self,
        facts: Facts,
        now_ms: int,
        *,
        scenario: str | None = None,
        user: str | None = None,
        subjects: Mapping[str, str] | None = None,
        established: bool | None = None,
        cost: int | None = None,
        idempotency_key: str | None = None,
        attrs: Mapping[str, str] | None = None,
    ) -> Asked:
        """The question about a request. It never fails, whatever a client sends.

        Args:
            facts: what HTTP says.
            now_ms: the time; the request's id is made of it. A client's own request id is never used: two requests
                of one id count as one.
            scenario: what the application says instead of the policy's routes.
            user: the authenticated user, as the application knows him.
            subjects: more of what the application knows: dimension -> value. It wins over what the request says.
                Secrets (`Sources.secrets`) are replaced here too.
            established: whether that user is known and trusted.
            cost: what it costs; else the policy's `costs` say.
            idempotency_key: under which the application will refund it; else see `Sources.idempotency_header`.
            attrs: short texts for the event.
        """
        ignored: list[str] = []
        fields = self._fields(facts.headers)
        client = self._addresses.find(facts.peer, fields.get(self._addresses.header, ()))
        found = {} if client.address is None else {"ip": client.address}
        found |= self._from_request(fields, client, ignored)
        said = dict(subjects or {}) if user is None else {**(subjects or {}), "user": user}
        if said:
            found = said_subjects(said, found, ignored, self._sources.secrets)
        method, path = counted_method(facts.method), plain_path(facts.path)
        rules = self._rules
        name = rules.scenarios.scenario(method, path) if scenario is None else scenario
        route = template_route(method, facts.template) if facts.template else self._routes.template(method, path)
        request = Request(
            id=ulid(now_ms),
            ts_ms=now_ms,
            scenario=name,
            subjects=found,
            route=route,
            cost=rules.cost(name, route) if cost is None else whole_cost(cost),
            established=established,
            attrs=_attrs(attrs, ignored) if attrs else {},
            idempotency_key=idempotency_key or self._idempotency_key(fields, name, found, ignored),
        )
        if ignored:
            self.ignored.update(ignored)
        return Asked(request, client, tuple(ignored))

    def _wanted_fields(self) -> frozenset[str]:
        """Names of the header fields that are looked at."""
        sources = [source for parsed in self._parsed.values() for source in parsed]
        names = {"cookie" if source.kind == "cookie" else source.name for source in sources}
        return frozenset({*names, self._addresses.header, self._sources.idempotency_header.lower()} - {""})

    def _fields(self, headers: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
        fields: dict[str, list[str]] = {}
        for name, value in headers:
            lower = name.lower()
            if lower in self._wanted:
                fields.setdefault(lower, []).append(value)
        return fields

    def _from_request(self, fields: dict[str, list[str]], client: Client, ignored: list[str]) -> dict[str, str]:
        found = {}
        for dimension, sources in self._parsed.items():
            for source in sources:
                value = _value(source, fields, client)
                if value is None:
                    continue
                usable, reason = self._usable(dimension, value) if value else (None, "empty")
                if usable is not None:
                    found[dimension] = usable
                    break
                ignored.append(f"{dimension}:{reason}")
        return found

    def _usable(self, dimension: str, value: str) -> tuple[str | None, str | None]:
        """(value, None), or (None, why it cannot be used)."""
        if dimension in self._sources.secrets:
            return (secret_name(value), None) if len(value) <= MAX_SECRET else (None, "too_long")
        if dimension == "device":
            return self._fingerprints.check(value)
        if len(value) > MAX_VALUE_BYTES or len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES:
            return None, "too_long"
        return (value, None) if value.isprintable() else (None, "characters")

    def _idempotency_key(
        self, fields: dict[str, list[str]], scenario: str, subjects: dict[str, str], ignored: list[str]
    ) -> str:
        values = fields.get(self._sources.idempotency_header.lower(), ())
        if not values:
            return ""
        key = _IDEMPOTENCY.fullmatch(values[0].strip(" \t")) if len(values) == 1 else None
        if key is None:
            ignored.append("idempotency_key:invalid")
            return ""
        return scoped_key(scenario, subjects, key[1])


def scoped_key(scenario: str, subjects: Mapping[str, str], key: str) -> str:
    """A client's idempotency key as the limiter knows it: another client's equal key is another one."""
    if not subjects:
        return ""
    dimension = most_specific(subjects)
    return stable_id("idempotency", scenario, dimension, subjects[dimension], key)


def _value(source: Source, fields: dict[str, list[str]], client: Client) -> str | None:
    """What stands there; None for nothing. Empty also where several fields say different things."""
    if source.kind == "cookie":
        return _cookie(source.name, fields.get("cookie", ()))
    if source.kind == "proxy-header" and not client.through_proxy:
        return None
    values = fields.get(source.name)
    if not values:
        return None
    if any(value != values[0] for value in values):
        return ""
    value = values[0].strip(" \t")
    return value.partition(" ")[2].strip() if source.name == "authorization" else value


def _cookie(name: str, lines: Iterable[str]) -> str | None:
    """The first cookie of that name, which is the one of the most special path (RFC 6265)."""
    for line in lines:
        for pair in line.split(";"):
            key, equals, value = pair.partition("=")
            if equals and key.strip() == name:
                value = value.strip()
                return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
    return None


def _attrs(attrs: Mapping[str, str], ignored: list[str]) -> dict[str, str]:
    usable = {
        name: value
        for name, value in attrs.items()
        if len(name) <= MAX_VALUE_BYTES and len(value) <= MAX_VALUE_BYTES and f"{name}{value}".isprintable()
    }
    kept = dict(list(usable.items())[:MAX_ATTRS])
    if len(kept) < len(attrs):
        ignored.append("attrs:too_much")
    return kept
