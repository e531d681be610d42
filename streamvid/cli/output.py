"""Output of the commands: plain text, exit codes, error messages."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Final

from rich.console import Console

from streamvid.text import printable

SHOWN: Final = 20
"""Rejected videos or problems that are printed; the others are counted."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DECIMAL: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
FAILED, UNUSABLE, INTERRUPTED, TERMINATED, BROKEN_PIPE = 1, 2, 130, 143, 141
"""Exit codes: problems found by verify, an error, and 128 + the number of SIGINT, SIGTERM and SIGPIPE."""


def parse_size(text: str) -> int:
    """``256MiB``, ``256M``, ``1GB`` or plain bytes → bytes. MB and the like are powers of 1000, M and MiB of 1024."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b)?\s*", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 256MiB, 1GB or a number of bytes")
    number, prefix, suffix = match.groups()
    units = _DECIMAL if (suffix or "").lower() == "b" else _UNITS
    size = int(float(number) * units[prefix.lower()])
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive size")
    return size


def console() -> Console:
    """A console for plain text: no markup in names, and no wrapping unless stdout is a terminal."""
    tty = sys.stdout.isatty()
    return _Output(markup=False, emoji=False, highlight=False, soft_wrap=not tty, width=None if tty else 200)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        # rich would exit with 1, the exit code of `verify` for a damaged dataset.
        raise BrokenPipeError


def fail(text: str, code: int) -> int:
    """Print an error on stderr; returns the exit code."""
    print(f"streamvid: {printable(text)}", file=sys.stderr)
    return code


def add_choice(command: argparse.ArgumentParser) -> None:
    """Add the options by which clips are chosen."""
    command.add_argument("--where", metavar="CONDITION", help="such as 'seconds >= 2 and \"dog\" in caption'")
    command.add_argument(
        "--keys", metavar="FILE", help="of keys: .csv or .parquet with a column key, else one per line"
    )


def add_revision(command: argparse.ArgumentParser) -> None:
    """Add the option --revision of commands that read a dataset."""
    command.add_argument("--revision", type=int, metavar="N", help="of the dataset; default: the newest")


def add_roots(command: argparse.ArgumentParser) -> None:
    """Add the option --roots of commands that open a dataset."""
    command.add_argument(
        "--roots",
        action="append",
        default=[],
        metavar="PLACE",
        help="a folder or URL, other than its own, of which the dataset may read files; repeatable",
    )
