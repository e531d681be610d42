"""Formatting of names, numbers and exceptions for terminals and messages."""

from __future__ import annotations

import os
import re
import sys
from importlib.machinery import PathFinder
from typing import Final

_UNSHOWABLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\uffff]"
)
"""Control characters but tab and line feed, overrides of the direction of writing, surrogates, non-characters."""


def printable(text: str) -> str:
    """The text without control characters, which a terminal would obey: names come from untrusted files."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def displayable(text: str, most: int) -> str:
    """The first `most` characters of a text, for an HTML page. Line breaks and zero-width joiners are kept; characters
    that a browser would obey or cannot show are replaced."""
    cut = text[:most].replace("\r\n", "\n")
    return _UNSHOWABLE.sub("\N{REPLACEMENT CHARACTER}", cut) + ("…" if len(text) > most else "")


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: it has no lone surrogates, by which Python represents bytes of another
    encoding in a file's name."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def first_line(error: Exception) -> str:
    """The first line of an exception's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def module_at_fault(error: Exception) -> str | None:
    """The sentence for an error of a module that is missing, or that a file of the user's hides, such as a numpy.py in
    a folder of PYTHONPATH; None for other errors."""
    used = re.search(r"module '([\w.]+)' has no attribute", str(error))
    name = error.name if isinstance(error, ImportError) else used and used[1]
    root = str(name).partition(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    folder = os.path.dirname(file.removesuffix(f"{os.sep}__init__.py"))
    others = [entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(folder)]
    if file and PathFinder.find_spec(root, others) is not None:
        return f"{file} hides the Python module {root}: rename it, or take its folder out of PYTHONPATH"
    if isinstance(error, ModuleNotFoundError):
        return f"the Python module {name} is missing: install streamvid again, with all that it requires"
    return None


def format_count(count: int, thing: str, things: str = "") -> str:
    """A number of things: ``1 clip``, ``2,000 clips``."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def format_bytes(count: int) -> str:
    """A number of bytes: ``1.5 GB``, in powers of 1000."""
    from rich import filesize  # here, as `module_at_fault` tells that it is missing

    return filesize.decimal(count)


def format_duration(seconds: float) -> str:
    """Seconds: ``1 h 02 min 05 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min {rest:02} s" if hours else f"{minutes} min {rest:02} s"
