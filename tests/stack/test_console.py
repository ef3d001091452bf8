"""`penaltybox console` as a process on real servers: its API, who may use it, what it does while servers are away."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jsonschema
import msgspec
import pytest

from penaltybox.cli.console_page.application import page_files
from penaltybox.cli.console_page.routes import PREFIX, ROUTES
from penaltybox.cli.fleet import environment_of
from penaltybox.contracts.settings import Settings
from tests.servers import fresh_name
from tests.stack.console_world import HOSTILE, OFFICE, TOKEN, Console, World
from tests.stack.decision_service import fetch
from tests.waiting import block_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.stack


def validate(console: Console, path: str, name: str, answer: Any, status: str = "200") -> None:
    """An answer is of the form that the served description says."""
    description = json.loads(fetch(console.port, f"{PREFIX}/openapi.json").body)
    content = description["paths"][path][name]["responses"][status]["content"]
    (schema,) = [one["schema"] for one in content.values()]
    jsonschema.Draft202012Validator({**schema, "components": description["components"]}).validate(answer)


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if one.answer and one.method == "GET"], ids=lambda one: one.name
)
def test_answers_are_of_the_form_that_is_described(console: Console, route: Any) -> None:
    """Every answer passes the schema of the served OpenAPI description, and has something in it."""
    query = "?subject=device:rack-1" if route.name == "subject" else ""
    answer = console.get(route.path + query)
    validate(console, route.path, "get", answer)
    if "rows" in answer:
        assert answer["rows"]


def test_the_description_names_every_route_and_no_other(console: Console) -> None:
    """What is described answers, and what is not described is not there."""
    paths = json.loads(fetch(console.port, f"{PREFIX}/openapi.json").body)["paths"]
    assert {(path, method.upper()) for path, one in paths.items() for method in one} == {
        (route.path, route.method) for route in ROUTES
    }
    for path in paths:
        if not path.endswith("/stream"):
            assert console.ask(path).status in (200, 405, 422), path
    for path in ("/api/v1/unknown", "/api/v2/status", "/../desk.py", "/%2e%2e/desk.py", "/page/app.js", "/favicon.ico"):
        got = console.ask(path)
        assert got.status == 404, path
        assert json.loads(got.body)["detail"]


def test_subject_is_what_explain_prints(console: Console, world: World) -> None:
    """The page shows what `explain --json` prints: the same data, from the same function."""
    printed = subprocess.run(
        [sys.executable, "-m", "penaltybox", "explain", "device:rack-1", "--json"],
        env={**os.environ, **environment_of(world.settings)}, capture_output=True, check=True, text=True,
    )  # fmt: skip
    shown, wanted = console.get(f"{PREFIX}/subject?subject=device:rack-1&limit=10"), json.loads(printed.stdout)
    assert shown.pop("range") == ""
    assert shown.keys() == wanted.keys()
    assert shown["now"]["in_force"][0]["penalty"] == wanted["now"]["in_force"][0]["penalty"]
    assert [one["id"] for one in shown["history"]] == [one["id"] for one in wanted["history"]]
    assert shown["timeline"]["verdicts"] == wanted["timeline"]["verdicts"]


def test_figures(console: Console) -> None:
    """The office is told from its users, rates have intervals, the funnel has the ladder's rungs."""
    places = console.get(f"{PREFIX}/places?since=1h")["rows"]
    assert places[0]["place"] == OFFICE
    assert places[0]["attributable"]
    assert places[0]["users"] == 36
    rates = {row["dimension"]: row for row in console.get(f"{PREFIX}/rates?since=1h")["rows"]}
    assert rates["user"]["episodes"] >= 40
    assert rates["user"]["fdr_low"] <= rates["user"]["fdr"] <= rates["user"]["fdr_high"]
    funnel = console.get(f"{PREFIX}/funnel?since=1h")
    assert funnel["rungs"] == ["warn", "5m", "1h", "permanent"]
    assert {row["rule"] for row in funnel["rows"]} >= {"user_abuse", "device_farm", "stricter"}


