"""ClickHouse's own engine in this process: runs one request at a time per caller, each on a connection of its own."""

from __future__ import annotations

import importlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penaltybox.embedded.clickhouse_request import Insert, Request

_FORMAT = re.compile(rb"\bFORMAT\s+(\w+)\s*;?\s*\Z", re.IGNORECASE)
_CODE = re.compile(r"Code: (\d+)\.")
_UNKNOWN_CODE = 1002  # ClickHouse's UNKNOWN_EXCEPTION
_NAMES = "TabSeparatedWithNames"


class EngineError(Exception):
    """The engine refused. The message is ClickHouse's own: ``Code: 60. DB::Exception: …``."""

    def __init__(self, message: str) -> None:
        at = message.find("Code: ")
        super().__init__(message[at:] if at >= 0 else message)
        found = _CODE.search(message)
        self.code = int(found[1]) if found else _UNKNOWN_CODE


class Answer(NamedTuple):
    """What a statement gave.

    Attributes:
        body: rows in `format`.
        format: output format, "" when the statement has no result at all.
        summary: figures as ClickHouse reports them in X-ClickHouse-Summary, all as text.
    """

    body: bytes | memoryview
    format: str
    summary: Mapping[str, str]


class Engine:
    """The engine over one directory. One process owns a directory; `run` may be called from many threads.

    A connection per request costs 0.4 ms and keeps its settings, database and parameters from all others.
    """

    def __init__(self, path: Path) -> None:
        self._chdb = importlib.import_module("chdb")
        self._path = str(path)
        self._keeper = self._chdb.connect(self._path)  # the engine lives as long as any connection
        self.timezone = self._text("SELECT timezone()")
        self.version = self._text("SELECT version()")

    def _text(self, statement: str) -> str:
        answer: bytes = self._keeper.query(statement, "TabSeparated").bytes()
        return answer.decode().strip()

    def run(self, request: Request) -> Answer:
        """Run one statement.

        Raises:
            EngineError: with ClickHouse's code and message.
        """
        try:
            connection = self._chdb.connect(self._path)
            try:
                _prepare(connection, request)
                insert = request.insert()
                if insert is not None:
                    return _insert(connection, insert)
                return _query(connection, request)
            finally:
                connection.close()
        except (RuntimeError, self._chdb.ChdbError) as error:
            raise EngineError(str(error)) from error

    def close(self) -> None:
        """Close the engine; merges stop, everything inserted is on disk."""
        self._keeper.close()


def _prepare(connection: Any, request: Request) -> None:
    """Database and settings of this request; `readonly` last, since nothing can be set to undo it."""
    if request.database:
        connection.query("USE `" + request.database.replace("\\", "\\\\").replace("`", "\\`") + "`", "TabSeparated")
    settings = [f"{name} = {_quoted(value)}" for name, value in request.settings.items()]
    if request.reader and request.settings.get("readonly") != "1":
        settings = [setting for setting in settings if not setting.startswith("readonly ")]
        settings.append("readonly = 2")
    if settings:
        connection.query("SET " + ", ".join(settings), "TabSeparated")


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _insert(connection: Any, insert: Insert) -> Answer:
    stream = connection.send_insert(insert.statement, insert.format)
    try:
        if insert.rows:
            stream.append(insert.rows)
        result = stream.finish()
    except BaseException:
        stream.cancel()
        raise
    return Answer(b"", "", {"written_rows": str(result.rows_written), "written_bytes": str(result.bytes_written)})


def _query(connection: Any, request: Request) -> Answer:
    """Run everything that is no insert with rows behind it.

    Without a FORMAT clause the answer is asked for with a line of names: a result without rows then differs from a
    statement without a result, which the client wants to know.
    """
    found = _FORMAT.search(request.text)
    asked = found[1].decode() if found else request.default_format
    result = connection.query(request.text, asked or _NAMES, params=dict(request.parameters))
    summary = {
        "read_rows": str(result.rows_read()),
        "read_bytes": str(result.bytes_read()),
        "elapsed_ns": str(int(result.elapsed() * 1e9)),
    }
    body: bytes = result.bytes() or b""
    if asked:
        return Answer(body, asked, summary)
    if not body:
        return Answer(b"", "", summary)
    return Answer(body[body.index(b"\n") + 1 :], "TabSeparated", summary)


def summary_json(answer: Answer) -> str:
    """X-ClickHouse-Summary."""
    return json.dumps(
        {"read_rows": "0", "read_bytes": "0", "written_rows": "0", "written_bytes": "0"} | dict(answer.summary)
    )
