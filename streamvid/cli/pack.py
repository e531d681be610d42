"""`streamvid pack` and `streamvid index`."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from streamvid.checks import fraction
from streamvid.cli.output import Commands, Options, add_command, call, common, console, print_some
from streamvid.errors import InputError
from streamvid.text import format_bytes, format_count, format_duration, printable

if TYPE_CHECKING:
    from streamvid.packing.options import FixedLength, Scenes
    from streamvid.packing.report import PackReport
    from streamvid.video.transcode import TranscodeOptions

_LENGTH: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|min|h|f|)")
_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NTSC: Final = {
    Fraction(written): Fraction(1000 * nearest, 1001)
    for written, nearest in [("23.976", 24), ("23.98", 24), ("29.97", 30), ("59.94", 60), ("119.88", 120)]
}
"""Decimal spellings of NTSC frame rates, which are multiples of 1/1001."""
_TRANSCODE_OPTIONS: Final = ("codec", "short_side", "max_fps", "gop", "crf")
_NAMED: Final = 3
"""Skipped videos that the summary names."""


def add_parser(commands: Commands) -> None:
    """Add the commands and their options."""
    rate: Mapping[str, Any] = {"type": parse_rate}
    lengths = {name: {"type": parse_length} for name in ("clip", "shortest_scene")}
    shared: Options = {
        "--images": "make each image a clip, also beside videos and in folders of numbered images",
        "--labels LIST":
            "a .csv, .jsonl or .parquet with columns path and label; or folders: a video's folder is its class",
        "--metadata LIST...": "list with a column path and any other columns; repeatable",
        "--name NAME": "name of the dataset; default: its folder's",
        "--engine local|ray=local": "processes on this machine (local, the default) or tasks on a Ray cluster",
        "--address HOST:PORT": "address of the Ray cluster; default: RAY_ADDRESS, or a cluster on this machine",
        "--retry-for SECONDS=600":
            "how long a storage that does not answer is asked again once packing has begun; default 600",
        "--decode none|first|all=first": "frames that must decode for a clip to be accepted: the first 64 and the "
        "middle 64 (first, the default), all, or none",
        **common("workers overwrite"),
        "at most one of": {
            "--clip LENGTH": "cut videos into clips: 10s, 500ms, 2m, or 64f (frames)",
            "--scenes": "cut videos at scene changes",
            "--cuts LIST": "a .csv, .jsonl or .parquet of clips: columns path, start and end (seconds), or start_frame "
            "and end_frame",
        },
        "--tail keep|drop|merge=keep":
            "with --clip: keep a short last clip (default), drop it, or merge it into the clip before",
        "--shortest-scene LENGTH": "with --scenes: length of the shortest scene; default 0.6s",
    }  # fmt: skip
    add_command(commands, "pack", _pack, "pack videos into a dataset", {
        "inputs INPUT": "file, folder, 'glob', or list (.csv, .jsonl, .parquet)",
        "destination DATASET": "folder or s3://bucket/prefix to pack into",
        "--shard-size SIZE=256MiB": "default 256MiB",
        "--append": "add new videos to an existing dataset",
        **shared,
        "--exact-cuts hidden|reencode=hidden": "if a clip does not begin at a key frame: store the packets that it "
        "depends on, not displayed (hidden, the default), or re-encode",
        "--for gpu|gpu-no-av1|any=gpu": "gpu (default): transcode what NVDEC cannot decode, and nothing else; "
        "gpu-no-av1: also AV1, which A100, H100 and H200 do not decode; any: transcode nothing",
        "--codec h264|hevc|vp9|av1|mjpeg": "transcode all videos; h264 if one of the next four options is given",
        "--short-side PIXELS": "downscale larger frames",
        "--max-fps RATE": "drop frames above this rate",
        "--gop FRAMES": "frames from one key frame to the next; default 30",
        "--crf N": "quality, smaller is better; the default depends on codec",
        "--fps RATE": "frame rate of image folders without a file of timestamps, and of raw streams without one in "
        "their header",
        "--track N": "pack this video track of each file, counted from 0; default: the one that FFmpeg takes",
    }, lengths | {"inputs": {"nargs": "+"}, "max_fps": rate, "fps": rate, "for": {"dest": "compatible_with"}}
    )  # fmt: skip
    add_command(commands, "index", _index, "index videos in place, without copying them", {
        "places PLACE": "folder, file, 'glob' or list of videos or of tars that hold them, or a LeRobot dataset",
        "destination DATASET": "folder or s3://bucket/prefix for the dataset",
        "--fast": "index MP4 and MOV by their tables, with a few reads each",
        "--camera NAME...": "camera of a LeRobot dataset; repeatable; default: all",
        "--roots PLACE...": "another folder or URL to which links and lists may lead; repeatable",
        "--update": "add videos that are new or have changed",
        "--copy-others": "pack videos that cannot be read in place",
        **shared,
    }, lengths | {"places": {"nargs": "+"}})  # fmt: skip


def parse_length(text: str) -> tuple[float, str]:
    """``10s``, ``2.5`` (seconds), ``500ms``, ``2m``, ``1h`` or ``64f`` (frames) → a number and its unit."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None or not 0 < float(found[1]) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length; write 10s, 2.5, 500ms, 2m or 64f (frames)")
    number, unit = float(found[1]), found[2]
    if unit == "f":
        if number != int(number):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of frames")
        return number, "frames"
    # Divided, not multiplied by 0.001: 300 ms are 0.3, and not 0.30000000000000004.
    return (number / 1000 if unit == "ms" else number * _SECONDS[unit]), "seconds"