def test_ban_and_unban_are_the_commands_own(console: Console, world: World) -> None:
    """A ban is in force when it is answered, soon on the page, and recorded with reason and actor; so is an unban."""
    body = {"subject": "user:amy@example.com", "reason": "chargeback", "actor": "alice", "for": "36h"}
    got = console.ask(f"{PREFIX}/ban", body)
    done = json.loads(got.body)
    validate(console, f"{PREFIX}/ban", "post", done)
    assert done["subject"] == "user:amy%40example.com"
    assert "by alice: chargeback" in done["says"]
    rows = f"{PREFIX}/blocks?text=amy%2540"
    block_until(lambda: console.get(rows)["total"] == 1, what="the block on the page")
    assert console.get(f"{PREFIX}/subject?subject=user:amy%40example.com".replace("%", "%25"))["now"]["in_force"]
    recorded = "subject = 'user:amy%40example.com' AND origin = 'hand' AND actor = 'alice' AND note = 'chargeback'"
    block_until(lambda: world.count("penalties", recorded) == 1, 30, "the ban in the audit trail")
    done = json.loads(console.ask(f"{PREFIX}/unban", {"subject": "user:amy@example.com", "reason": "paid"}).body)
    assert "by night shift: paid" in done["says"]
    block_until(lambda: console.get(rows)["total"] == 0, what="no block on the page")


def test_ranges(console: Console) -> None:
    """A banned range is listed apart, and lifted by its own name."""
    body = {"subject": "198.18.0.0/24", "reason": "scanner", "for": "2h"}
    assert "198.18.0.0/24" in json.loads(console.ask(f"{PREFIX}/ban", body).body)["says"]

    def listed() -> list[str]:
        return [one["range"] for one in console.get(f"{PREFIX}/blocks")["ranges"]]

    block_until(lambda: listed() == ["198.18.0.0/24"])
    assert console.get(f"{PREFIX}/subject?subject=ip:198.18.0.0/24")["range"] == "198.18.0.0/24"
    assert console.ask(f"{PREFIX}/unban", {"subject": "ip:198.18.0.0/24", "reason": "over"}).status == 200
    block_until(lambda: listed() == [])


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("ban", {"subject": "user:bob"}, 422, "reason"),
        ("ban", {"subject": "user:bob", "reason": " "}, 422, "reason: got nothing"),
        ("ban", {"subject": "user:bob", "reason": "two\nlines"}, 422, "one line"),
        ("ban", {"subject": "bob", "reason": "r"}, 422, "wanted dimension:value"),
        ("ban", {"subject": "user:bob", "reason": "r", "level": "2h"}, 422, "wanted a rung"),
        ("ban", {"subject": "user:bob", "reason": "r", "for": "soon"}, 422, "for"),
        ("ban", {"subject": "0.0.0.0/0", "reason": "r"}, 422, "everybody"),
        ("ban", {"subject": "user:bob", "reason": "r", "surprise": 1}, 422, "surprise"),
        ("unban", {"subject": "user:bob", "reason": "r", "grace": "-1h"}, 422, "grace"),
        ("unban", b"subject=user:bob&reason=r", 400, "not JSON"),
        ("unban", b"x" * 20_000, 413, "at most"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(console: Console, path: str, body: Any, status: int, says: str) -> None:
    """A wrong body changes nothing, and the problem names what was wanted; its status is one that is described."""
    got = console.ask(f"{PREFIX}/{path}", body)
    assert got.status == status, got
    validate(console, f"{PREFIX}/{path}", "post", json.loads(got.body), str(status))
    assert says in json.loads(got.body)["detail"]


@pytest.mark.parametrize("query", ["since=1y", "since="])
def test_a_wrong_parameter_is_refused_and_an_empty_one_is_absent(console: Console, query: str) -> None:
    """The parameter's name stands in the problem."""
    got = console.ask(f"{PREFIX}/funnel?{query}")
    assert got.status == (422 if query == "since=1y" else 200)
    assert b"since" in got.body or got.status == 200


def test_nobody_without_the_token(console: Console) -> None:
    """Without it, or with another, nothing is told and nothing is done; files and the description hold no secret."""
    for route in ROUTES:
        body = None if route.method == "GET" else {"subject": "user:bob", "reason": "r"}
        for given in ("", "Bearer ", f"Bearer {TOKEN}x", f"bearer {TOKEN}", TOKEN, f"Basic {TOKEN}"):
            got = console.ask(route.path, body, authorization=given)
            assert got.status == (200 if route.open else 401), (route.path, given)
    assert TOKEN not in console.log
    for path in page_files():
        assert TOKEN.encode() not in fetch(console.port, path).body


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.", "10.0.0.1"]
)
def test_another_name_is_not_answered(console: Console, host: str) -> None:
    """A stranger's name that points here (DNS rebinding) gets no file and no answer, not even with the token."""
    for path in ("/", f"{PREFIX}/status"):
        got = console.ask(path, host=host)
        assert got.status == 421, host
        assert TOKEN.encode() not in got.body
    for name in (f"localhost:{console.port}", "127.0.0.1", "[::1]:99"):
        assert console.ask(f"{PREFIX}/status", host=name).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_another_site_may_not_ask(console: Console, headers: dict[str, str]) -> None:
    """A page of another origin is refused, also with the token; there is no cookie that a browser could add."""
    got = console.ask(f"{PREFIX}/unban", {"subject": "user:bob", "reason": "r"}, **headers)
    assert got.status == 403
    assert "set-cookie" not in got.headers


