"""`streamvid verify`."""

from __future__ import annotations

import argparse
import re
from collections import Counter

from rich.table import Table

from streamvid.cli.output import FAILED, SHOWN, Commands, add_command, add_common, add_options, call, console
from streamvid.text import format_bytes, format_count, format_duration, printable


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    description = "Check a dataset; exit code 1 if damaged. Packets that `index --fast` did not read get checksums."
    command = add_command(commands, "verify", _run, "check a dataset", description)
    add_common(command, "dataset workers roots revision")
    options = {
        "--decode": "decode every frame as well",
        "--sample SHARE": "check a random share of the clips, such as 1%%",
        "--seed N=0": "of the random sample; default 0",
        "--quarantine FILE": "decode just the clips that a run has noted there",
    }
    add_options(command, options, sample={"type": parse_share})


def parse_share(text: str) -> float:
    """``1%`` or ``0.5 %`` → 0.01 or 0.005."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%\s*", text)
    share = float(match.group(1)) / 100 if match else 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share of the clips; write 1%, or up to 100%")
    return share


# Heavy modules are imported when the command runs, so that --help and wrong options are answered at once.


def _run(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.verify import verify

    report = call(verify, arguments, path=arguments.dataset)
    manifest = report.manifest
    out = console()
    what = "every frame decoded" if report.decoded else "files, indexes and packets checked"
    if arguments.sample is not None:
        what = f"indexes checked, and of {format_count(report.checked, 'clip')} {what}"
    if arguments.quarantine is not None:
        what = f"of {format_count(report.checked, 'clip')} in quarantine {what}"
    out.print(
        f"{format_count(manifest.clips, 'clip')} in {format_count(len(manifest.shards), 'shard')}, "
        f"{format_bytes(manifest.tar_bytes)}: {what} in {format_duration(report.elapsed)}"
    )
    for note in report.notes:
        out.print(f"note: {printable(note)}")
    if report.ok:
        out.print("no problems")
        return 0
    damaged = Counter(problem.shard for problem in report.problems if problem.shard)
    out.print(f"{format_count(len(report.problems), 'problem')} in {format_count(len(damaged), 'shard')}:")
    table = Table("shard", "clip", "problem", box=None, pad_edge=False)
    for problem in report.problems[:SHOWN]:
        table.add_row(problem.shard, printable(problem.clip), printable(problem.what))
    out.print(table)
    if len(report.problems) > SHOWN:
        out.print(f"and {len(report.problems) - SHOWN:,} more")
    return FAILED
