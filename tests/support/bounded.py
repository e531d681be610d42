"""Calls in a process whose memory is measured."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from streamvid.errors import StreamvidError
from tools.processes import peak_bytes

LIMIT = 1 << 30
"""Bytes that hostile data may take."""
_ADDRESS_SPACE = 6 << 30
_SECONDS = 120
_CHILD = """
import importlib, json, sys
from tests.support.bounded import serve
module, name, *arguments = json.load(sys.stdin)
serve(getattr(importlib.import_module(module), name), arguments)
"""


def outcomes(python: Path, function: Callable[[str], Any], arguments: Sequence[str]) -> list[str]:
    """What calls of a module-level function end with, in one process of `forked_python`: "accepted", or the text of a
    StreamvidError.

    Fails if one raises another exception, or takes `_SECONDS`, or the process takes `LIMIT` bytes or crashes.
    """
    done = subprocess.run(
        [python, "-c", _CHILD],
        input=json.dumps([function.__module__, function.__qualname__, *arguments]),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"it ended with {done.returncode} after {done.stdout}\n{done.stderr}"
    *found, peak = (json.loads(line) for line in done.stdout.splitlines())
    assert peak < LIMIT, f"{peak >> 20} MiB after {found}"
    return found


def serve(function: Callable[[str], Any], arguments: Sequence[str]) -> None:
    """The child: a line of JSON for each call, and one with the most memory that it took, in bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    for argument in arguments:
        try:
            function(argument)
            text = "accepted"
        except StreamvidError as error:
            text = str(error)
        print(json.dumps(text), flush=True)
    print(peak_bytes(os.getpid()))
