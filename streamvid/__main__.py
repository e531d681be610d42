"""The command `streamvid`; `python -m streamvid` where its script is not on the path."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def run() -> int:
    """Run the command line of `streamvid.cli.main.main`. Ctrl-C while modules are imported, and while the interpreter
    ends, ends the process without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a shell makes a background job ignore it
        signal.signal(signal.SIGINT, _end)
    from streamvid.cli.main import main

    return main()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"streamvid: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(run())
