"""The connection to ClickHouse: a server by URL, the embedded endpoint, or the engine in this process.

Opened at the first call and again after a failure, so nothing is connected at construction. Synchronous and safe for
threads: calls are serialised; a role that must not wait runs them in a thread.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError

from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.settings import mask_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from penaltybox.contracts.settings import Settings

T = TypeVar("T")
CONNECT_S: Final = 5
ANSWER_S: Final = 30
PATIENT_S: Final = 300
"""For whoever asks for something large and has nothing else to do: reports, roll-ups."""
RETRY_AFTER_MS: Final = 1000
_LAYERS: Final = 8
"""Of libraries, at most, that have wrapped a failure."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_DEFAULT_PORTS: Final = {"http": 8123, "https": 8443}
# An asynchronous insert would be acknowledged before it is stored.
INSERT_SETTINGS: Final = {"async_insert": 0}


class ClickHouse:
    """One connection, (re)opened when needed.

    Args:
        url: ``http://host:8123``, ``https://…`` (user and password may stand in it), or ``chdb:///directory`` for the
            engine in this process (one directory per process).
        database: where the tables are.
        username: unless the URL has one.
        password: unless the URL has one.
        ca: file with the CAs to trust instead of the system's, for ``https://``.
        answer_s: how long an answer may take.

    Raises:
        ConfigurationError: a URL that is none of the three kinds, or a CA file that is not there.
    """

    def __init__(
        self,
        url: str,
        database: str,
        username: str = "default",
        password: str = "",
        ca: str = "",
        *,
        answer_s: int = ANSWER_S,
    ) -> None:
        self._url = url
        self.database = database
        self._options = _options(url, username, password, ca, answer_s)
        self._client: Any = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, settings: Settings, *, answer_s: int = ANSWER_S) -> ClickHouse:
        """The ClickHouse of the settings; `answer_s`: how long an answer may take.

        Raises:
            ConfigurationError: a URL that is none of the three kinds.
        """
        return cls(
            settings.clickhouse_url,
            settings.clickhouse_database,
            settings.clickhouse_username,
            settings.clickhouse_password,
            settings.clickhouse_ca,
            answer_s=answer_s,
        )

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert columns; when it returns, they are stored.

        Raises:
            StoreUnavailable: not stored, or not known to be: the same insert may be sent again.
        """
        self._call(lambda client: client.insert_arrow(table, rows, database=self.database, settings=INSERT_SETTINGS))

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of a query, by column name; ``{name:Type}`` in it are bound by the server.

        Raises:
            StoreUnavailable: no answer, or ClickHouse refuses.
        """
        answer = self._call(lambda client: client.query(sql, parameters=dict(parameters or {})))
        return list(answer.named_results())

    def command(self, sql: str) -> None:
        """Run a statement without a result.

        Raises:
            StoreUnavailable: as for `rows`.
        """
        self._call(lambda client: client.command(sql))

    def create_database(self) -> None:
        """Create the database if it isn't there.

        Raises:
            StoreUnavailable: as for `rows`.
        """
        self._call(lambda client: client.command(f"CREATE DATABASE IF NOT EXISTS `{self.database}`"), inside=False)

    def version(self) -> str:
        """The server's (or engine's) version, also without a database.

        Raises:
            StoreUnavailable: as for `rows`.
        """
        return str(self._call(lambda client: client.command("SELECT version()"), inside=False))

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _call(self, operation: Callable[[Any], T], *, inside: bool = True) -> T:
        with self._lock:
            try:
                if self._client is None:
                    self._client = clickhouse_connect.get_client(**self._options)
                if inside and self._client.database != self.database:
                    self._client.database = self.database
                return operation(self._client)
            except (ClickHouseError, OSError) as error:
                self._drop()
                raise self._failure(error) from error

    def _failure(self, error: Exception) -> StoreUnavailable:
        text = str(error).strip().splitlines()
        says = _unreached(error) or (text[0] if text else repr(error))
        return StoreUnavailable(
            f"ClickHouse at {mask_url(self._url)}, database {self.database}: {says}. "
            "Check PENALTYBOX_CLICKHOUSE_URL and the user's rights; `penaltybox setup` creates database and tables.",
            RETRY_AFTER_MS,
        )


def _options(url: str, username: str, password: str, ca: str, answer_s: int) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme == "chdb":
        return {"interface": "chdb", "path": parts.path or ":memory:", "tz_mode": "aware"}
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ConfigurationError(
            f"PENALTYBOX_CLICKHOUSE_URL: got {mask_url(url)!r}, wanted http://host:8123, https://host:8443 "
            "or chdb:///directory"
        )
    if ca and not Path(ca).is_file():
        raise ConfigurationError(f"PENALTYBOX_CLICKHOUSE_CA: got {ca!r}, wanted a file with certificates")
    return {
        "interface": parts.scheme,
        "host": parts.hostname,
        "port": parts.port or _DEFAULT_PORTS[parts.scheme],
        "username": unquote(parts.username) if parts.username else username,
        "password": unquote(parts.password) if parts.password else password,
        "compress": parts.hostname not in _LOOPBACK,
        "connect_timeout": CONNECT_S,
        "send_receive_timeout": answer_s,
        "autogenerate_session_id": False,
        "tz_mode": "aware",
    } | ({"ca_cert": ca} if ca else {})


def _unreached(error: BaseException) -> str:
    """What the system said if there was no connection: the libraries wrap it in what only they can read."""
    cause: BaseException | None = error
    for _ in range(_LAYERS):
        if cause is None:
            return ""
        if isinstance(cause, OSError) and cause.strerror:
            return f"it cannot be reached: {cause.strerror}"
        cause = cause.__cause__ or getattr(cause, "reason", None)
    return ""
