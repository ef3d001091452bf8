"""`penaltybox explain SUBJECT`: level, until, why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from penaltybox.cli.console import (
    AsJson,
    PolicyFile,
    instant,
    left,
    out,
    print_json,
    settings,
    table,
    typed_subject,
)
from penaltybox.cli.hand import policy_now
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import StoreUnavailable

if TYPE_CHECKING:
    from penaltybox.cli.explanation import Explanation
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.state import SubjectState

_PENALTIES: Final = """
SELECT toUnixTimestamp64Milli(ts) AS at, id, action, from_rung, to_rung, rule, evidence, trigger_id, policy_version,
       late, shadow, origin, actor, note,
       if(isNull(until), NULL, toUnixTimestamp64Milli(assumeNotNull(until))) AS until_ms
FROM penalties FINAL WHERE subject = {subject:String} ORDER BY ts DESC, seq DESC LIMIT 10
"""
_DECISIONS: Final = """
SELECT toUnixTimestamp64Milli(ts) AS at, id, action, reason, scenario, route, violated, user, device, ip, source
FROM decisions FINAL
WHERE ts <= fromUnixTimestamp64Milli({until:Int64}) AND ts > fromUnixTimestamp64Milli({from:Int64})
  AND (id = {trigger:String} OR has([concat('user:', user), concat('device:', device), concat('ip:', ip),
       concat('api_key:', api_key), subject], {subject:String}))
ORDER BY id = {trigger:String} DESC, ts DESC LIMIT 6
"""
_MINUTES_10: Final = 600_000


def explain(
    subject: Annotated[str, typer.Argument(help="dimension:value, e.g. ip:203.0.113.7 or user:10086.")],
    *,
    policy_file: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Say what is in force against a subject, since when and until when, and why.

    The state comes from Redis; the penalties and the decisions that led to them from ClickHouse, if it answers.

        penaltybox explain device:a1b2c3d4
    """
    from penaltybox.cli.explanation import explain_state

    values = settings()
    name = typed_subject(subject, values)
    policy = policy_now(policy_file, values)
    state = asyncio.run(_read(values, name))
    explanation = explain_state(state, name, policy, now_ms())
    history, missing = _history(values, name, policy)
    if as_json:
        print_json({"now": explanation, "history": history, "history_missing": missing})
        return
    _show_now(explanation)
    _show_why(explanation, history, missing)


async def _read(values: Settings, subject: str) -> SubjectState | None:
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.processors.state import decode_state
    from penaltybox.sinks.redis_store import RedisSubjectStore

    store = RedisSubjectStore(open_link(endpoint_of(values)), values.redis_prefix)
    try:
        (blob,) = await store.read([subject])
    finally:
        await store.close()
    return None if blob is None else decode_state(blob, subject)


def _history(values: Settings, subject: str, policy: Policy) -> tuple[list[dict[str, Any]], str]:
    """Penalties, newest first, of which three with the decisions around the trigger; and why there are none."""
    from penaltybox.sinks.clickhouse.client import ClickHouse

    windows = {rule.name: rule.window_ms for rule in policy.rules}
    clickhouse = ClickHouse.of(values)
    try:
        penalties = clickhouse.rows(_PENALTIES, {"subject": subject})
        for penalty in penalties[:3]:
            at, trigger = penalty["at"], penalty["trigger_id"]
            window_ms = windows.get(penalty["rule"], _MINUTES_10)
            given = {"subject": subject, "trigger": trigger, "from": at - window_ms, "until": at}
            penalty["decisions"] = clickhouse.rows(_DECISIONS, given)
    except StoreUnavailable as error:
        return [], str(error)
    finally:
        clickhouse.close()
    return penalties, ""


def _show_now(one: Explanation) -> None:
    out.print(f"[bold]{one.subject}[/bold]")
    if one.allowlisted:
        out.print("  allowlisted: nothing happens to it; a block that still runs comes back when the listing ends")
    if not one.known:
        out.print("  nothing is stored: never seen by a rule, or forgotten")
        return
    for hold in one.in_force:
        verb = "denied" if hold.action == "deny" else "challenged"
        end = "permanently" if hold.until is None else f"until {instant(hold.until)} ({left(hold.left_ms)} left)"
        out.print(f"  [bold red]{verb}[/bold red] {end}, rung {escape(hold.rung)}, by rule {escape(hold.rule)}")
    if not one.in_force and not one.allowlisted:
        out.print("  neither denied nor challenged now")
    _show_standing(one)


def _show_standing(one: Explanation) -> None:
    """What is remembered of the subject beside a block: ladder, trust, risk, exemptions."""
    if one.last_rung != "none":
        ended = one.last_ends is not None and one.last_ends <= now_ms()
        out.print(f"  last rung {one.last_rung}, which {'ended' if ended else 'ends'} {instant(one.last_ends)}")
    if one.last_step_at:
        out.print(f"  decisions up to {instant(one.last_step_at)} are history: they count no more")
    if one.established or one.quota_percent != 100:  # noqa: PLR2004 - percent
        out.print(f"  trusted: {'established, ' if one.established else ''}quota {one.quota_percent} %")
    if one.established_users:
        out.print(f"  {one.established_users} established users seen on it lately{', shared' if one.shared_ip else ''}")
    if one.risk:
        out.print(f"  risk score {one.risk}")
    for name, until in (("grace", one.grace_until), ("passed a challenge, exempt", one.pass_until)):
        if until > now_ms():
            out.print(f"  {name} until {instant(until)}")


def _show_why(one: Explanation, history: list[dict[str, Any]], missing: str) -> None:
    if one.known:
        out.print("\n[bold]Arithmetic[/bold]")
        for sentence in one.arithmetic:
            out.print(f"  {sentence}")
    if one.rules:
        rows = [
            (f"{rule.rule}{' (shadow)' if rule.shadow else ''}", f"{rule.seen} of {rule.threshold}", rule.says)
            for rule in one.rules
        ]
        out.print()
        out.print(table("Rules on it now", ["rule", "seen", "says"], rows))
    if missing:
        out.print(f"\nPenalties and decisions are not shown: {missing}", markup=False)
    for penalty in history:
        _show_penalty(penalty)


def _show_penalty(penalty: dict[str, Any]) -> None:
    marks = "".join(f" [{name}]" for name in ("shadow", "late") if penalty[name])
    by = f"by hand ({penalty['actor']}: {penalty['note']})" if penalty["origin"] == "hand" else f"by {penalty['rule']}"
    out.print(
        f"\n{instant(penalty['at'])}  {penalty['action']}  {penalty['from_rung']} → {penalty['to_rung']}, "
        f"until {instant(penalty['until_ms'])}, {by}{marks}",
        markup=False,
    )
    out.print(f"  why: {penalty['evidence']}", markup=False)
    for decision in penalty.get("decisions", ()):
        about = " ".join(f"{name}={decision[name]}" for name in ("user", "device", "ip") if decision[name])
        mark = "trigger" if decision["id"] == penalty["trigger_id"] else "before "
        reason = f" {decision['reason']}" if decision["reason"] else ""
        violated = f" {','.join(decision['violated'])}" if decision["violated"] else ""
        out.print(
            f"  {mark} {instant(decision['at'])} {decision['action']}{reason}{violated} {decision['scenario']} {about}",
            markup=False,
        )
