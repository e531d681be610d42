"""`streamvid pack`."""

from __future__ import annotations

import argparse

from streamvid.commands.output import SHOWN, console, parse_size, printable
from streamvid.errors import InputError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    command = commands.add_parser("pack", help="pack videos into a dataset", description="Pack videos into a dataset.")
    command.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="file, folder, 'glob', or list (.csv, .jsonl, .parquet)"
    )
    command.add_argument("destination", metavar="DATASET", help="folder or s3://bucket/prefix to pack into")
    command.add_argument("--labels", metavar="LIST", help=".csv, .jsonl or .parquet with columns path and label")
    command.add_argument("--shard-size", type=parse_size, default="256MiB", metavar="SIZE", help="default 256MiB")
    command.add_argument("--name", help="name of the dataset; by default that of its folder")
    command.add_argument("--workers", type=int, metavar="N", help="processes; by default one per core")
    command.add_argument("--overwrite", action="store_true", help="replace a dataset that is there")
    command.set_defaults(run=_run)


# The rest is imported when the command runs, so that a wrong option is reported at once.


def _run(arguments: argparse.Namespace) -> int:
    from streamvid.inspection.info import counted, in_bytes, in_time
    from streamvid.packing.destination import REJECTED_FILE
    from streamvid.packing.pack import pack
    from streamvid.store.storage import join, redact

    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers {arguments.workers}: give 1 or more, or leave it out")
    report = pack(
        arguments.inputs,
        arguments.destination,
        labels=arguments.labels,
        shard_size=arguments.shard_size,
        name=arguments.name,
        workers=arguments.workers,
        overwrite=arguments.overwrite,
    )
    manifest = report.manifest
    out = console()
    out.print(
        f"packed {counted(manifest.clips, 'clip')} ({manifest.frames:,} frames, {in_time(manifest.seconds)}) into "
        f"{counted(len(manifest.shards), 'shard')}, {in_bytes(manifest.tar_bytes)}, "
        f"at {redact(report.destination)} in {in_time(report.elapsed)}"
    )
    if report.rejected:
        where = redact(join(report.destination, REJECTED_FILE))
        out.print(f"rejected {counted(len(report.rejected), 'video')}, listed in {where}:")
        for rejected in report.rejected[:SHOWN]:
            out.print(f"  {printable(rejected.source)}: {printable(rejected.reason)}")
        if len(report.rejected) > SHOWN:
            out.print(f"  and {len(report.rejected) - SHOWN:,} more")
    return 0
