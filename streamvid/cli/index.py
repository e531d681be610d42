"""`streamvid index`."""

from __future__ import annotations

import argparse

from streamvid.cli.output import Commands, add_command, call
from streamvid.cli.pack import add_shared_options, cutting_rule, print_summary
from streamvid.errors import InputError


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    command = add_command(commands, "index", _run, "index videos where they lie, and copy none")
    command.add_argument(
        "places",
        nargs="+",
        metavar="PLACE",
        help="folder, file, 'glob' or list of videos or of tars that hold them, or a LeRobot dataset",
    )
    command.add_argument("destination", metavar="DATASET", help="folder or s3://bucket/prefix for the dataset")
    command.add_argument(
        "--fast", action="store_true", help="take what is known of an MP4 or MOV from its tables, with a few reads"
    )
    command.add_argument(
        "--camera", action="append", default=[], metavar="NAME", help="of a LeRobot dataset; repeatable; default: all"
    )
    command.add_argument(
        "--roots",
        action="append",
        default=[],
        metavar="PLACE",
        help="a folder or URL to which links and lists may lead, too; repeatable",
    )
    command.add_argument("--update", action="store_true", help="look at what is new or changed in PLACE, and add it")
    command.add_argument("--copy-others", action="store_true", help="pack what cannot be read where it lies")
    add_shared_options(command)


def _run(arguments: argparse.Namespace) -> int:
    from streamvid.packing.index import index

    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers {arguments.workers}: give 1 or more, or leave it out")
    report = call(index, arguments, cutting=cutting_rule(arguments))
    print_summary(report, "indexed")
    return 0
