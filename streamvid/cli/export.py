"""`streamvid export`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from streamvid.cli.output import Commands, add_command, call, console
from streamvid.loader.calls import transform_of
from streamvid.text import printable


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    needed: Mapping[str, Any] = {"required": True}
    description = "Write a model repository for Triton's DALI backend: encoded videos in, a model's tensors out."
    add_command(commands, "export", _run, "write a transform as a model for Triton's DALI backend", {
        "--triton DIR": "the model repository",
        "--transform TRANSFORM":
            "transform as in a loader: 'Transform(resize=256, crop=224)'; its randomness is left out",
        "--frames N": "frames of a sub-sequence",
        "--stride N=1": "every N-th frame of a video; default: all",
        "--name NAME=streamvid": "name of the model; default: %(default)s",
        "--device DEVICE=cuda": "device that decodes, 'cuda' or 'cpu'; default: %(default)s",
        "--max-batch-size N=16": "most videos of a request; default 16",
        "--threads N=4": "CPU threads of the server; default 4",
    }, {
        "triton": {**needed, "dest": "directory"}, "transform": needed, "frames": needed,
        "threads": {"dest": "num_threads"},
    }, description=description)  # fmt: skip


def _run(arguments: argparse.Namespace) -> int:
    transform = transform_of(arguments.transform)
    from streamvid.dali import export

    folder = call(export, arguments, transform=transform)
    console().print(f"wrote {printable(str(folder))}: a model for Triton's DALI backend")
    return 0
