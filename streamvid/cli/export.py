"""`streamvid export`."""

from __future__ import annotations

import argparse

from streamvid.cli.output import Commands, add_command, add_options, call, console
from streamvid.loader.calls import transform_of
from streamvid.text import printable


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    what = "write a transform as a model for Triton's DALI backend"
    description = "Write a model repository for Triton's DALI backend: encoded videos in, a model's tensors out."
    command = add_command(commands, "export", _run, what, description)
    needed = {"required": True}
    options = {
        "--triton DIR": "the model repository",
        "--transform TRANSFORM":
            "as a loader is given it: 'Transform(resize=256, crop=224)'; its randomness is left out",
        "--frames N": "of a sub-sequence",
        "--stride N=1": "every N-th frame of a video; default: all",
        "--name NAME=streamvid": "of the model; default: %(default)s",
        "--device DEVICE=cuda": "that decodes, 'cuda' or 'cpu'; default: %(default)s",
        "--max-batch-size N=16": "videos of a request; default 16",
        "--threads N=4": "CPU threads of the server; default 4",
        "--color MATRIX":
            "of YUV, for all videos: 'bt709', 'bt601', 'bt2020', or 'auto', BT.709; default: the transform's",
    }  # fmt: skip
    add_options(
        command, options, triton={**needed, "dest": "directory"}, transform=needed, frames=needed,
        threads={"dest": "num_threads"},
    )  # fmt: skip


def _run(arguments: argparse.Namespace) -> int:
    transform = transform_of(arguments.transform)
    from streamvid.dali import export

    folder = call(export, arguments, transform=transform)
    console().print(f"wrote {printable(str(folder))}: a model for Triton's DALI backend")
    return 0
