"""The command `streamvid`: pack, info and verify."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Final, NoReturn

from streamvid import __version__
from streamvid.commands import info, pack, verify
from streamvid.commands.output import BROKEN_PIPE, INTERRUPTED, TERMINATED, UNUSABLE, fail
from streamvid.errors import StreamvidError

_AGAIN_SECONDS: Final = 0.05
"""After which a signal that was dropped is sent once more."""


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
    # Leave as on Ctrl-C, so that temporary files are removed and worker processes end.
    before = signal.signal(signal.SIGTERM, _terminate)
    hook = sys.unraisablehook
    sys.unraisablehook = lambda dropped: None if _sent_again(dropped.exc_value) else hook(dropped)
    try:
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
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="streamvid", description="Video datasets for training, in WebDataset shards.")
    parser.add_argument("--version", action="version", version=f"streamvid {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (pack, info, verify):
        command.add_parser(commands)
    for subparser in commands.choices.values():
        subparser.add_argument("--verbose", action="store_true", help="say more on stderr")
    return parser


def _sent_again(dropped: BaseException | None) -> bool:
    """Whether it was a signal that Python dropped: what is raised in a finaliser or a callback goes no further, be it
    Ctrl-C."""
    if not isinstance(dropped, KeyboardInterrupt | SystemExit):
        return False
    number = signal.SIGINT if isinstance(dropped, KeyboardInterrupt) else signal.SIGTERM
    # Not at once, which would be in there still.
    timer = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
    return True


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)


if __name__ == "__main__":
    sys.exit(main())
