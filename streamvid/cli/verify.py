"""`streamvid verify` and `doctor`: whether a dataset is sound, and a machine fit for training."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from rich.table import Table

from streamvid.cli.output import FAILED, SHOWN, Commands, add_command, call, common, console
from streamvid.text import format_bytes, format_count, format_duration, printable

if TYPE_CHECKING:
    from streamvid.inspection.doctor import Finding

_WIDEST: Final = 19
"""Characters of the longest name in the table of `doctor`."""


def add_parser(commands: Commands) -> None:
    """Add the commands and their options."""
    description = "Check a dataset; exit code 1 if damaged. Packets that `index --fast` did not read get checksums."
    add_command(commands, "verify", _verify, "check a dataset", common("dataset workers roots revision") | {
        "--decode": "also decode every frame",
        "--sample SHARE": "check a random share of the clips, such as 1%%",
        "--seed N=0": "seed of the random sample; default 0",
        "--quarantine FILE": "check and decode only the clips that a run has put into this quarantine",
    }, {"sample": {"type": parse_share}}, description=description, needs={"--seed": "--sample"})  # fmt: skip
    what = "check that this machine has everything that a training run needs"
    add_command(commands, "doctor", _doctor, what, {
        "dataset DATASET": "folder or URL of a dataset to read, too",
        "--cache-dir DIR": "the loader's cache_dir; default: the user's cache folder",
        **common("json roots"),
    }, {"dataset": {"nargs": "?"}}, description=f"{what.capitalize()}; exit code 1 if something is missing."
    )  # fmt: skip


def parse_share(text: str) -> float:
    """``1%`` or ``0.5 %`` → 0.01 or 0.005."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%\s*", text)
    share = float(match.group(1)) / 100 if match else 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share of the clips; write 1%, or up to 100%")
    return share


# Heavy modules are imported when the command runs, so that --help and wrong options are answered at once.


def _verify(arguments: argparse.Namespace) -> int:
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


def _doctor(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.doctor import examine

    findings = []
    out = console()
    for finding in examine(arguments.dataset, cache_dir=arguments.cache_dir, roots=arguments.roots):
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
