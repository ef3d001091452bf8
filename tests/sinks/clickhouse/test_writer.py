from __future__ import annotations

import json
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.events import encode
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.sinks.clickhouse.client import ClickHouse
from penaltybox.sinks.clickhouse.columns import charged_limit, ip_prefix
from penaltybox.sinks.clickhouse.migrations import applied, migrate, migrations
from penaltybox.sinks.clickhouse.records import TABLES, Batch, decode
from tests.contracts.test_decoding import BAD as CORPUS
from tests.contracts.test_decoding import BROKER_MS, raw_of
from tests.sinks.clickhouse.worlds import T0_MS, Sent, batch, decision, denial, letter, outcome, penalty, random_world
from tests.tls import make_certificates, tls_in_front_of

if TYPE_CHECKING:
    from pathlib import Path

    from penaltybox.embedded.clickhouse_server import ClickHouseServer
    from penaltybox.sinks.clickhouse.records import Table
    from penaltybox.sinks.clickhouse.writer import Writer

pytestmark = pytest.mark.stack

HOSTILE = [
    "it's", 'say "hi"', "back\\slash", "\\'; DROP TABLE decisions; --", "`tick`", "{id:String}", "%s %(x)s", "☃ snow",
    "\U0001d518\U0001d52b", "naïve", "\\N", "NULL", "a,b\\tc", "$$",
]  # fmt: skip


def only(clickhouse: ClickHouse, table: str) -> list[dict[str, Any]]:
    return clickhouse.rows(f"SELECT * FROM {table} FINAL ORDER BY kafka_offset")  # noqa: S608 - our own names


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_come_back_whole(clickhouse: ClickHouse, writer: Writer, text: str) -> None:
    """Quotes, backslashes, SQL and any script are values like others, in every text column and as map keys."""
    event = denial(
        1, "shelf:" + text, source=text, scenario=text, route=text, attrs={text: text},
        subjects={"user": text, "shelf": text}, id=text,
    )  # fmt: skip
    writer.store(writer.prepare(batch("decisions", [event])))
    writer.store(writer.prepare(batch("penalties", [penalty(1, "user:x", T0_MS, note=text, evidence={"at": text})])))
    (row,) = only(clickhouse, "decisions")
    assert (row["id"], row["source"], row["scenario"], row["route"]) == (text, text, text, text)
    assert (row["attrs"], row["violated"]) == ({text: text}, ["shelf:" + text])
    canonical = Canonicaliser().subject("user", text).removeprefix("user:")
    assert (row["user"], row["others"], row["subject"]) == (canonical, {"shelf": canonical}, f"shelf:{canonical}")
    (row,) = only(clickhouse, "penalties")
    assert (row["note"], json.loads(row["evidence"])) == (text, {"at": text})


def test_a_decision_as_a_row(clickhouse: ClickHouse, writer: Writer) -> None:
    """Every field has its column: subjects in canonical form, the charged limit, the weight, the place in Kafka."""
    event = decision(
        5, action="deny", reason="over_limit", violated=("ip:soft", "device:daily"), status=429, limit=10,
        window_s=86_400, remaining=0, retry_after_s=12, cost=3, established=True, count=7, sample_rate=0.25,
        cached=True, route="POST /x",
        subjects={"user": "a@b", "device": "d1", "ip": "::ffff:203.0.113.7", "order": "o 1"},
        attrs={"address": "9f"},
    )  # fmt: skip
    writer.store(writer.prepare(batch("decisions", [event], first=41, partition=6)))
    (row,) = only(clickhouse, "decisions")
    ingested = row.pop("ingested_at")
    assert ingested > row["ts"]
    assert round(row.pop("ts").timestamp() * 1000) == round(row.pop("logged_at").timestamp() * 1000) == event.ts
    assert row == {
        "id": event.id, "source": "checkout/edge-1", "scenario": "coupon_claim", "route": "POST /x", "action": "deny",
        "reason": "over_limit", "violated": ["ip:soft", "device:daily"], "dimension": "device",
        "limit_name": "device:daily", "subject": "device:d1", "user": "a%40b", "device": "d1", "ip": "203.0.113.7",
        "ip_prefix": "203.0.113.0/24", "api_key": "", "others": {"order": "o%201"}, "established": True, "status": 429,
        "limit_value": 10, "window_s": 86_400, "remaining": 0, "retry_after_s": 12, "cost": 3, "enforced": True,
        "count": 7, "cached": True, "sample_weight": 4.0, "attrs": {"address": "9f"}, "incarnation": "i1",
        "kafka_partition": 6, "kafka_offset": 41, "stored_through": 41,
    }  # fmt: skip


def test_combinations_are_charged_with_their_canonical_subject(clickhouse: ClickHouse, writer: Writer) -> None:
    """A limit on device+scenario is charged to that combination, as the engine names it."""
    writer.store(writer.prepare(batch("decisions", [denial(1, "device+scenario:daily")])))
    (row,) = only(clickhouse, "decisions")
    assert (row["dimension"], row["subject"]) == ("device+scenario", "device+scenario:d1+coupon_claim")


