"""The chDB endpoint: what clickhouse-connect needs of ClickHouse's HTTP interface."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from penaltybox.embedded.clickhouse_request import RequestError, read_request
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clickhouse_connect.driver.client import Client

    from penaltybox.embedded.clickhouse_server import ClickHouseServer

pytestmark = pytest.mark.stack
READONLY = 164
ROWS = 50_000  # several of the client's blocks


@pytest.fixture
def client(clickhouse_server: ClickHouseServer, fresh_database: str) -> Iterator[Client]:
    made = clickhouse_connect.get_client(host="127.0.0.1", port=clickhouse_server.port, database=fresh_database)
    made.command("CREATE TABLE t (a Int64, b String) ENGINE MergeTree ORDER BY a")
    yield made
    made.close()


@pytest.mark.parametrize("encoding", [True, False, "zstd", "lz4", "gzip"])
def test_column_inserts_and_reads(
    clickhouse_server: ClickHouseServer, client: Client, encoding: bool | str, fresh_database: str
) -> None:
    """Rows inserted by column come back whole, whatever the client compresses with (each of its blocks is a frame)."""
    writer = clickhouse_connect.get_client(
        host="127.0.0.1", port=clickhouse_server.port, database=fresh_database, compress=encoding
    )
    rows = [list(range(ROWS)), [f"it's\t{n}" for n in range(ROWS)]]
    assert writer.insert("t", rows, column_names=["a", "b"], column_oriented=True).written_rows == ROWS
    writer.close()
    answer = client.query(
        "SELECT a, b FROM t WHERE a >= {low:Int64} AND b != {no:String}", {"low": ROWS - 2, "no": f"it's\t{ROWS - 2}"}
    )
    assert answer.result_rows == [(ROWS - 1, f"it's\t{ROWS - 1}")]
    assert client.command("SELECT count(), sum(a) FROM t") == [str(ROWS), str(ROWS * (ROWS - 1) // 2)]


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("INSERT INTO t (a, b) VALUES (1, 'x FORMAT y')", 1),
        ("INSERT INTO t SELECT number, 'FORMAT CSV' FROM numbers(3)", 3),
        ("INSERT INTO t (a, b) SETTINGS async_insert = 0 VALUES (1, 'v'), (2, 'w')", 2),
        ('INSERT INTO t (`a`, b) SETTINGS async_insert = 0 FORMAT JSONEachRow {"a":1,"b":"x"}', 1),
    ],
)
def test_inserts_as_statements(client: Client, statement: str, rows: int) -> None:
    """Every way to write an insert stores its rows, also when a string looks like a FORMAT clause."""
    client.command(statement)
    assert client.command("SELECT count() FROM t") == rows


def test_raw_and_arrow_and_stream(client: Client) -> None:
    """Raw inserts, Arrow both ways and streamed reads work."""
    client.raw_insert("t", ["a", "b"], b"7,z\n8,w\n", fmt="CSV")
    assert client.query_arrow("SELECT a FROM t ORDER BY a").to_pydict() == {"a": [7, 8]}
    client.insert_arrow("t", client.query_arrow("SELECT a + 10 AS a, b FROM t"))
    with client.query_row_block_stream("SELECT number FROM numbers(200000)") as blocks:
        assert sum(len(block) for block in blocks) == 200_000
    assert client.command("SELECT count() FROM t") == 4
    assert client.query("SELECT a FROM t LIMIT 0").column_names == ("a",)


def test_long_parameters_travel_as_a_form(client: Client) -> None:
    """A parameter too long for a URL arrives."""
    numbers = list(range(20_000))
    assert client.query("SELECT {x:Array(Int64)}", {"x": numbers}).first_row[0] == numbers


@pytest.mark.parametrize(
    ("statement", "code"),
    [("SELECT * FROM absent", 60), ("SELECT throwIf(number = 150000) FROM numbers(200000)", 395), ("SELEC", 62)],
)
def test_errors_are_clickhouse_errors(client: Client, statement: str, code: int) -> None:
    """A refused statement raises the client's exception with ClickHouse's code and words."""
    with pytest.raises(DatabaseError, match="DB::Exception") as refused:
        client.query(statement)
    assert refused.value.code == code


def test_bad_rows_are_refused_and_the_connection_goes_on(client: Client) -> None:
    """An insert that the engine refuses says why, stores nothing, and the next statement works."""
    with pytest.raises(DatabaseError, match="DB::Exception"):
        client.raw_insert("t", ["a"], b"not a number\n", fmt="CSV")
    assert client.command("SELECT count() FROM t") == 0


def test_settings_last_for_one_request(client: Client) -> None:
    """A setting of one request is not seen by the next; an unknown one is an error."""
    read = "SELECT value FROM system.settings WHERE name = 'max_threads'"
    assert client.command(read, settings={"max_threads": 1}) == 1
    assert client.command(read) != 1
    with pytest.raises(DatabaseError, match="Unknown setting"):
        client.command("SELECT 1", settings={"max_thredas": "1"})


@pytest.mark.parametrize("statement", ["INSERT INTO t VALUES (1, 'x')", "DROP TABLE t", "SET readonly = 0"])
def test_the_reader_reads_only(
    clickhouse_server: ClickHouseServer, client: Client, fresh_database: str, statement: str
) -> None:
    """The user `reader` can read; the engine refuses its writes and its way out."""
    reader = clickhouse_connect.get_client(
        host="127.0.0.1", port=clickhouse_server.port, username="reader", database=fresh_database
    )
    assert reader.command("SELECT count() FROM t") == 0
    with pytest.raises(DatabaseError) as refused:
        reader.command(statement)
    assert refused.value.code == READONLY
    reader.close()
    assert client.command("SELECT count() FROM t") == 0


@pytest.mark.parametrize(
    ("method", "headers", "status", "words"),
    [
        ("GET", {}, 500, b"READONLY"),
        ("POST", {"Origin": "http://evil.example"}, 400, b"web pages"),
        ("POST", {"Host": "evil.example:80"}, 400, b"loopback"),
        ("POST", {"Content-Encoding": "snappy"}, 400, b"snappy"),
        ("POST", {"Content-Encoding": "gzip"}, 400, b"not valid gzip"),
        ("POST", {"Content-Length": "-1"}, 400, b"limit"),
    ],
)
def test_requests_that_are_refused(
    clickhouse_server: ClickHouseServer, method: str, headers: dict[str, str], status: int, words: bytes
) -> None:
    """A GET never writes, a web page gets nothing, and nonsense gets a sentence."""
    connection = http.client.HTTPConnection("127.0.0.1", clickhouse_server.port, timeout=10)
    connection.request(method, "/?query=CREATE+DATABASE+never", body=b"x" if headers else None, headers=headers)
    answer = connection.getresponse()
    assert (answer.status, words in answer.read()) == (status, True)
    connection.close()


def test_a_read_only_request_cannot_ask_for_more() -> None:
    """`readonly=0` in the URL of a reader is not passed on before the engine's own lock."""
    request = read_request("GET", "query=SELECT+1&readonly=0&param_x=1&max_threads=2&session_id=s", {}, b"")
    assert request.reader
    assert request.parameters == {"x": "1"}
    assert set(request.settings) == {"readonly", "max_threads"}
    with pytest.raises(RequestError, match="nor a setting"):
        read_request("GET", "query=SELECT+1&a%3D1%2Cb=2", {}, b"")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"INSERT INTO t FORMAT Native\n\x01\x02", ("INSERT INTO t", "Native", b"\x01\x02")),
        (b"insert into `a b`.`t)` (`c)`, d) FORMAT CSV 1,2", ("insert into `a b`.`t)` (`c)`, d)", "CSV", b"1,2")),
        (
            b"INSERT INTO t SETTINGS x = 'FORMAT a' FORMAT CSV\n1",
            ("INSERT INTO t SETTINGS x = 'FORMAT a'", "CSV", b"1"),
        ),
        (b"INSERT INTO t SELECT 'a' FORMAT CSV", None),
        (b"INSERT INTO t FORMAT Values (1)", None),
        (b"SELECT 1 FORMAT CSV", None),
    ],
)
def test_where_the_rows_of_an_insert_begin(text: bytes, found: tuple[str, str, bytes] | None) -> None:
    """Statement and rows are told apart by the grammar of INSERT, not by the first word FORMAT."""
    insert = read_request("POST", "", {}, text).insert()
    assert (None if insert is None else (insert.statement, insert.format, bytes(insert.rows))) == found


