"""Text that is shown to people."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text without control characters: names come from other people's files, and a terminal obeys those."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
