"""The schema in versions: each file of ``schema/`` is applied once, in order, and recorded."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from penaltybox.sinks.clickhouse.client import ClickHouse

_NAME: Final = re.compile(r"(\d{4})_\w+\.sql")
_STATEMENT_END: Final = re.compile(r";\s*(?:\n|\Z)")
_RECORD: Final = """
CREATE TABLE IF NOT EXISTS migrations
(version UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC'))
ENGINE = ReplacingMergeTree ORDER BY version
"""
_DONE: Final = "INSERT INTO migrations (version, name) VALUES ({}, '{}')"


class Migration(NamedTuple):
    """One version of the schema: its statements are all safe to repeat (IF NOT EXISTS, OR REPLACE, equal rows)."""

    version: int
    name: str
    statements: tuple[str, ...]


def migrations() -> list[Migration]:
    """All versions that this package knows, oldest first."""
    found = []
    for file in files(__package__).joinpath("schema").iterdir():
        match = _NAME.fullmatch(file.name)
        if match:
            found.append(Migration(int(match[1]), file.name, _statements(file.read_text(encoding="utf-8"))))
    return sorted(found)


def _statements(text: str) -> tuple[str, ...]:
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return tuple(statement.strip() for statement in _STATEMENT_END.split(bare) if statement.strip())


def applied(clickhouse: ClickHouse) -> set[int]:
    """Versions that the database has.

    Raises:
        StoreUnavailable: no answer, or there is no such database or table yet.
    """
    return {row["version"] for row in clickhouse.rows("SELECT DISTINCT version FROM migrations")}


def migrate(clickhouse: ClickHouse) -> list[str]:
    """Bring the database to this package's schema, creating it if need be; the names of what was applied.

    A version is recorded after its last statement, and statements may be repeated: two programs that migrate at the
    same time, or one that died half-way, do no harm. Versions newer than this package are left alone.

    Raises:
        StoreUnavailable: no answer, or the user may not create tables.
    """
    clickhouse.create_database()
    clickhouse.command(_RECORD)
    known = applied(clickhouse)
    done = []
    for migration in migrations():
        if migration.version in known:
            continue
        for statement in migration.statements:
            clickhouse.command(statement)
        clickhouse.command(_DONE.format(*migration[:2]))
        done.append(migration.name)
    return done
