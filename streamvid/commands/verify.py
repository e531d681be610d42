"""`streamvid verify`."""

from __future__ import annotations

import argparse
from collections import Counter

from rich.table import Table

from streamvid.commands.output import FAILED, SHOWN, console, printable


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    command = commands.add_parser(
        "verify", help="check a dataset", description="Check a dataset; exit code 1 if damaged."
    )
    command.add_argument("dataset", metavar="DATASET", help="folder or URL")
    command.add_argument("--decode", action="store_true", help="decode every frame as well")
    command.add_argument("--workers", type=int, metavar="N", help="processes; by default one per core")
    command.set_defaults(run=_run)


# The rest is imported when the command runs, so that a wrong option is reported at once.


def _run(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.info import counted, in_bytes, in_time
    from streamvid.inspection.verify import verify

    report = verify(arguments.dataset, decode=arguments.decode, workers=arguments.workers)
    manifest = report.manifest
    out = console()
    what = "every frame decoded" if report.decoded else "files, indexes and packets checked"
    out.print(
        f"{counted(manifest.clips, 'clip')} in {counted(len(manifest.shards), 'shard')}, "
        f"{in_bytes(manifest.tar_bytes)}: {what} in {in_time(report.elapsed)}"
    )
    if report.ok:
        out.print("no problems")
        return 0
    damaged = Counter(problem.shard for problem in report.problems)
    out.print(f"{counted(len(report.problems), 'problem')} in {counted(len(damaged), 'shard')}:")
    table = Table("shard", "clip", "problem", box=None, pad_edge=False)
    for problem in report.problems[:SHOWN]:
        table.add_row(problem.shard, printable(problem.clip), printable(problem.what))
    out.print(table)
    if len(report.problems) > SHOWN:
        out.print(f"and {len(report.problems) - SHOWN:,} more")
    return FAILED
