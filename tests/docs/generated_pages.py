"""Pages made from what they describe: commands, both APIs, the index of decisions. `make docs` writes them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from penaltybox.cli.commands import app
from penaltybox.cli.console_page import openapi
from penaltybox.producers.service import openapi as service_openapi

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parent.parent.parent / "docs"
COMMANDS = DOCS / "commands.md"
CONSOLE_API = DOCS / "console-openapi.json"
SERVICE_API = DOCS / "openapi.json"
DECISIONS = DOCS / "decisions" / "README.md"
HEAD = """\
# Commands

Every command and option. This page is made from the command line itself (`make docs`), and the tests keep it current.
`penaltybox COMMAND --help` says the same.

Addresses and passwords are [settings](settings.md), not options. A failure is one sentence on standard error and exit
code 2; `doctor` exits with 1 when it finds something wrong. `--json` prints for programs.
"""
DECISIONS_HEAD = """\
# Decisions

One page each: what was decided, why, and what it costs. A better idea is welcome, in a page that replaces one.
`make docs` makes this index.

"""


def commands() -> Iterator[tuple[str, Any]]:
    """Full name and click command of everything that can be called, in the order of `--help`."""
    for name, one in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(one, "commands", None)
        if inner is None:
            yield name, one
        else:
            yield from ((f"{name} {sub}", command) for sub, command in inner.items())


def command_page() -> str:
    """docs/commands.md."""
    return "\n".join([HEAD, *(section(name, one) for name, one in commands())])


def section(name: str, one: Any) -> str:
    """A command: usage, help, a table of what it takes."""
    shown = [parameter for parameter in one.params if parameter.name != "help"]
    arguments = [argument_text(parameter) for parameter in shown if parameter.param_type_name == "argument"]
    usage = " ".join(["penaltybox", name, *arguments, *(["[OPTIONS]"] if len(arguments) < len(shown) else [])])
    lines = [f"## penaltybox {name}", "", f"`{usage}`", "", prose(one.help or ""), ""]
    if shown:
        lines += ["| | | default |", "|---|---|---|", *map(row, shown), ""]
    return "\n".join(lines)


def prose(text: str) -> str:
    """Help text as Markdown: indented lines are code already, markup of the terminal goes."""
    return re.sub(r"\[/?bold\]", "**", inspect.cleandoc(text))


def argument_text(parameter: Any) -> str:
    """An argument as it stands in a usage line."""
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def row(parameter: Any) -> str:
    """A parameter in the table."""
    if parameter.param_type_name == "argument":
        name = argument_text(parameter)
    else:
        name = " ".join([", ".join([*parameter.opts, *parameter.secondary_opts]), value_text(parameter)]).strip()
    cells = [f"`{name}`", parameter.help or "", default_text(parameter)]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def value_text(parameter: Any) -> str:
    """What an option takes."""
    if parameter.is_flag:
        return ""
    return parameter.metavar or parameter.opts[-1].removeprefix("--").replace("-", "_").upper()


def default_text(parameter: Any) -> str:
    """A default that is worth showing."""
    default = parameter.default
    return "" if default in (None, "", False, ()) else f"`{'yes' if default is True else default}`"


def decisions_page() -> str:
    """docs/decisions/README.md.

    Raises:
        ValueError: a page whose first line is not `# <number>. <title>`.
    """
    lines = []
    for page in sorted(DECISIONS.parent.glob("[0-9]*.md")):
        first = page.read_text(encoding="utf-8").partition("\n")[0]
        title = re.fullmatch(r"# 0*(\d+)[.:] (.+)", first)
        if title is None or int(title[1]) != int(page.name[:4]):
            raise ValueError(f"{page.name} begins with {first!r}, wanted `# {int(page.name[:4])}. <title>`")
        lines.append(f"- [{page.name[:4]}]({page.name}) {title[2]}\n")
    return DECISIONS_HEAD + "".join(lines)


if __name__ == "__main__":
    COMMANDS.write_text(command_page(), encoding="utf-8")
    CONSOLE_API.write_text(openapi.text(), encoding="utf-8")
    SERVICE_API.write_text(service_openapi.text(), encoding="utf-8")
    DECISIONS.write_text(decisions_page(), encoding="utf-8")
