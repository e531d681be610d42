"""The command `streamvid`: pack, info and verify."""

from __future__ import annotations

import _thread
import argparse
import logging
import os
import signal
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from streamvid import __version__
from streamvid.cli import info, pack, verify
from streamvid.cli.output import BROKEN_PIPE, INTERRUPTED, TERMINATED, UNUSABLE, fail
from streamvid.errors import StreamvidError

_AGAIN_SECONDS: Final = 0.05
"""After which a signal that was lost is sent once more."""


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C. Of Python's own exceptions it cannot be told when they are gone."""


class _Terminated(SystemExit):
    """SIGTERM: left as on Ctrl-C, so that temporary files are removed and worker processes end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code: 0, 1 if `verify` found problems, 2 for an error, 130 for Ctrl-C."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.WARNING,
        format="streamvid: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    logging.getLogger("libav").setLevel(logging.ERROR)
    try:
        with _stoppable():
            code: int = arguments.run(arguments)
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python must not try to flush the rest of it on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except StreamvidError as error:
        return fail(str(error), UNUSABLE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return fail(f"{where}{error.strerror or error}", UNUSABLE)
    except MemoryError:
        return fail("out of memory: use fewer workers or smaller videos", UNUSABLE)
    except Exception as error:
        logging.getLogger(__name__).debug("unexpected error", exc_info=True)
        hint = "this is a defect of streamvid; --verbose shows where"
        return fail(f"unexpected {type(error).__name__}: {error} ({hint})", UNUSABLE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="streamvid", description="Video datasets for training, in WebDataset shards.")
    parser.add_argument("--version", action="version", version=f"streamvid {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (pack, info, verify):
        command.add_parser(commands)
    for subparser in commands.choices.values():
        subparser.add_argument("--verbose", action="store_true", help="say more on stderr")
    return parser


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise exceptions that are not lost.

    They are raised wherever the main thread is. In a finaliser or a callback Python drops them, and so does some code
    in C anywhere. So once such an exception is gone, and nobody has left, the signal is sent again.
    """
    leaving = False

    def again(number: int) -> None:
        # Not at once: that would be in the same finaliser, or in this callback.
        time.sleep(_AGAIN_SECONDS)
        if not leaving:
            os.kill(os.getpid(), number)

    def watched(number: int) -> BaseException:
        error = _Interrupted() if number == signal.SIGINT else _Terminated(TERMINATED)
        # A thread by hand: what it interrupts may hold the locks of `threading`.
        weakref.finalize(error, _thread.start_new_thread, again, (number,)).atexit = False
        return error

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise watched(number)  # without a name here, which would keep it alive

    hook = sys.unraisablehook
    sys.unraisablehook = lambda dropped: (
        None if isinstance(dropped.exc_value, _Interrupted | _Terminated) else hook(dropped)
    )
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have it ignored
        before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        leaving = True
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook


if __name__ == "__main__":
    sys.exit(main())
