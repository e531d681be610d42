"""The command `streamvid`: pack, index, info, ls, preview, merge, forget, verify and others."""

from __future__ import annotations

import _thread
import argparse
import io
import logging
import os
import re
import signal
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from streamvid import __version__
from streamvid.checks import MAX_WORKERS, did_you_mean
from streamvid.cli import clips, export, info, pack, reshape, revising, verify
from streamvid.cli.output import BROKEN_PIPE, INTERRUPTED, UNUSABLE, check_needs, fail
from streamvid.errors import InputError, StreamvidError
from streamvid.host import limit_met
from streamvid.text import module_at_fault, printable

_AGAIN_SECONDS: Final = 0.05
"""Delay before a lost signal is sent again."""


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C. A class of our own, as instances of built-in exceptions do not support weak references."""


class _Terminated(SystemExit):
    """SIGTERM, or SIGHUP of a terminal that is closed, as an exception, so that temporary files are removed and worker
    processes end, as on Ctrl-C."""


class _Formatter(logging.Formatter):
    """Without control characters: messages name files, also those in tars of others."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of the standard library
        return printable(super().formatMessage(record))


class _Parser(argparse.ArgumentParser):
    """Reports a wrong option in one sentence, without the usage, and proposes the option that was probably meant.
    Subcommands get parsers of the same class."""

    def error(self, message: str) -> NoReturn:
        option = re.match(r"unrecognized arguments: (?:--)?([\w-]+)", message)
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if option:
            # Compared without the dashes, which all have.
            meant = did_you_mean(option[1].replace("_", "-"), re.findall(r"--([\w-]+)", self.format_help()))
            usage = re.sub(r"\[-([^][]|\[[^][]*\])*\]", "", self.format_usage().partition(": ")[2])  # without options
            meant = meant.replace("'", "'--", 1) or f"write {' '.join(usage.split())}"
            if message.startswith("unrecognized arguments: -") and "arguments: --" not in message:
                meant += ", and -- before a name that begins with -"
        else:
            meant = did_you_mean(choice[1].lower(), re.findall(r"[\w-]+", choice[2])) if choice else ""
        sys.exit(fail("; ".join(filter(None, (message, meant, f"see {self.prog} --help"))), UNUSABLE))

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse unknown options here, because argparse would leave those of a subcommand to the main parser."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit code: 0, 1 if `verify` found problems or `diff` differences, 2 for an error, 129 for a closed terminal
        (SIGHUP), 130 for Ctrl-C, 141 for a closed pipe, 143 for SIGTERM.

    Raises:
        SystemExit: wrong options (2), --help or --version (0).
    """
    _open_streams()
    arguments = _parser().parse_args(argv)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("streamvid: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # Only warnings of other libraries: their details are long, and botocore's contain secrets.
    for name, level in (
        ("streamvid", logging.DEBUG if arguments.verbose else logging.WARNING),
        ("streamvid.progress", logging.INFO),
        ("libav", logging.ERROR),
        ("PyNvVideoCodec", logging.WARNING),
    ):
        logging.getLogger(name).setLevel(level)
    try:
        with _stoppable():
            if (workers := getattr(arguments, "workers", None)) is not None and not 1 <= workers <= MAX_WORKERS:
                raise InputError(f"--workers {workers}: give 1 to {MAX_WORKERS}, or leave it out")
            check_needs(arguments, sys.argv[1:] if argv is None else argv)
            code: int = arguments.run(arguments)
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    except _Terminated as stopped:
        return fail("terminated", int(stopped.code or 0))
    except BrokenPipeError:
        # The reader closed the pipe. Replace it by /dev/null, or Python would fail to flush the rest on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except StreamvidError as error:
        return fail(_named_option(str(error), sys.argv[1:] if argv is None else argv), UNUSABLE)
    except OSError as error:
        if (limit := limit_met(error)) is not None:
            return fail(limit, UNUSABLE)
        where = f"{error.filename}: " if error.filename else _unwritten_output()
        remedy = "; check who owns it and its mode" if isinstance(error, PermissionError) else ""
        return fail(f"{where}{error.strerror or error}{remedy}", UNUSABLE)
    except MemoryError:
        return fail("out of memory: use fewer workers or smaller videos", UNUSABLE)
    except Exception as error:
        if (cause := limit_met(error) or module_at_fault(error)) is not None:
            return fail(cause, UNUSABLE)
        logging.getLogger(__name__).debug("unexpected error", exc_info=True)
        hint = "this is a defect of streamvid; --verbose shows where"
        return fail(f"unexpected {type(error).__name__}: {error} ({hint})", UNUSABLE)


def _named_option(text: str, given: Sequence[str]) -> str:
    """An error that begins with an argument in Python, with the option in its place if that was given: shard_size,
    --shard-size."""
    name = text.partition(" ")[0]
    option = f"--{name.replace('_', '-')}"
    return option + text[len(name) :] if any(word.partition("=")[0] == option for word in given) else text


def _unwritten_output() -> str:
    """The beginning of an error that names no file: "the output (stdout): " if no further line can be written there, as
    to a full disk; else empty."""
    try:
        print(flush=True)  # Python dropped what it could not write, so only another write tells
    except OSError:
        return "the output (stdout): "
    return ""


def _open_streams() -> None:
    """Open the null device for standard streams that are closed, as in programs that some daemons start; otherwise the
    next file that is opened would get such a number, and libraries would print into it. Also make streams escape
    characters that their encoding lacks."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
        if mode == "w" and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="streamvid", description="Video datasets for training, in WebDataset shards.")
    parser.add_argument("--version", action="version", version=f"streamvid {__version__}")
    verbose = "log details on stderr"
    parser.add_argument("--verbose", action="store_true", help=verbose)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (pack, info, clips, reshape, revising, verify, export):
        command.add_parser(commands)
    for subparser in commands.choices.values():
        subparser.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help=verbose)
    return parser


@contextmanager
def _stoppable() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP raise exceptions that end the command even if one is swallowed.

    The exception is raised wherever the main thread is. Python drops exceptions of finalisers and callbacks, and some
    extension modules drop any. So when the exception object is deleted before the command has ended, the signal is
    sent again.
    """
    leaving = False

    def again(number: int) -> None:
        # Not immediately, because the same finaliser would drop the exception.
        time.sleep(_AGAIN_SECONDS)
        if not leaving:
            os.kill(os.getpid(), number)

    def watched(number: int) -> BaseException:
        error = _Interrupted() if number == signal.SIGINT else _Terminated(128 + number)
        # Not threading.Thread, because the interrupted code may hold locks of `threading`.
        weakref.finalize(error, _thread.start_new_thread, again, (number,)).atexit = False
        return error

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise watched(number)  # not assigned to a name, which would keep it alive

    hook = sys.unraisablehook
    sys.unraisablehook = lambda dropped: (
        None if isinstance(dropped.exc_value, _Interrupted | _Terminated) else hook(dropped)
    )
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    # Not if nohup, or the shell of a background job, makes the command ignore the signal; None: a handler in C.
    before = {one: signal.signal(one, stop) for one in numbers if signal.getsignal(one) not in (signal.SIG_IGN, None)}
    try:
        yield
    finally:
        leaving = True
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
