"""What `--source` names, opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.cli.replay_job import Job
    from penaltybox.contracts.events import Command
    from penaltybox.contracts.settings import Settings
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.replay.listed import ListChange
    from penaltybox.processors.replay.records import Reading, Window
    from penaltybox.processors.replay.sources.kafka import TopicSource

KAFKA: Final = "kafka"
COMBINED: Final = "combined:"
CLICKHOUSE: Final = "clickhouse"
_PARQUET: Final = b"PAR1"


def open_topics(
    settings: Settings,
    canonicaliser: Canonicaliser,
    window: Window,
    *,
    partitions: frozenset[int] | None = None,
    commands: Sequence[tuple[int, Command | ListChange]] = (),
    ends: Mapping[tuple[str, int], int] | None = None,
    labels: bool = False,
    engine: Engine | None = None,
) -> TopicSource:
    """The topics of the settings; `engine` as for `TopicSource`."""
    from penaltybox.processors.replay.sources.kafka import TopicSource

    return TopicSource(
        settings,
        canonicaliser,
        window,
        partitions=partitions,
        commands=commands,
        ends=ends,
        labels=labels,
        engine=engine,
    )


def open_other(
    job: Job, canonicaliser: Canonicaliser, window: Window, *, labels: bool = False, engine: Engine | None = None
) -> Reading:
    """A source that is not Kafka; `engine` as for `TopicSource`, if it can use one.

    Raises:
        ConfigurationError: there is no such thing.
    """
    source = job.source
    if source.startswith(COMBINED):
        from penaltybox.cli.replay_combined import LogSource

        log = source.removeprefix(COMBINED)
        return LogSource(log, job.candidate, canonicaliser, window, job.scenarios or {"": "web"})
    if source == CLICKHOUSE:
        from penaltybox.processors.replay.sources.clickhouse import StoredEvents
        from penaltybox.sinks.clickhouse.client import ClickHouse

        return StoredEvents(ClickHouse.of(job.settings), canonicaliser, window, labels=labels)
    path = Path(source)
    if not path.is_file():
        what = "that is a folder" if path.is_dir() else "there is no such file"
        if path.exists() and not path.is_dir():
            what = "that is no file but a pipe or a device, which cannot be read twice: write it into a file"
        raise ConfigurationError(
            f"--source {source}: {what}. Wanted kafka, clickhouse, combined:FILE, or a file of "
            "decisions (JSON lines, also .gz and .zst; Parquet)."
        )
    with path.open("rb") as file:
        if file.read(4) == _PARQUET:
            from penaltybox.processors.replay.sources.parquet import Parquet

            return Parquet(path, canonicaliser, window, engine=engine)
    from penaltybox.processors.replay.sources.lines import Lines

    return Lines(path, canonicaliser, window, engine=engine)
