"""Names of rotated logs."""

from __future__ import annotations

import pytest

from penaltybox.producers.logs.rotation import grouped


@pytest.mark.parametrize(
    "names",
    [
        ["access.log.10.gz", "access.log.2.gz", "access.log.1", "access.log"],
        ["access.log-20260516.gz", "access.log-20260517", "access.log"],
        ["access-2026-05-16.log.zst", "access-2026-05-17.log", "access.log"],
        ["app.2026-05-17T09-00-00.log", "app.2026-05-17T10-00-00.log"],
        ["access.log-2026051709", "access.log-2026051710", "access.log"],
        ["error.log"],
    ],
)
def test_rotated_logs_are_one_log_in_the_order_in_which_they_were_written(names: list[str]) -> None:
    """Numbers count backwards, dates forwards, the bare name is the newest; compressed or not."""
    assert grouped(sorted(names)) == [names]
    assert grouped(sorted(names, reverse=True)) == [names]


def test_other_logs_are_logs_of_their_own() -> None:
    """What differs in more than number, date and compression is not mixed."""
    assert sorted(grouped(["access.log", "error.log", "error.log.1", "web1.access.log"])) == [
        ["access.log"],
        ["error.log.1", "error.log"],
        ["web1.access.log"],
    ]
