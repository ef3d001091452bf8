"""What a limiter is asked about an HTTP request, whatever strangers write into it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import encode
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.http.client_address import ClientAddresses
from penaltybox.producers.http.requests import Asked, Facts, RequestReader, Sources
from penaltybox.producers.limiter import Limiter

NOW = 1_766_400_000_000
POLICY = parse_policy("""
limits:
  login: {device+route: [{name: burst, limit: 5, window: 1m}], ip: [{name: soft, limit: 100, window: 1m}]}
  web: {user: [{name: a, limit: 9, window: 1m}], device: [{name: a, limit: 9, window: 1m}]}
scenarios:
  login: {routes: [POST /login, /api/login], costs: {"* /api/login/bulk": 20, "POST *": 2}}
  web: {routes: [/, GET /login/help]}
""")
DEVICE = "3f9c1d2e-aaaa-bbbb-cccc-000000000001"
SOURCES = Sources(
    subjects={
        "device": ("header:X-Device-Id", "cookie:did"),
        "api_key": ("header:X-API-Key", "header:Authorization"),
        "user": ("proxy-header:X-User",),
        "activity": ("header:X-Activity",),
    },
    idempotency_header="Idempotency-Key",
)


def reader(**changed: Any) -> RequestReader:
    """A reader with sources for everything, behind a proxy at 10.0.0.1."""
    return RequestReader(POLICY, SOURCES, addresses=ClientAddresses(["10.0.0.1"], "X-Forwarded-For"), **changed)


def read(*headers: tuple[str, str], peer: str | None = "192.0.2.1", **said: Any) -> Asked:
    """What a POST to /login with these headers is asked as."""
    return reader().read(Facts("POST", "/login", headers, peer), NOW, **said)


def test_a_request_becomes_a_question() -> None:
    """Scenario, route, cost, address, device and user come together; the API key is not in it in clear."""
    asked = read(("x-device-id", DEVICE), ("X-API-Key", "sk_live_secret"), user="10086", established=True)
    request = asked.request
    key = hashlib.sha256(b"sk_live_secret").hexdigest()[:32]
    assert request.subjects == {"ip": "192.0.2.1", "device": DEVICE, "api_key": key, "user": "10086"}
    assert (request.scenario, request.route, request.cost, request.established) == ("login", "POST /login", 2, True)
    assert (request.ts_ms, asked.ignored, asked.client.how) == (NOW, (), "peer")


@pytest.mark.parametrize(
    ("method", "path", "scenario"),
    [
        ("POST", "/login", "login"),
        ("post", "/login/", "login"),
        ("POST", "//login", "login"),
        ("POST", "/./login/../login", "login"),
        ("POST", "/x/../../login", "login"),
        ("POST", "/loginx", "web"),
        ("POST", "/LOGIN", "web"),
        ("GET", "/login", "web"),
        ("HEAD", "/login/help", "web"),
        ("HEAD", "/api/login", "login"),
        ("GET", "", "web"),
        ("\x00", "/login", "web"),
    ],
)
def test_no_spelling_of_a_path_leaves_its_scenario(method: str, path: str, scenario: str) -> None:
    """Doubled slashes, dots and HEAD instead of GET end where the server would end."""
    assert reader().read(Facts(method, path), NOW).request.scenario == scenario


def test_a_dynamic_segment_is_no_key() -> None:
    """A thousand wallets are one route, so a limit on device and route holds over all of them."""
    ways_in = reader()
    asked = [
        ways_in.read(Facts("POST", f"/wallet/0x{n:040x}/pay/{n}", [("X-Device-Id", DEVICE)]), NOW, scenario="login")
        for n in range(1000)
    ]
    assert {one.request.route for one in asked} == {"POST /wallet/{text}/pay/{n}"}
    limiter = Limiter(POLICY.limits, source="test/1")
    assert sum(limiter.judge(one.request).allowed for one in asked) == 2  # 5 in a minute, at a cost of 2


@pytest.mark.parametrize(
    ("method", "template", "route"),
    [
        ("POST", "/coupons/{id}/claim", "POST /coupons/{id}/claim"),
        ("HEAD", "coupons/<int:id>/claim", "GET /coupons/<int:id>/claim"),
        ("BREW", "/pot", "INVALID"),
        ("GET", "/é\r\n", "GET /%C3%A9%0D%0A"),
    ],
)
def test_the_frameworks_template_is_the_route(method: str, template: str, route: str) -> None:
    """A template is taken over in printable ASCII; methods that nobody has are one route."""
    assert reader().read(Facts(method, "/x", template=template), NOW).request.route == route


def test_a_long_template_is_cut_and_stays_its_own() -> None:
    """Two templates with the same first 256 characters are two routes."""
    routes = {reader().read(Facts("GET", "/", template="/" + "a" * 300 + end), NOW).request.route for end in "xy"}
    assert len(routes) == 2
    assert {len(route) for route in routes} == {256}


@pytest.mark.parametrize(
    ("headers", "device", "ignored"),
    [
        ([], None, ()),
        ([("X-Device-Id", "")], None, ("device:empty",)),
        ([("X-Device-Id", "abc")], None, ("device:too_short",)),
        ([("X-Device-Id", "x" * 10_240)], None, ("device:too_long",)),
        ([("X-Device-Id", "12345678\r\nX: y")], None, ("device:characters",)),
        ([("X-Device-Id", "gerät-123456")], None, ("device:characters",)),
        ([("X-Device-Id", "00000000-0000-0000-0000-000000000000")], None, ("device:everybodys",)),
        ([("X-Device-Id", DEVICE), ("X-Device-Id", "another-device")], None, ("device:empty",)),
        ([("X-Device-Id", DEVICE), ("X-Device-Id", DEVICE)], DEVICE, ()),
        ([("X-Device-Id", "null"), ("Cookie", f"a=b; did={DEVICE}; did=other-one")], DEVICE, ("device:too_short",)),
        ([("Cookie", f'did="{DEVICE}"')], DEVICE, ()),
        ([("Cookie", "did; =; ;;=did"), ("cookie", f"did={DEVICE}")], DEVICE, ()),
    ],
)
def test_a_device_is_usable_or_missing(headers: list[tuple[str, str]], device: str | None, ignored: Any) -> None:
    """What is no fingerprint is told with its reason and counts as missing; nothing is cut into a usable one."""
    ways_in = reader()
    asked = ways_in.read(Facts("POST", "/login", headers, "192.0.2.1"), NOW)
    assert asked.request.subjects.get("device") == device
    assert asked.ignored == ignored
    assert dict(ways_in.ignored) == dict.fromkeys(ignored, 1)


def test_only_a_trusted_proxy_names_the_user() -> None:
    """X-User of a stranger is nothing; of the gateway it is the user, and the application's word is above it."""
    forged = ("X-User", "10086")
    assert "user" not in read(forged).request.subjects
    through = read(forged, ("X-Forwarded-For", "203.0.113.9"), peer="10.0.0.1")
    assert through.request.subjects == {"ip": "203.0.113.9", "user": "10086"}
    assert read(forged, peer="10.0.0.1", user="7").request.subjects["user"] == "7"
    with pytest.raises(ConfigurationError, match="everybody be anybody"):
        Sources(subjects={"user": ("header:X-User",)})


