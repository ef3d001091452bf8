"""`penaltybox policy apply | rollback`: what changes the policy in force."""

from __future__ import annotations

import asyncio
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import typer

from penaltybox.cli.console import AsJson, err, out, print_json, settings
from penaltybox.cli.control import opened, tell
from penaltybox.cli.hand import Actor, Reason, actor_given, reason_given
from penaltybox.cli.policy_findings import warnings
from penaltybox.cli.policy_source import in_force, read_file, stored_version
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_changes import changes
from penaltybox.contracts.policy_versions import StoredPolicy, Switch

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings

_REFUSED = 3
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def apply(
    file: Annotated[Path, typer.Argument(help="The policy file.")],
    *,
    reason: Reason,
    actor: Actor = "",
    replay: Annotated[bool, typer.Option(help="Try it on recorded traffic first.")] = True,
    last: Annotated[str, typer.Option(metavar="DURATION", help="How much of the topics to try it on.")] = "6h",
    source: Annotated[
        str, typer.Option(metavar="kafka|FILE", help="Recorded traffic, as replay takes it; of a file all of it.")
    ] = "kafka",
    most: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            help="Refuse if more percent of the subjects of a dimension, or of allowed requests, were denied.",
        ),
    ] = 10,
    force: Annotated[bool, typer.Option("--force", help="Apply it even so.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Put a policy file in force: everywhere, within a second, without a restart.

    It is checked, compared with the one in force, and tried on the traffic of the last hours; if that would have denied
    more than a share of all users, devices or addresses, it is refused (exit code 3). Then it asks. Version, actor and
    reason stand in the history and in the control topic, also when Kafka is away for a while.

        penaltybox policy apply policy.yaml --reason "stuffing of last night, ticket 4711"
    """
    from penaltybox.cli.policy import show_changes
    from penaltybox.cli.policy_trial import shown_trial, trial_of

    values, who, why = settings(), actor_given(actor), reason_given(reason)
    new, switches = read_file(file, values), asyncio.run(_switches(values))
    current = in_force(values)
    found = changes(current.policy, new.policy) if current is not None else []
    if current is not None and not found:
        _nothing_to_do(current.switch.version, as_json=as_json)
        return
    warned = warnings(new.policy, now_ms())
    if not as_json:
        out.print(f"{new.name}, version {new.policy.version}", markup=False)
        show_changes(found) if current is not None else out.print(f"  {_first(new.policy)}", markup=False)
        for one in warned:
            out.print(f"  [yellow]warning[/yellow] {one.where}: ", end="")
            out.print(one.says, markup=False)
    trial = (
        trial_of(values, new.policy, current, source=source, last=last, most=most, quiet=as_json) if replay else None
    )
    if trial is not None and not as_json:
        shown_trial(trial)
    if trial is not None and trial.refused and not force:
        if as_json:
            print_json(
                {
                    "applied": False,
                    "version": new.policy.version,
                    "refused": trial.refused,
                    "trial": trial.shares,
                    "limits": trial.limits,
                }
            )
        err.print(f"Not applied: {trial.refused} --force applies it even so.", markup=False)
        raise typer.Exit(_REFUSED)
    if not yes:
        typer.confirm(f"Put version {new.policy.version} in force?", abort=True, err=True)
    stored = StoredPolicy(version=new.policy.version, text=new.text, name=file.name, actor=who, reason=why, ts=now_ms())
    switch = Switch(version=stored.version, ts=stored.ts, actor=who, reason=why)
    told = asyncio.run(_put(values, stored, switch, switches))
    if as_json:
        shares, limits = (trial.shares, trial.limits) if trial is not None else (None, None)
        print_json({"applied": True, "version": stored.version, "before": current and current.switch.version,
                    "changes": found, "warnings": warned, "trial": shares, "limits": limits, "told": told})  # fmt: skip
        return
    before = f" Before it: {current.switch.version}; penaltybox policy rollback goes back." if current else ""
    out.print(f"Version {stored.version} is in force, by {who}: {why}.{before}", markup=False)


def _first(policy: Policy) -> str:
    """What the first policy that is applied takes over from the programs' files, which nobody here knows."""
    has = ["no rules: it punishes nobody"] if not policy.rules else []
    has += ["no limits: limiters refuse only who is blocked"] if not policy.limits else []
    says = "No policy was applied before it: until now every program goes by its own file."
    return f"{says} This one has {', and '.join(has)}." if has else says


def _nothing_to_do(version: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"applied": False, "version": version, "changes": []})
    else:
        out.print(f"Version {version} is in force already: nothing to do.", markup=False)


def rollback(
    version: Annotated[
        str, typer.Argument(help="A version of the history; else the one before the current.", show_default=False)
    ] = "",
    *,
    reason: Reason,
    actor: Actor = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Put an earlier version in force again, at once and without a replay.

    Who was blocked meanwhile stays blocked: penaltybox blocks lists them, unban lifts.

        penaltybox policy rollback --reason "the new rule hits an office"
    """
    values, who, why = settings(), actor_given(actor), reason_given(reason)
    switches = asyncio.run(_switches(values))
    now_version, wanted = _before(switches)
    wanted = version or wanted
    if not wanted:
        raise ConfigurationError(
            "policy rollback: there is no version before the one in force. Until it was applied each program used its "
            "own file: penaltybox policy apply puts that file in force"
        )
    stored = stored_version(wanted, values)
    stored.policy()  # what this release cannot use is not put in force
    if wanted == now_version:
        _nothing_to_do(wanted, as_json=as_json)
        return
    if not yes:
        typer.confirm(f"Put version {wanted} in force again, instead of {now_version or 'none'}?", abort=True, err=True)
    switch = Switch(version=wanted, ts=now_ms(), actor=who, reason=why, verb="rollback")
    told = asyncio.run(_put(values, stored, switch, switches))
    if as_json:
        print_json({"applied": True, "version": wanted, "before": now_version, "told": told})
    else:
        out.print(f"Version {wanted} is in force again, by {who}: {why}.", markup=False)


async def _switches(values: Settings) -> list[Switch]:
    from penaltybox.sinks.policy_versions import history

    async with opened(values) as (link, _):
        return await history(link, values.redis_prefix)


def _before(switches: list[Switch]) -> tuple[str, str]:
    """The version in force, and the last other one; empty where there is none."""
    versions = [switch.version for switch in switches]
    current = versions[-1] if versions else ""
    return current, next((one for one in reversed(versions) if one != current), "")


async def _put(values: Settings, stored: StoredPolicy, switch: Switch, seen: list[Switch]) -> bool:
    """Puts it in force; whether the control topic knows already.

    Raises:
        ConfigurationError: somebody else has switched since `seen`: what was compared, tried and answered is stale.
    """
    from penaltybox.sinks.policy_versions import history, put_in_force

    async with opened(values) as (link, untold):
        last = (await history(link, values.redis_prefix))[-1:]
        if last != seen[-1:]:
            says = f"{last[0].version}, by {last[0].actor}: {last[0].reason}" if last else "the programs' own files"
            raise ConfigurationError(
                f"policy: nothing was changed, for meanwhile another one was put in force ({says}). Say it again, and "
                "see what differs from that"
            )
        await put_in_force(untold, stored, switch)
        return await tell(values, untold)
