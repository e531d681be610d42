"""Calls that are killed at a moment of the test's choice."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHANGES = {"os.rename": 1, "os.link": 1, "os.remove": 0, "os.rmdir": 0}
"""The events of changes to a dataset's files, and which of their arguments is the file's name."""


def die_before_change(number: int, destination: Path, call: Callable[[], object]) -> int:
    """Call in a child that is gone, without any clean-up, just before its n-th change to a file of the dataset."""
    child = os.fork()
    if child == 0:
        seen = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event not in _CHANGES:
                return
            changed = os.fspath(arguments[_CHANGES[event]])
            if not isinstance(changed, str) or not changed.startswith(str(destination)) or "/.packing-" in changed:
                return
            seen += 1
            if seen == number:
                os._exit(9)

        try:
            sys.addaudithook(hook)
            call()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