def test_an_api_key_is_never_in_clear() -> None:
    """From a header, from Authorization with its scheme, of any length, and from the application: digests."""
    secret = "sk_" + "z" * 4_000
    for asked in (
        read(("X-API-Key", secret)),
        read(("Authorization", f"Bearer {secret}")),
        read(subjects={"api_key": secret}),
    ):
        assert asked.request.subjects["api_key"] == hashlib.sha256(secret.encode()).hexdigest()[:32]
        assert "sk_" not in str(asked)
    assert read(("X-API-Key", "x" * 10_240)).ignored == ("api_key:too_long",)


def test_an_applications_value_is_never_missing_because_of_its_form() -> None:
    """Names that are too long or have control characters count under a digest that no other name can pretend to be."""
    long = "u" * 200
    (first, second, third) = (
        read(user=one).request.subjects["user"]
        for one in (long, long + "\n", "sha256-" + hashlib.sha256(b"x").hexdigest())
    )
    assert first == "sha256-" + hashlib.sha256(long.encode()).hexdigest()
    assert len({first, second, third, read(user=first).request.subjects["user"]}) == 4
    assert len(first) <= 128


def test_what_the_application_says_wrongly_is_told() -> None:
    """No dimension, an address that is none, an empty value, too many of them: ignored with a reason, not raised."""
    said = {"Bad": "1", "route": "x", "ip": "localhost", "x": ""} | {f"d{n}": "1" for n in range(20)}
    asked = read(subjects=said)
    assert asked.request.subjects["ip"] == "192.0.2.1"
    assert len(asked.request.subjects) == 16
    assert set(asked.ignored) == {"subjects:dimension", "ip:characters", "x:empty", "subjects:too_many"}
    assert read(subjects={"ip": "::ffff:203.0.113.7"}).request.subjects["ip"] == "203.0.113.7"


