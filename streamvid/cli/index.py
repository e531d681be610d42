"""`streamvid index`."""

from __future__ import annotations

import argparse

from streamvid.cli.output import Commands, add_command, add_options, call
from streamvid.cli.pack import add_shared_options, cutting_rule, print_summary
from streamvid.errors import InputError


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    command = add_command(commands, "index", _run, "index videos where they lie, and copy none")
    options = {
        "places PLACE": "folder, file, 'glob' or list of videos or of tars that hold them, or a LeRobot dataset",
        "destination DATASET": "folder or s3://bucket/prefix for the dataset",
        "--fast": "take what is known of an MP4 or MOV from its tables, with a few reads",
        "--camera NAME...": "of a LeRobot dataset; repeatable; default: all",
        "--roots PLACE...": "a folder or URL to which links and lists may lead, too; repeatable",
        "--update": "look at what is new or changed in PLACE, and add it",
        "--copy-others": "pack what cannot be read where it lies",
    }
    add_options(command, options, places={"nargs": "+"})
    add_shared_options(command)


def _run(arguments: argparse.Namespace) -> int:
    from streamvid.packing.index import index

    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers {arguments.workers}: give 1 or more, or leave it out")
    report = call(index, arguments, cutting=cutting_rule(arguments))
    print_summary(report, "indexed")
    return 0