def test_the_charged_limit_is_the_most_specific(writer: Writer) -> None:
    """api_key, user, device, others by name, ip; the first limit of that dimension."""
    assert charged_limit(("ip:a", "device:b", "user:c", "user:d")) == ("user", "user:c")
    assert charged_limit(("ip:a", "zone:b", "order:c")) == ("order", "order:c")
    assert charged_limit(()) == ("", "")
    assert writer is not None


@pytest.mark.parametrize(
    ("ip", "prefix"),
    [
        ("203.0.113.7", "203.0.113.0/24"),
        ("2001:db8:1:2::/64", "2001:db8:1::/48"),
        ("2001:db8:1:2::5/128", "2001:db8:1::/48"),
        ("k3x9hashedvalue", ""),
        ("", ""),
    ],
)
def test_neighbourhoods_of_addresses(ip: str, prefix: str) -> None:
    """/24 and /48; hashed addresses have none."""
    assert ip_prefix(ip) == prefix


BAD = [
    b"", b"not json", b"[]", b"null", b'{"v":2}', b"\xff\xfe", b'{"v":1,"v":1}', b"[" * 3000, b'"' + b"x" * 5000 + b'"',
    b'{"v":1,"id":"\\ud800","ts":1,"source":"s","action":"allow","subjects":{"user":"u"}}',
    b'{"v":1,"id":"a\\u0000","ts":1,"source":"s","action":"allow","subjects":{"user":"u"}}',
    b'{"v":1,"id":"a","ts":99999999999999,"source":"s","action":"allow","subjects":{"user":"u"}}',
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_bad_records_are_counted_and_skipped(clickhouse: ClickHouse, writer: Writer, table: Table) -> None:
    """Between good records of any topic, what cannot be judged is left out and counted; the rest is stored."""
    good = {
        "decisions": decision(1),
        "outcomes": outcome(1, "payment_ok", T0_MS, user="u"),
        "penalties": penalty(1, "user:u", T0_MS),
        "dead_letters": letter(1),
    }
    (record,) = batch(table, [good[table]]).records
    values = [record.value, *BAD, None, record.value]
    records = [Sent(n, T0_MS + 10_000, value) for n, value in enumerate(values)]
    prepared = writer.prepare(Batch(table, "i1", 0, records))
    assert (prepared.rows, prepared.skipped.total()) == (2, len(BAD) + 1)
    writer.store(prepared)
    assert len(only(clickhouse, table)) == 1
    assert writer.watermark(table, "i1", 0) == len(values) - 1


def test_one_bad_subject_in_a_run_of_our_own_form(clickhouse: ClickHouse, writer: Writer) -> None:
    """A run in our publishers' form is decoded at once; a subject without a canonical form costs only its record."""
    events = [decision(n) for n in range(50)]
    events[20] = decision(20, subjects={"ip": "no address"})
    events[30] = decision(30, subjects={"Bad Name": "x"})
    events[40] = decision(40, subjects={"user": "", "device": "d1"})
    prepared = writer.prepare(batch("decisions", list(events)))
    assert (prepared.rows, set(prepared.skipped)) == (47, {"bad_ip", "bad_dimension", "empty_subject"})
    writer.store(prepared)
    kept = [event.id for number, event in enumerate(events) if number not in {20, 30, 40}]
    assert [row["id"] for row in only(clickhouse, "decisions")] == kept


def test_the_corpus_of_bad_records_costs_only_itself(writer: Writer) -> None:
    """Between two good records each malformed one of the corpus is skipped for its reason; the good ones are kept."""
    first, last = (Sent(n, BROKER_MS, encode(decision(n))) for n in (0, 2))
    for start, entry in enumerate(CORPUS):
        three = (first, Sent(1, BROKER_MS, raw_of(entry)), last)
        records = [record._replace(offset=10 * start + record.offset) for record in three]
        prepared = writer.prepare(Batch("decisions", "i1", 0, records))
        assert (prepared.rows, dict(prepared.skipped)) == (2, {entry["reason"]: 1}), entry["why"]


@pytest.mark.parametrize("own", [{"user": "plain-1", "ip": "10.0.0.1"}, {"user": "a@b", "ip": "2001:db8::1"}, {}])
def test_both_ways_of_decoding_agree(writer: Writer, own: dict[str, str]) -> None:
    """Decoded at once or one by one, values that are canonical and those that are not give the same columns."""
    world = random_world(5, requests=200)
    events = [msgspec.structs.replace(event, subjects={**event.subjects, **own}) for event in world.decisions]
    at_once = writer.prepare(batch("decisions", list(events)))
    records = batch("decisions", list(events)).records
    spaced = [Sent(record.offset, record.timestamp, (record.value or b"") + b" ") for record in records]
    assert at_once.parts == writer.prepare(Batch("decisions", "i1", 0, spaced)).parts


@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda x: json.dumps(x).encode())
)
@settings(max_examples=80, deadline=None)
@pytest.mark.parametrize("table", TABLES)
def test_no_record_raises(table: Table, raw: bytes) -> None:
    """Whatever bytes stand in a topic, decoding skips them or makes an event."""
    decoded = decode(table, [Sent(0, T0_MS, raw)], Canonicaliser())
    assert len(decoded.events) + decoded.skipped.total() == 1