@pytest.mark.parametrize(("cost", "told"), [(None, 20), (3, 3), (0, 0), (-7, 0), (1 << 40, 1 << 31)])
def test_a_cost_is_the_policys_or_the_applications(cost: int | None, told: int) -> None:
    """The first pattern that matches the route; the application's own number is bounded and never gives quota back."""
    facts = Facts("POST", "/api/login/bulk")
    assert reader().read(facts, NOW, cost=cost).request.cost == told


def test_a_clients_request_id_is_not_the_events() -> None:
    """Two requests of one id would count as one, so ids are made here."""
    same = ("X-Request-ID", "1")
    assert read(same).request.id != read(same).request.id


@pytest.mark.parametrize("text", ["", "short", "x" * 129, "a b c d e f", "key\r\nother", "ключ-ключ"])
def test_an_idempotency_key_that_is_none_is_ignored(text: str) -> None:
    """Such a request cannot be refunded, and goes on."""
    asked = read(("Idempotency-Key", text))
    assert (asked.request.idempotency_key, asked.ignored) == ("", ("idempotency_key:invalid",))


def test_equal_idempotency_keys_of_two_clients_are_two() -> None:
    """A key counts for its client and scenario only; the quotes of the header's draft don't matter."""
    key = "8e03978e-40d5-43dd-bc93-6894a57f9324"
    mine = read(("Idempotency-Key", key), user="1").request.idempotency_key
    assert mine == read(("Idempotency-Key", f'"{key}"'), user="1").request.idempotency_key
    assert mine != read(("Idempotency-Key", key), user="2").request.idempotency_key
    assert mine != read(("Idempotency-Key", key), user="1", scenario="web").request.idempotency_key
    assert read(("Idempotency-Key", key), peer=None).request.idempotency_key == ""
    assert read(idempotency_key="order-17").request.idempotency_key == "order-17"


def test_a_raw_header_chain_is_never_a_key() -> None:
    """Without a believed header a chain of any length changes nothing; with one, its right end counts alone."""
    chain = ", ".join(f"198.51.100.{n % 250}" for n in range(900))
    headers = [("X-Forwarded-For", chain), ("Forwarded", "for=6.6.6.6")]
    plain = RequestReader(POLICY).read(Facts("GET", "/", headers, "10.0.0.1"), NOW)
    assert plain.request.subjects == {"ip": "10.0.0.1"}
    assert read(*headers, peer="10.0.0.1").request.subjects == {"ip": "198.51.100.149"}


