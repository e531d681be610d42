"""The options of `streamvid pack` about transcoding."""

from __future__ import annotations

import argparse
from fractions import Fraction
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

    from streamvid.video.transcode import TranscodeOptions

_NTSC: Final = {
    Fraction(written): Fraction(1000 * nearest, 1001)
    for written, nearest in [("23.976", 24), ("23.98", 24), ("29.97", 30), ("59.94", 60), ("119.88", 120)]
}
"""Decimal spellings of NTSC frame rates, which are multiples of 1/1001."""
_TRANSCODE_OPTIONS: Final = ("codec", "short_side", "max_fps", "gop", "crf")


def add_transcode_options(command: argparse.ArgumentParser) -> None:
    """Add --for, --codec, --short-side, --max-fps, --gop, --crf and --fps."""
    command.add_argument(
        "--for",
        dest="compatible_with",
        choices=("gpu", "gpu-no-av1", "any"),
        default="gpu",
        help="gpu (default): transcode what NVDEC behind DALI does not decode, and nothing else; gpu-no-av1: also AV1, "
        "which A100, H100 and H200 do not decode; any: transcode nothing",
    )
    command.add_argument(
        "--codec",
        choices=("h264", "hevc", "vp9", "av1", "mjpeg"),
        help="transcode all videos; h264 if one of the next four options is given",
    )
    command.add_argument("--short-side", type=int, metavar="PIXELS", help="downscale larger frames")
    command.add_argument("--max-fps", type=parse_rate, metavar="RATE", help="drop frames above this rate")
    command.add_argument("--gop", type=int, metavar="FRAMES", help="frames from one key frame to the next; default 30")
    command.add_argument(
        "--crf", type=int, metavar="N", help="quality, smaller is better; the default depends on codec"
    )
    command.add_argument(
        "--fps",
        type=parse_rate,
        metavar="RATE",
        help="frame rate of image folders without a file of timestamps, and of raw streams without one in their header",
    )


def parse_rate(text: str) -> Fraction:
    """``24``, ``29.97`` or ``30000/1001`` → frames per second."""
    try:
        rate = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not Fraction(1, 1000) <= rate <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate; write 24, 29.97 or 30000/1001")
    return _NTSC.get(rate, rate.limit_denominator(1001))


def transcode_options(arguments: argparse.Namespace) -> TranscodeOptions | None:
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


def warn_of_incompatible(destination: str, out: Console) -> None:
    """After --for any: print which clips of the dataset CPU cores decode in a GPU run."""
    from streamvid.dataset.dataset import Dataset
    from streamvid.loader.preflight import cpu_decoded_clips

    for kind, why, rows in cpu_decoded_clips(Dataset.open(destination)):
        remedy = "" if kind.startswith("mjpeg") else "; --for gpu transcodes them"
        out.print(f"warning: in a GPU run CPU cores decode {len(rows):,} clips of {kind}: {why}{remedy}")
