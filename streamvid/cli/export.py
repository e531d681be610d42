"""`streamvid export`."""

from __future__ import annotations

import argparse

from streamvid.cli.output import Commands, add_command, call, console
from streamvid.loader.calls import transform_of
from streamvid.text import printable


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    what = "write a transform as a model for Triton's DALI backend"
    description = "Write a model repository for Triton's DALI backend: encoded videos in, a model's tensors out."
    command = add_command(commands, "export", _run, what, description)
    command.add_argument("--triton", dest="directory", required=True, metavar="DIR", help="the model repository")
    command.add_argument(
        "--transform",
        required=True,
        metavar="TRANSFORM",
        help="as a loader is given it: 'Transform(resize=256, crop=224)'; its randomness is left out",
    )
    command.add_argument("--frames", type=int, required=True, metavar="N", help="of a sub-sequence")
    command.add_argument("--stride", type=int, default=1, metavar="N", help="every N-th frame of a video; default: all")
    command.add_argument("--name", default="streamvid", help="of the model; default: %(default)s")
    command.add_argument("--device", default="cuda", help="that decodes, 'cuda' or 'cpu'; default: %(default)s")
    command.add_argument("--max-batch-size", type=int, default=16, metavar="N", help="videos of a request; default 16")
    command.add_argument(
        "--threads", dest="num_threads", type=int, default=4, metavar="N", help="CPU threads of the server; default 4"
    )
    command.add_argument(
        "--color",
        metavar="MATRIX",
        help="of YUV, for all videos: 'bt709', 'bt601', 'bt2020', or 'auto', BT.709; default: the transform's",
    )


def _run(arguments: argparse.Namespace) -> int:
    transform = transform_of(arguments.transform)
    from streamvid.dali import export

    folder = call(export, arguments, transform=transform)
    console().print(f"wrote {printable(str(folder))}: a model for Triton's DALI backend")
    return 0