def parse_rate(text: str) -> Fraction:
    """``24``, ``29.97`` or ``30000/1001`` → frames per second."""
    try:
        rate = fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not Fraction(1, 1000) <= rate <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate; write 24, 29.97 or 30000/1001")
    return _NTSC.get(rate, rate.limit_denominator(1001))


# Heavy modules are imported when the command runs, so that --help and wrong options are fast.


def _pack(arguments: argparse.Namespace) -> int:
    from streamvid.packing.options import PackOptions
    from streamvid.packing.pack import pack

    cutting, exact_cuts = _cutting_rule(arguments), arguments.exact_cuts == "reencode"
    transcode = _transcode_options(arguments)
    options = call(PackOptions, arguments, cutting=cutting, exact_cuts=exact_cuts, transcode=transcode)
    report = call(pack, arguments, options=options)
    print_summary(report, "packed")
    if arguments.compatible_with == "any":
        _warn_of_incompatible(arguments.destination)
    return 0


def _index(arguments: argparse.Namespace) -> int:
    from streamvid.packing.index import index

    report = call(index, arguments, cutting=_cutting_rule(arguments))
    print_summary(report, "indexed")
    return 0


def print_summary(report: PackReport, done: str) -> None:
    """Print the clips that were `done` ("packed", "indexed"), and the sources that were rejected."""
    from streamvid.packing.destination import REJECTED_FILE
    from streamvid.storage.url import join, redact

    manifest, shown = report.manifest, printable(redact(report.destination))
    out = console()
    whole = (
        f"{format_count(manifest.clips, 'clip')} ({manifest.frames:,} frames, {format_duration(manifest.seconds)}) in "
        f"{format_count(len(manifest.shards), 'shard')}, {format_bytes(manifest.tar_bytes)}"
    )
    if report.was_there:
        out.print(f"nothing to do: {shown} has these videos already: {whole}")
    elif not report.clips:
        out.print(f"nothing to add: {shown} has {whole}")
    elif manifest.revision:
        forgotten = f"; {manifest.forgotten.clips:,} of them forgotten" if manifest.forgotten else ""
        out.print(
            f"added {format_count(report.clips, 'clip')}, {format_bytes(report.bytes)}, in "
            f"{format_duration(report.elapsed)} to {shown}, which now has {whole}{forgotten}"
        )
    else:
        out.print(f"{done} {whole}, at {shown} in {format_duration(report.elapsed)}")
    if report.resumed:
        out.print(f"{format_count(report.resumed, 'clip')} of these had been {done} by an interrupted run")
    if report.skipped:
        skipped = format_count(len(report.skipped), "video")
        named = ", ".join(printable(name) for name in report.skipped[:_NAMED])
        named += ", …" * (len(report.skipped) > _NAMED)
        out.print(f"skipped {skipped} that the dataset had already, going by the path below the input: {named}")
    for joined in report.joins:
        for sentence in joined.sentences():
            out.print(printable(sentence))
    if report.rejected:
        where = printable(redact(join(report.destination, REJECTED_FILE)))
        out.print(f"rejected {format_count(len(report.rejected), 'video')}, listed in {where}:")
        print_some([f"{rejected.source}: {rejected.reason}" for rejected in report.rejected], "  ")


def _cutting_rule(arguments: argparse.Namespace) -> FixedLength | Scenes | None:
    """The cutting rule that the options describe; None without --clip and --scenes.

    Raises:
        InputError: options that do not go together.
    """
    from streamvid.packing.options import FixedLength, Scenes

    if arguments.tail != "keep" and arguments.clip is None:
        raise InputError("--tail applies to the last clip of --clip: give --clip, too")
    if arguments.shortest_scene is not None and not arguments.scenes:
        raise InputError("--shortest-scene applies to --scenes: give --scenes, too")
    if arguments.clip is not None:
        length, unit = arguments.clip
        return FixedLength(length, "frames" if unit == "frames" else "seconds", arguments.tail)
    if not arguments.scenes:
        return None
    if arguments.shortest_scene is None:
        return Scenes()
    shortest, unit = arguments.shortest_scene
    if unit == "frames":
        raise InputError("--shortest-scene takes seconds, such as 0.6s")
    return Scenes(shortest)


def _transcode_options(arguments: argparse.Namespace) -> TranscodeOptions | None:
    """How all videos are transcoded; None if none of the options is given.

    Raises:
        InputError: a value is out of range, or incompatible with the decoders that --for names.
    """
    given = {name: getattr(arguments, name) for name in _TRANSCODE_OPTIONS if getattr(arguments, name) is not None}
    if not given:
        return None
    from streamvid.video.gpu_support import check_transcode
    from streamvid.video.transcode import TranscodeOptions

    options = TranscodeOptions(**given)
    check_transcode(options, arguments.compatible_with)
    return options


def _warn_of_incompatible(destination: str) -> None:
    """After --for any: print which clips of the dataset CPU cores decode in a GPU run."""
    from streamvid.dataset.dataset import Dataset
    from streamvid.loader.preflight import cpu_decoded_clips

    for kind, why, rows in cpu_decoded_clips(Dataset.open(destination)):
        kept = kind.startswith("mjpeg") or why.startswith("decode sessions")
        remedy = "; --codec h264 transcodes them" if kept else "; --for gpu transcodes them"
        console().print(
            f"warning: in a GPU run CPU cores decode {format_count(len(rows), 'clip')} of {kind}: {why}{remedy}"
        )