def test_numbers_beyond_64_bits_are_clamped(clickhouse: ClickHouse, writer: Writer) -> None:
    """JSON has no largest integer; a limit of 10^30 must not stop the table."""
    huge = 10**30
    writer.store(
        writer.prepare(batch("decisions", [decision(1, limit=huge, window_s=huge, remaining=huge), decision(2)]))
    )
    writer.store(writer.prepare(batch("penalties", [penalty(1, "user:u", T0_MS, to_ms=huge, until=huge, seq=huge)])))
    assert only(clickhouse, "decisions")[0]["limit_value"] == (1 << 63) - 1
    (row,) = only(clickhouse, "penalties")
    assert (row["seq"], row["until"].year) == ((1 << 63) - 1, 2299)


def test_dead_letters_keep_their_bytes(clickhouse: ClickHouse, writer: Writer) -> None:
    """The raw record comes back byte for byte, also where it is no text."""
    writer.store(writer.prepare(batch("dead_letters", [letter(3)])))
    (row,) = clickhouse.rows("SELECT hex(raw) AS raw, detail, source_offset FROM dead_letters FINAL")
    assert (row["raw"], row["detail"], row["source_offset"]) == ("00FF7B", "it's not", 3)


def test_migrations_are_applied_once(clickhouse_server: ClickHouseServer, fresh_database: str) -> None:
    """The first call applies all, the second nothing; edited label weights survive a half-recorded repetition."""
    clickhouse = ClickHouse(clickhouse_server.url, fresh_database)
    assert migrate(clickhouse) == [migration.name for migration in migrations()]
    assert migrate(clickhouse) == []
    assert applied(clickhouse) == {migration.version for migration in migrations()}
    clickhouse.command(
        "INSERT INTO label_weights (label, weight, matures_s, abuse, after_limit) "
        "VALUES ('payment_ok', 0.5, 60, false, false)"
    )
    clickhouse.command("TRUNCATE TABLE migrations")
    assert migrate(clickhouse)
    (row,) = clickhouse.rows("SELECT weight FROM label_weights FINAL WHERE label = 'payment_ok'")
    assert row["weight"] == 0.5
    clickhouse.close()


def test_workers_that_start_together_migrate_once(clickhouse_server: ClickHouseServer, fresh_database: str) -> None:
    """Four at the same time on an empty database: nobody fails, everything is there once."""
    connections = [ClickHouse(clickhouse_server.url, fresh_database) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(migrate, connections))
    (row,) = connections[0].rows("SELECT count() AS labels FROM label_weights FINAL")
    assert row["labels"] == 8
    assert applied(connections[0]) == {migration.version for migration in migrations()}
    for connection in connections:
        connection.close()


def test_a_database_without_tables_says_what_to_do(clickhouse_server: ClickHouseServer) -> None:
    """Before `setup` the sentence names the command; nothing secret is in it."""
    clickhouse = ClickHouse(clickhouse_server.url.replace("//", "//me:hunter2@"), "nowhere")
    with pytest.raises(StoreUnavailable, match="penaltybox setup") as caught:
        clickhouse.rows("SELECT 1 FROM decisions")
    assert "hunter2" not in str(caught.value)
    clickhouse.close()


def test_no_server_is_an_outage() -> None:
    """A closed port is StoreUnavailable, at the first call and not at construction."""
    clickhouse = ClickHouse.of(Settings(clickhouse_url="http://127.0.0.1:1"))
    with pytest.raises(StoreUnavailable):
        clickhouse.version()


def test_a_strange_url_is_a_configuration_error() -> None:
    """The message says what is wanted and hides the password."""
    with pytest.raises(ConfigurationError, match="wanted http") as caught:
        ClickHouse("clickhouse://u:hunter2@host", "db")
    assert "hunter2" not in str(caught.value)


def test_an_authority_of_ones_own(clickhouse_server: ClickHouseServer, tmp_path: Path) -> None:
    """Over https the named authority alone is trusted; without it the certificate is refused, and a file that is not
    there is a configuration error."""
    make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")
    with tls_in_front_of(clickhouse_server.port, context) as port:
        url = f"https://localhost:{port}"
        trusting = ClickHouse.of(Settings(clickhouse_url=url, clickhouse_ca=str(tmp_path / "ca.crt")))
        assert trusting.version()
        trusting.close()
        strict = ClickHouse.of(Settings(clickhouse_url=url))
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            strict.version()
    with pytest.raises(ConfigurationError, match="PENALTYBOX_CLICKHOUSE_CA"):
        ClickHouse.of(Settings(clickhouse_url=url, clickhouse_ca=str(tmp_path / "absent.crt")))
