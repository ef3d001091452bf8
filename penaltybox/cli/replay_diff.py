"""What `penaltybox replay` does with a comparison: shown, written as a page, and judged by conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import typer

from penaltybox.cli.console import err, out, print_json
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.replay.comparison import Comparison
from penaltybox.processors.replay.conditions import Condition, check_names, failures, parse_condition
from penaltybox.processors.replay.findings import report_of
from penaltybox.processors.replay.metrics import metrics_of
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penaltybox.cli.replay_job import Job
    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.replay.conditions import Failure
    from penaltybox.processors.replay.loop import Result
    from penaltybox.processors.replay.observer import Side
    from penaltybox.processors.replay.report import Report

FAILED: Final = 3
"""Exit code when a condition fails."""


class Diff(NamedTuple):
    """What is asked of a comparison, and the observer that will know."""

    comparison: Comparison
    conditions: list[Condition]
    page: Path | None


def make_diff(
    job: Job, *, fail_if: Sequence[str] = (), page: Path | None = None, matures_ms: int | None = None
) -> Diff | None:
    """The comparison that a replay needs; None if nothing is compared. What cannot work is refused now, not in an hour.

    Without a baseline, but with a page or conditions, the candidate is compared with no policy at all.

    Raises:
        ConfigurationError: a condition is none or names no figure; the page's package is missing, or its folder.
    """
    if job.baseline is None and not job.recorded and not fail_if and page is None:
        return None
    policies: dict[Side, Policy] = {CANDIDATE: job.candidate}
    if job.baseline is not None:
        policies = {BASELINE: job.baseline, **policies}
    canonicaliser = Canonicaliser(job.settings.ipv6_prefix, job.settings.hashed_dimensions)
    conditions = [parse_condition(text) for text in fail_if]
    if conditions and not job.recorded:  # which rules there were then is known afterwards
        check_names(conditions, metrics_of(report_of(Comparison(policies))))
    if page is not None:
        from penaltybox.cli.replay_page import check_page

        check_page(page)
    return Diff(Comparison(policies, canonicaliser, matures_ms=matures_ms), conditions, page)


def finish(result: Result, diff: Diff | None, *, as_json: bool) -> None:
    """Show what a replay found, and exit with code 3 if a condition fails.

    Raises:
        ConfigurationError: a condition names no figure; the page cannot be written.
    """
    from penaltybox.cli.replay_view import show_result

    report, failed = judge(diff, result) if diff is not None else (None, [])
    if as_json:
        found = msgspec.to_builtins(result)
        print_json(found if report is None else {**found, "diff": report, "failed": failed})
        for one in failed:
            err.print(f"Failed: {one.condition}: {one.sentence}", markup=False)
    else:
        show_result(result)
        if diff is not None and report is not None:
            _show(report, failed, diff.page)
    if failed:
        raise typer.Exit(FAILED)


def judge(diff: Diff, result: Result) -> tuple[Report, list[Failure]]:
    """The report, and the conditions that failed; writes the page.

    Raises:
        ConfigurationError: a condition names no figure; the page cannot be written.
    """
    report = report_of(diff.comparison)
    failed = failures(diff.conditions, metrics_of(report))
    if diff.page is not None:
        from penaltybox.cli.replay_page import write_page

        sides = ((BASELINE, result.baseline), (CANDIDATE, result.candidate))
        versions = {side: ", ".join(one.policy_versions) for side, one in sides if one is not None}
        write_page(diff.page, report, versions, failed)
    return report, failed


def _show(report: Report, failed: Sequence[Failure], page: Path | None) -> None:
    from penaltybox.cli.replay_report import report_view

    out.print()
    out.print(report_view(report, failed))
    if page is not None:
        out.print(f"Written: {page}", markup=False)