def test_readers_of_settings() -> None:
    """Settings name the headers; a header for the client's address can be the caller's default."""
    values = Settings(user_header="X-User", device_cookie="did", trusted_proxies=("10.0.0.1",))
    ways_in = RequestReader.of(values, POLICY, header="X-Forwarded-For")
    headers = [("X-User", "7"), ("Cookie", f"did={DEVICE}"), ("X-Forwarded-For", "203.0.113.9")]
    asked = ways_in.read(Facts("GET", "/", headers, "10.0.0.1"), NOW)
    assert asked.request.subjects == {"ip": "203.0.113.9", "user": "7", "device": DEVICE}


def test_a_new_policy_is_read_at_once() -> None:
    """Routes and costs are those of the policy that was put in last."""
    ways_in = reader()
    ways_in.replace_policy(parse_policy("limits: {x: {}}\nscenarios: {x: {routes: [/login], costs: {'*': 7}}}"))
    asked = ways_in.read(Facts("GET", "/login"), NOW)
    assert (asked.request.scenario, asked.request.cost) == ("x", 7)
    assert list(ways_in.policy.limits) == ["x"]


@pytest.mark.parametrize(
    "subjects", [{"Ip": ()}, {"ip": ()}, {"route": ()}, {"a": ("query:x",)}, {"a": ("header:a b",)}]
)
def test_sources_that_mean_nothing_are_refused(subjects: dict[str, tuple[str, ...]]) -> None:
    """A wrong dimension or place is told at the start."""
    with pytest.raises(ConfigurationError):
        RequestReader(POLICY, Sources(subjects=subjects))


ANY = st.text(max_size=200) | st.sampled_from([DEVICE, "203.0.113.9", "", "\x00", "a\r\nb", "{}", "%7D", "+", ":"])
NAMES = st.sampled_from(
    [
        "X-Device-Id",
        "Cookie",
        "X-API-Key",
        "Authorization",
        "X-User",
        "X-Activity",
        "Idempotency-Key",
        "X-Forwarded-For",
    ]
)


@given(
    st.text(max_size=8) | st.sampled_from(["GET", "HEAD"]), ANY, st.lists(st.tuples(NAMES, ANY), max_size=8),
    ANY | st.none(), ANY, ANY | st.none(), st.dictionaries(st.text(max_size=4) | st.just("device"), ANY, max_size=3),
)  # fmt: skip
def test_nothing_that_is_sent_fails_or_forges(
    method: str, path: str, headers: list[tuple[str, str]], peer: str | None, template: str, user: str | None, said: Any
) -> None:
    """Whatever comes, a limiter can decide, the event is valid, and every subject's key holds no foreign sign."""
    facts = Facts(method, path, headers, peer, template)
    request = reader().read(facts, NOW, user=user, subjects=said, attrs=said).request
    assert request.route.isascii()
    assert request.route.isprintable()
    assert len(request.route) <= 256
    for dimension, value in request.subjects.items():
        canonical = Canonicaliser().subject(dimension, value)
        assert not set("{} +\r\n") & set(canonical.removeprefix(dimension))
    (decision, *_) = Limiter(POLICY.limits, source="test/1").decide(request)
    if request.subjects:
        assert decode_decision(encode(decision), NOW, Canonicaliser()).id == request.id


@given(ANY, ANY, ANY, ANY)
def test_two_clients_collide_only_if_they_send_the_same(user: str, activity: str, other: str, another: str) -> None:
    """A pair of values has the key of another pair only if both pairs are equal: separators cannot be forged."""
    canonicaliser = Canonicaliser()

    def key(user: str, activity: str) -> str:
        subjects = read(user=user or "u", subjects={"activity": activity or "a"}).request.subjects
        return canonicaliser.combination("activity+user", subjects)

    same = ((user or "u"), (activity or "a")) == ((other or "u"), (another or "a"))
    assert (key(user, activity) == key(other, another)) == same
