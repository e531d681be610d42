"""`streamvid pack`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from streamvid.cli.cut_options import add_cut_options, cutting_rule
from streamvid.cli.output import SHOWN, console, parse_size
from streamvid.cli.transcode_options import add_transcode_options, transcode_options, warn_of_incompatible
from streamvid.errors import InputError
from streamvid.text import format_bytes, format_count, format_duration, printable

if TYPE_CHECKING:
    from streamvid.packing.report import PackReport


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    command = commands.add_parser("pack", help="pack videos into a dataset", description="Pack videos into a dataset.")
    command.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="file, folder, 'glob', or list (.csv, .jsonl, .parquet)"
    )
    command.add_argument("destination", metavar="DATASET", help="folder or s3://bucket/prefix to pack into")
    command.add_argument("--labels", metavar="LIST", help="a .csv, .jsonl or .parquet with columns path and label")
    command.add_argument(
        "--metadata",
        metavar="LIST",
        action="append",
        default=[],
        help="a list with a column path and any others; repeatable",
    )
    command.add_argument("--shard-size", type=parse_size, default="256MiB", metavar="SIZE", help="default 256MiB")
    command.add_argument("--name", help="name of the dataset; default: its folder's")
    command.add_argument("--workers", type=int, metavar="N", help="processes; default: one per core")
    command.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="processes on this machine (local, the default) or tasks on a Ray cluster",
    )
    command.add_argument(
        "--address", metavar="HOST:PORT", help="of the Ray cluster; default: RAY_ADDRESS, or a cluster on this machine"
    )
    command.add_argument("--overwrite", action="store_true", help="replace an existing dataset")
    command.add_argument("--append", action="store_true", help="add new videos to an existing dataset")
    add_cut_options(command)
    add_transcode_options(command)
    command.set_defaults(run=_run)


# Heavy modules are imported when the command runs, so that --help and wrong options are answered at once.


def _run(arguments: argparse.Namespace) -> int:
    from streamvid.packing.options import PackOptions
    from streamvid.packing.pack import pack

    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers {arguments.workers}: give 1 or more, or leave it out")
    report = pack(
        arguments.inputs,
        arguments.destination,
        labels=arguments.labels,
        metadata=arguments.metadata,
        cuts=arguments.cuts,
        options=PackOptions(
            compatible_with=arguments.compatible_with,
            cutting=cutting_rule(arguments),
            exact_cuts=arguments.exact_cuts == "reencode",
            transcode=transcode_options(arguments),
            fps=arguments.fps,
        ),
        shard_size=arguments.shard_size,
        name=arguments.name,
        workers=arguments.workers,
        engine=arguments.engine,
        address=arguments.address,
        overwrite=arguments.overwrite,
        append=arguments.append,
    )
    _print_summary(report)
    if arguments.compatible_with == "any":
        warn_of_incompatible(arguments.destination, console())
    return 0


def _print_summary(report: PackReport) -> None:
    from streamvid.packing.destination import REJECTED_FILE
    from streamvid.storage.url import join, redact

    manifest, shown = report.manifest, redact(report.destination)
    out = console()
    whole = (
        f"{format_count(manifest.clips, 'clip')} ({manifest.frames:,} frames, {format_duration(manifest.seconds)}) in "
        f"{format_count(len(manifest.shards), 'shard')}, {format_bytes(manifest.tar_bytes)}"
    )
    if report.was_there:
        out.print(f"nothing to do: {shown} has these videos already: {whole}")
    elif manifest.revision:
        out.print(
            f"added {format_count(report.clips, 'clip')}, {format_bytes(report.bytes)}, in "
            f"{format_duration(report.elapsed)} to {shown}, which now has {whole}"
        )
    else:
        out.print(f"packed {whole}, at {shown} in {format_duration(report.elapsed)}")
    if report.resumed:
        out.print(f"{format_count(report.resumed, 'clip')} of these had been packed by an interrupted run")
    if report.skipped:
        out.print(f"skipped {format_count(report.skipped, 'video')} that the dataset had already")
    for one in report.joins:
        for sentence in one.sentences():
            out.print(printable(sentence))
    if report.rejected:
        where = redact(join(report.destination, REJECTED_FILE))
        out.print(f"rejected {format_count(len(report.rejected), 'video')}, listed in {where}:")
        for rejected in report.rejected[:SHOWN]:
            out.print(f"  {printable(rejected.source)}: {printable(rejected.reason)}")
        if len(report.rejected) > SHOWN:
            out.print(f"  and {len(report.rejected) - SHOWN:,} more")
