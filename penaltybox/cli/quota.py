"""`penaltybox quota show | set | clear`: one customer's plan and own limits, live with the next request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penaltybox.cli.console import AsJson, PolicyFile, one_subject, out, print_json, settings, table
from penaltybox.cli.control import control, opened, tell
from penaltybox.cli.hand import Actor, Reason, Subject, actor_given, policy_now, reason_given
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy import limits_by_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.events import Control
    from penaltybox.contracts.policy import Limit, Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.sinks.customer_plans import CustomerPlan

_CUSTOMERS = ("user", "api_key")
_MOST = 1_000_000_000
app = typer.Typer(
    help="One customer's plan and own limits, without a deploy: live with the next request.", no_args_is_help=True
)


@app.command("show")
def show(subject: Subject, *, policy_file: PolicyFile = None, as_json: AsJson = False) -> None:
    """Show the limits that are in force for one customer, and where each comes from.

    Trust, which raises or lowers all of them, is told by `penaltybox explain`.

        penaltybox quota show user:10086
    """
    values = settings()
    name, policy = _customer(subject, values), policy_now(policy_file, values)
    plan = asyncio.run(_read(values, name))
    rows = [_in_force(path, limit, plan, policy) for path, limit in limits_by_path(policy.limits).items()]
    if as_json:
        limits = {path: {"limit": number, "window_ms": limit.window_ms, "from": source}
                  for path, limit, number, source in rows}  # fmt: skip
        print_json({"subject": name, "plan": plan.plan, "limits": limits})
        return
    shown = [(path, number, f"{limit.window_ms // 1000:,} s", source) for path, limit, number, source in rows]
    title = f"{name}, plan {plan.plan}" if plan.plan else f"{name}, no plan"
    out.print(table(title, ["limit", "quota", "window", "from"], shown, right=["quota", "window"]))


@app.command("set")
def set_(
    subject: Subject,
    *,
    plan: Annotated[str, typer.Option(help="A plan of the policy.")] = "",
    limit: Annotated[
        list[str] | None,
        typer.Option(help="scenario/dimension:name=N, e.g. coupon_claim/user:daily=50; may be repeated."),
    ] = None,
    reason: Reason,
    actor: Actor = "",
    policy_file: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Give one customer a plan, or limits of its own, which come before the plan's.

    penaltybox quota set user:10086 --limit coupon_claim/user:daily=50 --reason "campaign, ticket 4711"
    """
    values, who, why = settings(), actor_given(actor), reason_given(reason)
    name, policy = _customer(subject, values), policy_now(policy_file, values)
    own = dict(_own_limit(text, policy) for text in limit or ())
    if plan and plan not in policy.plans:
        raise ConfigurationError(
            f"--plan: got {plan!r}, wanted a plan of the policy: {', '.join(policy.plans) or 'none'}"
        )
    if not plan and not own:
        raise ConfigurationError("got neither --plan nor --limit, wanted at least one of them")

    def change(old: CustomerPlan) -> CustomerPlan:
        return type(old)(plan or old.plan, {**old.limits, **own})

    _change(values, name, change, why, who, as_json=as_json)


@app.command("clear")
def clear(subject: Subject, *, reason: Reason, actor: Actor = "", as_json: AsJson = False) -> None:
    """Take plan and own limits away: the policy's limits are in force again.

    penaltybox quota clear user:10086 --reason "campaign is over"
    """
    values = settings()
    name = _customer(subject, values)
    _change(values, name, lambda old: type(old)(), reason_given(reason), actor_given(actor), as_json=as_json)


def _change(
    values: Settings,
    subject: str,
    change: Callable[[CustomerPlan], CustomerPlan],
    reason: str,
    actor: str,
    *,
    as_json: bool,
) -> None:
    def record(new: CustomerPlan) -> Control:
        value = msgspec.json.encode(new).decode()
        return control("override", f"plan:{subject}", value, actor=actor, reason=reason)

    new = asyncio.run(_replace(values, subject, change, record))
    if as_json:
        print_json({"subject": subject, "plan": new.plan, "limits": new.limits})
    else:
        out.print(f"{subject} has {_described(new)}, by {actor}: {reason}. In force at once.", markup=False)


def _described(plan: CustomerPlan) -> str:
    parts = [f"plan {plan.plan}"] if plan.plan else []
    parts += [f"{path}={number}" for path, number in sorted(plan.limits.items())]
    return ", ".join(parts) or "the policy's limits"


def _in_force(path: str, limit: Limit, plan: CustomerPlan, policy: Policy) -> tuple[str, Limit, int, str]:
    if path in plan.limits:
        return path, limit, plan.limits[path], "own"
    planned = policy.plans.get(plan.plan, {})
    return (path, limit, planned[path], "plan") if path in planned else (path, limit, limit.limit, "policy")


def _own_limit(text: str, policy: Policy) -> tuple[str, int]:
    path, equals, number = text.rpartition("=")
    known = limits_by_path(policy.limits)
    if not equals or path not in known:
        raise ConfigurationError(
            f"--limit: got {text!r}, wanted NAME=N with one of {', '.join(sorted(known)) or 'none'}"
        )
    if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= _MOST):
        raise ConfigurationError(f"--limit {path}: got {number!r}, wanted a whole number from 1 to {_MOST:,}")
    return path, int(number)


def _customer(subject: str, values: Settings) -> str:
    name = one_subject(subject, values)
    if name.partition(":")[0] not in _CUSTOMERS:
        raise ConfigurationError(f"subject: got {name}, wanted a user or api_key: they have plans")
    return name


async def _replace(
    values: Settings,
    subject: str,
    change: Callable[[CustomerPlan], CustomerPlan],
    record: Callable[[CustomerPlan], Control],
) -> CustomerPlan:
    from penaltybox.sinks.customer_plans import CustomerPlans

    async with opened(values) as (link, untold):
        new = await CustomerPlans(link, values.redis_prefix).change(subject, change, record)
        await tell(values, untold)
    return new


async def _read(values: Settings, subject: str) -> CustomerPlan:
    from penaltybox.sinks.customer_plans import CustomerPlans

    async with opened(values) as (link, _):
        return await CustomerPlans(link, values.redis_prefix).read(subject)
