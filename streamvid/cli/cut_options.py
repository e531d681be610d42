"""The options of `streamvid pack` that cut videos into clips."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamvid.packing.options import FixedLength, Scenes

_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|min|h|f|)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def add_cut_options(command: argparse.ArgumentParser) -> None:
    """Add --clip, --tail, --scenes, --shortest-scene, --cuts and --exact-cuts."""
    how = command.add_mutually_exclusive_group()
    how.add_argument(
        "--clip", type=parse_length, metavar="LENGTH", help="cut videos into clips: 10s, 500ms, 2m, or 64f (frames)"
    )
    how.add_argument("--scenes", action="store_true", help="cut videos at scene changes")
    how.add_argument(
        "--cuts",
        metavar="LIST",
        help="a .csv, .jsonl or .parquet of clips: columns path, start and end (seconds), or start_frame and end_frame",
    )
    command.add_argument(
        "--tail",
        choices=("keep", "drop", "merge"),
        default="keep",
        help="with --clip: keep a short last clip (default), drop it, or merge it into the clip before",
    )
    command.add_argument(
        "--shortest-scene",
        type=parse_length,
        metavar="LENGTH",
        help="with --scenes: length of the shortest scene; default 0.6s",
    )
    command.add_argument(
        "--exact-cuts",
        choices=("hidden", "reencode"),
        default="hidden",
        help="if a clip does not begin at a key frame: store the packets that it depends on, not displayed (hidden, "
        "the default), or re-encode",
    )


def parse_length(text: str) -> tuple[float, str]:
    """``10s``, ``2.5`` (seconds), ``500ms``, ``2m``, ``1h`` or ``64f`` (frames) → a number and its unit."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length; write 10s, 2.5, 500ms, 2m or 64f (frames)")
    number, unit = float(found[1]), found[2]
    if unit == "f":
        if number != int(number):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of frames")
        return number, "frames"
    # Divided, not multiplied by 0.001: 300 ms are 0.3, and not 0.30000000000000004.
    return (number / 1000 if unit == "ms" else number * _SECONDS[unit]), "seconds"


def cutting_rule(arguments: argparse.Namespace) -> FixedLength | Scenes | None:
    """The cutting rule that the options describe; None without --clip and --scenes.

    Raises:
        InputError: options that do not go together.
    """
    from streamvid.errors import InputError
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
