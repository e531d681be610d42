"""The options of `streamvid pack` that convert videos."""

from __future__ import annotations

import argparse
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

    from streamvid.video.gpu_support import Purpose
    from streamvid.video.transcode import TranscodeOptions

_NTSC: Final = {
    Fraction(written): Fraction(1000 * nearest, 1001)
    for written, nearest in [("23.976", 24), ("23.98", 24), ("29.97", 30), ("59.94", 60), ("119.88", 120)]
}
"""What people write for rates that are fractions of 1001."""


def add_converting_options(command: argparse.ArgumentParser) -> None:
    """Add --for, --codec, --short-side, --max-fps, --gop, --crf and --fps."""
    command.add_argument(
        "--for",
        dest="suits",
        choices=("gpu", "gpu-no-av1", "any"),
        default="gpu",
        help="gpu (default): convert what NVDEC or DALI cannot decode, and only that; gpu-no-av1: AV1 too, which "
        "A100, H100 and H200 cannot; any: copy all",
    )
    command.add_argument(
        "--codec",
        choices=("h264", "hevc", "vp9", "av1", "mjpeg"),
        help="convert all videos; h264 if one of the next four options is given",
    )
    command.add_argument("--short-side", type=int, metavar="PIXELS", help="make larger frames smaller")
    command.add_argument("--max-fps", type=parse_rate, metavar="RATE", help="leave out frames above this rate")
    command.add_argument("--gop", type=int, metavar="FRAMES", help="from one key frame to the next; default 30")
    command.add_argument("--crf", type=int, metavar="N", help="quality, smaller is better; default by codec")
    command.add_argument("--fps", type=parse_rate, metavar="RATE", help="of folders of images without a file of times")


def parse_rate(text: str) -> Fraction:
    """``24``, ``29.97`` or ``30000/1001`` → frames per second."""
    try:
        rate = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if not Fraction(1, 1000) <= rate <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate; write 24, 29.97 or 30000/1001")
    return _NTSC.get(rate, rate.limit_denominator(1001))


def conversion_of(arguments: argparse.Namespace) -> TranscodeOptions | None:
    """What the options convert all videos into; None if none of them is given.

    Raises:
        InputError: a value that cannot be used, or not for the purpose that --for names.
    """
    given: dict[str, Any] = {
        "codec": arguments.codec,
        "short_side": arguments.short_side,
        "max_fps": arguments.max_fps,
        "gop": arguments.gop,
        "crf": arguments.crf,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return None
    from streamvid.video.gpu_support import check_transcode
    from streamvid.video.transcode import TranscodeOptions

    conversion = TranscodeOptions(**given)
    purpose: Purpose = arguments.suits
    check_transcode(conversion, purpose)
    return conversion


def warn_of_unsuited(destination: str, out: Console) -> None:
    """After --for any: say which clips of a dataset a GPU run would refuse."""
    from streamvid.dataset.dataset import Dataset
    from streamvid.loader.preflight import unsupported_clips

    for kind, why, rows in unsupported_clips(Dataset.open(destination)):
        out.print(f"warning: a GPU cannot decode {len(rows):,} clips of {kind}: {why}; --for gpu converts them")