def test_many_clients_at_once(clickhouse_server: ClickHouseServer, client: Client, fresh_database: str) -> None:
    """Clients that insert and read at the same time don't see each other's parameters, and every row arrives."""

    def work(number: int) -> bool:
        own = clickhouse_connect.get_client(host="127.0.0.1", port=clickhouse_server.port, database=fresh_database)
        try:
            for turn in range(10):
                own.insert("t", [[number] * 100, [str(turn)] * 100], column_names=["a", "b"], column_oriented=True)
                if own.query("SELECT {x:Int64}, count() FROM t WHERE a = {x:Int64}", {"x": number}).first_row != (
                    number,
                    100 * (turn + 1),
                ):
                    return False
        finally:
            own.close()
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))
    assert client.command("SELECT count() FROM t") == 4 * 10 * 100


async def test_the_asynchronous_client(clickhouse_server: ClickHouseServer) -> None:
    """The client for asyncio, which brings another HTTP library, works too."""
    client = await clickhouse_connect.get_async_client(host="127.0.0.1", port=clickhouse_server.port)
    assert (await client.query("SELECT number FROM numbers(3)")).result_rows == [(0,), (1,), (2,)]
    await client.close()


def test_a_stop_lets_a_running_insert_end(private_clickhouse: ClickHouseServer) -> None:
    """SIGTERM in the middle of an insert: its answer arrives, its rows are there after the restart."""
    client = clickhouse_connect.get_client(host="127.0.0.1", port=private_clickhouse.port)
    client.command("CREATE TABLE slow (a UInt64) ENGINE MergeTree ORDER BY a")
    with ThreadPoolExecutor(1) as threads:
        insert = threads.submit(
            client.command,
            "INSERT INTO slow SELECT number + sleepEachRow(0.1) FROM numbers(8) SETTINGS max_block_size = 1",
        )
        block_until(lambda: running_inserts(private_clickhouse))
        private_clickhouse.stop()
        insert.result(timeout=10)
    assert private_clickhouse.exit_code == 0
    private_clickhouse.start()
    assert client.command("SELECT count() FROM slow") == 8
    client.close()


def running_inserts(server: ClickHouseServer) -> bool:
    watcher = clickhouse_connect.get_client(host="127.0.0.1", port=server.port)
    try:
        return bool(watcher.command("SELECT count() FROM system.processes WHERE query LIKE 'INSERT INTO slow%'"))
    finally:
        watcher.close()