def test_a_form_of_another_site_is_none(console: Console) -> None:
    """What a plain form can send is refused even with the token."""
    got = console.ask(f"{PREFIX}/unban", b'{"subject":"user:bob","reason":"r"}', content_type="text/plain")
    assert got.status == 415
    validate(console, f"{PREFIX}/unban", "post", json.loads(got.body), "415")


def test_every_answer_binds_the_browser(console: Console) -> None:
    """Strict policy on files, answers, problems; nothing inline is allowed, nothing may be framed."""
    for path in ("/", "/app.js", f"{PREFIX}/status", "/nothing"):
        headers = console.ask(path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_a_console_that_only_shows(world: World) -> None:
    """--read-only refuses both acts, and says so to the page."""
    with Console(world.settings, "--read-only") as console:
        assert console.get(f"{PREFIX}/about")["read_only"]
        for act in ("ban", "unban"):
            got = console.ask(f"{PREFIX}/{act}", {"subject": "user:bob", "reason": "r"})
            assert got.status == 403
            assert "--read-only" in json.loads(got.body)["detail"]


def test_hostile_names_are_data(console: Console) -> None:
    """Names that would like to be markup are found, explained, and come back as they are."""
    total = console.get(f"{PREFIX}/blocks?text=pwned")["total"]
    assert total >= 4
    for row in console.get(f"{PREFIX}/blocks?text=pwned")["rows"]:
        assert "<" not in row["subject"]
    told = console.get(f"{PREFIX}/subject?subject={quote('user:' + HOSTILE[0])}")
    assert told["now"]["in_force"]


def test_everything_away(tmp_path: Path) -> None:
    """With Kafka, Redis and ClickHouse away it starts, says of each what is missing, and ends at once when told."""
    (tmp_path / "policy.yaml").write_text("rules: {}")
    name = fresh_name("away")
    settings = Settings(
        kafka="127.0.0.1:1", redis_url="redis://127.0.0.1:1/0", clickhouse_url="http://127.0.0.1:1",
        redis_prefix=name, policy=str(tmp_path / "policy.yaml"), redis_timeout_ms=300,
    )  # fmt: skip
    with Console(settings) as console:

        def states() -> dict[str, str]:
            return {part["name"]: part["state"] for part in console.get(f"{PREFIX}/status")["parts"]}

        block_until(lambda: [states()[one] for one in ("redis", "kafka", "clickhouse")] == ["away"] * 3, 40)
        for path, status in (("blocks", 200), ("funnel", 503), ("rates", 503), ("subject?subject=user:a", 503)):
            got = console.ask(f"{PREFIX}/{path}")
            assert got.status == status, path
            assert status == 200 or json.loads(got.body)["detail"]
        nobody = console.ask(f"{PREFIX}/ban", {"subject": "user:bob", "reason": "r"})
        assert nobody.status == 422
        assert "actor: got nothing" in json.loads(nobody.body)["detail"]
        assert console.ask(f"{PREFIX}/ban", {"subject": "user:bob", "reason": "r", "actor": "bob"}).status == 503
        assert "Traceback" not in console.log
        assert console.stop() == 0


def test_it_ends_with_a_page_open(world: World) -> None:
    """SIGTERM ends it at once although somebody listens to the stream, whose events are of the described form."""
    with Console(world.settings) as other:
        connection = http.client.HTTPConnection("127.0.0.1", other.port, timeout=10)
        connection.request("GET", f"{PREFIX}/stream", headers={"authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        assert answer.getheader("content-type") == "text/event-stream"
        assert answer.readline() == b"event: status\n"
        status = msgspec.json.decode(answer.readline().removeprefix(b"data: "))
        validate(other, f"{PREFIX}/status", "get", status)
        assert other.stop() == 0
        connection.close()
        assert "Traceback" not in other.log
