"""The command `streamvid`; `python -m streamvid` where its script is not on the path."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from streamvid.host import limit_met
from streamvid.text import module_at_fault


def run() -> int:
    """Run the command line of `streamvid.cli.main.main`. Ctrl-C while modules are imported, and while the interpreter
    ends, ends the process without a traceback; so do a lack of memory, a package that is missing or hidden, and a
    working directory that was removed, in which libraries cannot be imported: PyTorch's MKL ends the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a shell makes a background job ignore it
        signal.signal(signal.SIGINT, _end)
    try:
        os.getcwd()
    except FileNotFoundError:
        return _say("the working directory was removed: change to another one", 2)
    try:
        from streamvid.cli.main import main
    except Exception as error:
        if (said := limit_met(error) or module_at_fault(error)) is None:
            raise
        return _say(said, 2)
    return main()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(_say("interrupted", 128 + number))


def _say(what: str, code: int) -> int:
    with suppress(OSError):  # the stream is closed
        os.write(2, f"streamvid: {what}\n".encode())
    return code


if __name__ == "__main__":
    # `python -m` looks for modules in the working directory first: a random.py or av.py there would hide Python's.
    first, ours = sys.path[0], os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if not sys.flags.safe_path and first and os.path.realpath(first) != ours:
        del sys.path[0]
    sys.exit(run())
