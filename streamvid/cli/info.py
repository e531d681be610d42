"""`streamvid info`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from streamvid.cli.output import console
from streamvid.errors import InputError

if TYPE_CHECKING:
    from streamvid.sampling.windows import Window


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    command = commands.add_parser("info", help="show what is in a dataset", description="Show what is in a dataset.")
    command.add_argument("dataset", metavar="DATASET", help="folder or URL")
    command.add_argument("--frames", type=int, metavar="N", help="estimate the cost of sampling windows of N frames")
    command.add_argument("--stride", type=int, metavar="N", help="with --frames: take every N-th frame")
    command.add_argument("--fps", type=float, metavar="RATE", help="with --frames: take RATE frames per second")
    command.add_argument("--json", action="store_true", help="print JSON, for scripts")
    command.set_defaults(run=_run)


# Heavy modules are imported when the command runs, so that --help and wrong options are answered at once.


def _run(arguments: argparse.Namespace) -> int:
    window = _window(arguments)
    from streamvid.dataset.dataset import Dataset
    from streamvid.inspection.describe import describe
    from streamvid.inspection.render import render
    from streamvid.inspection.sampling_cost import sampling_cost

    dataset = Dataset.open(arguments.dataset)
    info = describe(dataset)
    cost = None if window is None else sampling_cost(dataset, window)
    if arguments.json:
        print(json.dumps(asdict(info) | {"sampling": None if cost is None else asdict(cost)}, indent=1))
        return 0
    console().print(render(info, cost, _in_words(arguments)))
    return 0


def _window(arguments: argparse.Namespace) -> Window | None:
    if arguments.frames is None:
        if arguments.stride is not None or arguments.fps is not None:
            raise InputError("--stride and --fps apply to --frames: give --frames, too")
        return None
    from streamvid.sampling.windows import Window

    try:
        return Window(arguments.frames, stride=arguments.stride, fps=arguments.fps)
    except InputError as error:
        raise InputError(f"--frames, --stride or --fps: {error}") from error


def _in_words(arguments: argparse.Namespace) -> str:
    step = f"{arguments.fps:g} a second" if arguments.fps is not None else f"stride {arguments.stride or 1}"
    return f"{arguments.frames} frames, {step}, at random places"
