"""`streamvid doctor`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from rich.table import Table

from streamvid.cli.output import FAILED, Commands, add_command, add_common, add_options, console
from streamvid.text import format_count, printable

if TYPE_CHECKING:
    from streamvid.inspection.doctor import Finding

_WIDEST: Final = 19
"""Characters of the longest name in the table."""


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    text = "look at what a training run needs of this machine"
    description = f"{text.capitalize()}; exit code 1 if something is missing."
    command = add_command(commands, "doctor", _run, text, description)
    options = {
        "dataset DATASET": "folder or URL to read as well",
        "--cache-dir DIR": "as the loader's; default: the user's cache",
    }
    add_options(command, options, dataset={"nargs": "?"})
    add_common(command, "json")


# Heavy modules are imported when the command runs, so that --help and wrong options are answered at once.


def _run(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.doctor import examine

    findings = []
    out = console()
    for finding in examine(arguments.dataset, cache_dir=arguments.cache_dir):
        findings.append(finding)
        if not arguments.json:
            out.print(_row(finding))
    problems = sum(finding.state == "problem" for finding in findings)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        out.print(format_count(problems, "problem") if problems else "no problems")
    return FAILED if problems else 0


def _row(finding: Finding) -> Table:
    """A table of one row, as some findings take seconds: each is shown when it is made."""
    table = Table.grid(padding=(0, 2))
    table.add_column(width=7)
    table.add_column(width=_WIDEST)
    table.add_column(overflow="fold")
    mark = "PROBLEM" if finding.state == "problem" else finding.state
    remedy = f"\n→ {printable(finding.remedy)}" if finding.remedy else ""
    table.add_row(mark, printable(finding.what), f"{printable(finding.found)}{remedy}")
    return table
