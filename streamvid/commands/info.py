"""`streamvid info`."""

from __future__ import annotations

import argparse

from streamvid.commands.output import console


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    command = commands.add_parser("info", help="show what is in a dataset", description="Show what is in a dataset.")
    command.add_argument("dataset", metavar="DATASET", help="folder or URL")
    command.set_defaults(run=_run)


# The rest is imported when the command runs, so that a wrong option is reported at once.


def _run(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.info import describe, render

    console().print(render(describe(arguments.dataset)))
    return 0
