"""`penaltybox report`: who is hurt, who shares an address, how penalties go on, who farms, who meets which limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from penaltybox.cli.console import AsJson, PolicyFile, out, policy_of, print_json, settings
from penaltybox.cli.report_sections import (
    farm_sections,
    limit_sections,
    nat_sections,
    penalty_sections,
    rate_sections,
)
from penaltybox.cli.report_view import Period, Report, Section, check_page, show, write_page
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.processors.replay.times import parse_time
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.queries import BY_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable

app: Final = typer.Typer(help="What ClickHouse knows: rates with intervals, and what to change.", no_args_is_help=True)
Since = Annotated[str, typer.Option(help="Event times from here on, e.g. -7d or 2026-12-01.")]
Until = Annotated[str, typer.Option(help="To here, exclusive.")]
Dimension = Annotated[str, typer.Option(help="Only this dimension, e.g. ip.")]
Html = Annotated[
    Path | None, typer.Option("--html", help="Also write a page with plots to this file.", show_default=False)
]


@app.command("false-positives")
def false_positives(
    *,
    since: Since = "-30d",
    until: Until = "now",
    dimension: Dimension = "",
    matures: Annotated[
        str, typer.Option(help="How long labels take to come, instead of each label's own time: 1h, 2d.")
    ] = "",
    as_json: AsJson = False,
    html: Html = None,
) -> None:
    """Of what is limited, how much is legitimate; of the legitimate, how many are limited. With 95 % intervals.

    penaltybox report false-positives --since -30d --dimension ip
    """
    matures_s = parse_duration(matures, "--matures") // 1000 if matures else BY_LABEL
    _report(
        "false-positives", "False positives", since, until, as_json=as_json, html=html,
        make=lambda clickhouse, period: rate_sections(clickhouse, period, dimension, matures_s),
    )  # fmt: skip


@app.command("nat")
def nat(
    *,
    since: Since = "-7d",
    until: Until = "now",
    by: Annotated[
        Literal["ip", "prefix", "asn"], typer.Option(help="Addresses, networks (/24, /48), or attrs.asn.")
    ] = "ip",
    policy: PolicyFile = None,
    as_json: AsJson = False,
    html: Html = None,
) -> None:
    """Shared addresses where people are refused who kept within their own limits, and what to change about it.

    penaltybox report nat --since -7d
    """  # fmt: skip
    rules = policy_of(policy, settings())
    _report(
        "nat", "Shared addresses", since, until, as_json=as_json, html=html,
        make=lambda clickhouse, period: nat_sections(clickhouse, period, by, rules),
    )  # fmt: skip


@app.command("penalties")
def penalties(
    *, since: Since = "-7d", until: Until = "now", dimension: Dimension = "", as_json: AsJson = False, html: Html = None
) -> None:
    """Penalties by rule, the way up the ladder, and what blocks had to hold off.

    penaltybox report penalties --since -7d --dimension device
    """
    _report(
        "penalties", "Penalties", since, until, as_json=as_json, html=html,
        make=lambda clickhouse, period: penalty_sections(clickhouse, period, dimension),
    )  # fmt: skip


@app.command("farms")
def farms(
    *, since: Since = "-7d", until: Until = "now", dimension: Dimension = "", as_json: AsJson = False, html: Html = None
) -> None:
    """Devices and addresses with many accounts of which few are established.

    penaltybox report farms --since -7d --dimension device
    """
    _report(
        "farms", "Account farms", since, until, as_json=as_json, html=html,
        make=lambda clickhouse, period: farm_sections(clickhouse, period, dimension),
    )  # fmt: skip


@app.command("limits")
def limits(
    *, since: Since = "-7d", until: Until = "now", dimension: Dimension = "", as_json: AsJson = False, html: Html = None
) -> None:
    """Who meets which limit: abusers, or normal customers behind a bad threshold.

    penaltybox report limits --since -7d
    """
    _report(
        "limits", "Who meets which limit", since, until, as_json=as_json, html=html,
        make=lambda clickhouse, period: limit_sections(clickhouse, period, dimension),
    )  # fmt: skip


def _report(
    name: str,
    title: str,
    since: str,
    until: str,
    *,
    as_json: bool,
    html: Path | None,
    make: Callable[[ClickHouse, Period], list[Section]],
) -> None:
    as_of_ms = now_ms()
    period = Period(parse_time(since, "--since", as_of_ms), parse_time(until, "--until", as_of_ms), as_of_ms)
    if period.from_ms >= period.to_ms:
        raise ConfigurationError(f"--since {since} is not before --until {until}")
    if html is not None:
        check_page(html)
    clickhouse = ClickHouse.of(settings(), answer_s=PATIENT_S)
    try:
        report = Report(name=name, title=title, period=period, sections=make(clickhouse, period))
    finally:
        clickhouse.close()
    if html is not None:
        write_page(html, report)
    if as_json:
        print_json(report.document())
    else:
        out.print(show(report))
