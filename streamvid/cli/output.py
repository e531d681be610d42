"""What the commands share: plain output, exit codes, and how an error is said."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Final

from rich.console import Console

from streamvid.text import printable

SHOWN: Final = 20
"""Rejected videos or problems that are printed one by one."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DECIMAL: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
FAILED, UNUSABLE, INTERRUPTED, TERMINATED, BROKEN_PIPE = 1, 2, 130, 143, 141
"""Exit codes: problems found by verify; an error; and what shells expect of Ctrl-C, SIGTERM and SIGPIPE."""


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
    """Plain text: nothing in a name is markup, and where nobody watches, nothing is folded to a screen's width."""
    seen = sys.stdout.isatty()
    return _Output(markup=False, emoji=False, highlight=False, soft_wrap=not seen, width=None if seen else 200)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        # rich would exit with 1, which is how `verify` says that a dataset is damaged.
        raise BrokenPipeError


def fail(text: str, code: int) -> int:
    """Say on stderr what went wrong; returns the exit code."""
    print(f"streamvid: {printable(text)}", file=sys.stderr)
    return code
