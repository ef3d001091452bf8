"""A policy tried on recorded traffic before it is put in force: what it changes, and whether it denies too many."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penaltybox.cli.console import kafka_errors, out
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.subjects import leading_part
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.cli.replay_job import Job
    from penaltybox.contracts.events import Decision, Hold, Outcome, Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.contracts.subjects import Names
    from penaltybox.links.policies import InForce
    from penaltybox.processors.replay.loop import Result
    from penaltybox.processors.replay.observer import Observer, Side

FEW: Final = 5
"""Fewer denied subjects than this are no crowd, whatever their share."""


class Share(msgspec.Struct, frozen=True):
    """Of one dimension: subjects seen, and how many of them each policy would have denied."""

    dimension: str
    seen: int
    denied: int
    denied_before: int

    @property
    def percent(self) -> float:
        """Denied by the new policy, of those seen."""
        return 100 * self.denied / self.seen if self.seen else 0.0


class Trial(NamedTuple):
    """What a trial found.

    Attributes:
        result: of the replay.
        shares: how many would be denied.
        limits: what the candidate's limits would have answered, if they were asked.
        remark: why they were not.
        refused: a sentence if too many would be denied, else empty.
    """

    result: Result
    shares: list[Share]
    limits: dict[str, int]
    remark: str
    refused: str


class Census:
    """Counts the subjects seen and denied, per dimension; hands all it hears on to a comparison, if there is one."""

    def __init__(self, inner: Observer | None = None) -> None:
        self._inner = inner
        self._seen: dict[str, set[str]] = {}
        self._denied: dict[Side, dict[str, set[str]]] = {BASELINE: {}, CANDIDATE: {}}

    def decision(self, decision: Decision, names: Names, stopped: Mapping[Side, Hold | None], counted: bool) -> None:
        """See `Observer`."""
        if self._inner is not None:
            self._inner.decision(decision, names, stopped, counted)
        if counted:
            for name in names:
                self._seen.setdefault(name.text.partition(":")[0], set()).add(name.text)

    def penalty(self, side: Side, penalty: Penalty, counted: bool) -> None:
        """See `Observer`."""
        if self._inner is not None:
            self._inner.penalty(side, penalty, counted)
        if counted and penalty.action == "deny" and not penalty.shadow and penalty.origin == "rule":
            dimension = leading_part(penalty.subject.partition(":")[0])
            self._denied[side].setdefault(dimension, set()).add(penalty.subject)

    def outcome(self, outcome: Outcome, counted: bool) -> None:
        """See `Observer`."""
        if self._inner is not None:
            self._inner.outcome(outcome, counted)

    def shares(self) -> list[Share]:
        """Per dimension, those with most denied first."""
        new, old = self._denied[CANDIDATE], self._denied[BASELINE]
        found = [Share(on, len(seen), len(new.get(on, ())), len(old.get(on, ()))) for on, seen in self._seen.items()]
        return sorted(found, key=lambda share: -share.percent)


def trial_of(
    values: Settings,
    candidate: Policy,
    current: InForce | None,
    *,
    source: str,
    last: str,
    most: float,
    quiet: bool,
) -> Trial:
    """Replay recorded traffic under both policies.

    Raises:
        ConfigurationError: it cannot be replayed; the message says how to do without.
    """
    from penaltybox.cli.replay_job import Job

    since = now_ms() - parse_duration(last, "--last") if source == "kafka" else None
    baseline = current.policy if current is not None else None
    job = Job(settings=values, candidate=candidate, baseline=baseline, source=source, from_ms=since)
    result, shares = _replayed(job, quiet=quiet)
    refused, limits, remark = _refusal(shares, most), result.candidate.limits or {}, ""
    if current is None and candidate.limits and not refused:
        limits, remark = _limits_alone(job)
    return Trial(result, shares, limits, remark, refused or limits_refusal(limits, most))


def _replayed(job: Job, *, quiet: bool) -> tuple[Result, list[Share]]:
    from penaltybox.cli.replay import progress
    from penaltybox.cli.replay_diff import finish, make_diff
    from penaltybox.cli.replay_job import run_job
    from penaltybox.processors.replay.loop import NothingThereError

    diff = make_diff(job)
    census = Census(diff.comparison if diff is not None else None)
    try:
        with kafka_errors(job.settings), progress(quiet=quiet) as report:
            result = asyncio.run(run_job(job, report=report, observer=census))
    except NothingThereError as error:
        raise ConfigurationError(
            f"policy apply: there is no traffic to try it on: {error.where} has none in that time. --last 7d tries "
            "it on more of the topics, --source FILE on a file; --no-replay applies it without."
        ) from error
    except (ConfigurationError, StoreUnavailable) as error:
        raise ConfigurationError(
            f"policy apply: it could not be tried on recorded traffic: {error} --no-replay applies it without."
        ) from error
    if not quiet:
        finish(result, diff, as_json=False)
    return result, census.shares()


def _limits_alone(job: Job) -> tuple[dict[str, int], str]:
    """What the candidate's limits answer where nothing is in force, and why they could not be asked.

    Whose limits the requests met is not known then, so the rules are tried on the answers as they were recorded, and
    the limits on the requests, apart.
    """
    from penaltybox.cli.replay_job import run_job
    from penaltybox.cli.replay_limits import OnlyASampleError

    try:
        with kafka_errors(job.settings):
            result = asyncio.run(run_job(msgspec.structs.replace(job, anew=True)))
    except OnlyASampleError:
        return {}, "Its limits were not tried: only a share of the allowed requests was recorded."
    except (ConfigurationError, StoreUnavailable) as error:
        raise ConfigurationError(
            f"policy apply: its limits could not be tried on recorded traffic: {error} --no-replay applies it without."
        ) from error
    return result.candidate.limits or {}, ""


def _refusal(shares: list[Share], most: float) -> str:
    for one in shares:
        if one.percent > most and one.denied >= FEW and one.denied > one.denied_before:
            return (
                f"it would have denied {one.denied:,} of {one.seen:,} subjects of the dimension {one.dimension} "
                f"({one.percent:.1f} %; {one.denied_before:,} under the policy in force), and --most allows {most:g} %."
            )
    return ""


def limits_refusal(answers: Mapping[str, int], most: float) -> str:
    """A sentence if changed limits would have refused too many of the requests that were allowed.

    Args:
        answers: what they answered, as in a replay's result.
        most: percent.
    """
    refused, before = _newly_refused(answers)
    if not before or refused < FEW or 100 * refused / before <= most:
        return ""
    return (
        f"its limits would have refused {refused:,} of {before:,} requests that were allowed "
        f"({100 * refused / before:.1f} %), and --most allows {most:g} %."
    )


def _newly_refused(answers: Mapping[str, int]) -> tuple[int, int]:
    """How many of the requests that were allowed would be refused, and how many those were."""
    refused = answers.get("newly_refused", 0)
    return refused, answers.get("allowed", 0) - answers.get("newly_allowed", 0) + refused


def shown_trial(trial: Trial) -> None:
    """The shares, for people."""
    if not trial.result.decisions:
        out.print("There was no traffic to try it on.")
        return
    for one in trial.shares:
        if one.denied or one.denied_before:
            said = f"{one.denied:,} of {one.seen:,} ({one.percent:.1f} %), before it {one.denied_before:,}"
            out.print(f"  denied of {one.dimension}: {said}", markup=False)
    if trial.limits:
        refused, before = _newly_refused(trial.limits)
        out.print(f"  refused by its limits: {refused:,} of {before:,} requests that were allowed")
    if trial.remark:
        out.print(f"  {trial.remark}", markup=False)
