"""Packs in processes of their own that can be killed, forked from one that has imported all that they need.

To import PyTorch, which webdataset does, takes longer than to pack a few small clips.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

# It has no threads, so it may fork. A child leaves the loop, packs, and ends as any interpreter does.
_SERVER = """
import os, pickle, sys

import s3fs
import streamvid.packing.process_source
from streamvid.packing.pack import pack
from streamvid.storage import upload

while True:
    try:
        log, environment, arguments = pickle.load(sys.stdin.buffer)
    except EOFError:
        sys.exit()
    child = os.fork()
    if child == 0:
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

for output in (1, 2):
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), output)
os.environ.update(environment)
upload.PART_BYTES = arguments.pop("part_bytes", upload.PART_BYTES)
pack(**arguments)
"""


class Launcher:
    """Starts packs, one at a time. A context manager.

    Args:
        log: where what they say goes.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        # No buffers: select must see what has come.
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._calls, self._answers = self._server.stdin, self._server.stdout
        self._process = 0

    def start(self, **arguments: Any) -> None:
        """Begin `streamvid.packing.pack.pack` with these arguments, in the environment of now."""
        self._calls.write(pickle.dumps((str(self._log), dict(os.environ), arguments)))
        self._process = int(self._answers.readline())

    def has_ended(self, *, within_s: float) -> bool:
        """Wait so long for the pack to end by itself.

        Raises:
            AssertionError: it ended with an error.
        """
        if not select.select([self._answers], [], [], within_s)[0]:
            return False
        code = int(self._answers.readline())
        assert code == 0, f"exit status {code}: {self._log.read_text()}"
        return True

    def send_kill(self) -> None:
        """Send the pack a SIGKILL, if it has not just ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)

    def was_killed(self) -> bool:
        """Wait for the pack to end by itself, or as it was killed, and say which."""
        code = int(self._answers.readline())
        assert code in (0, -signal.SIGKILL), f"exit status {code}: {self._log.read_text()}"
        return code != 0

    def kill(self) -> None:
        """Kill the pack with SIGKILL, if it has not just ended."""
        self.send_kill()
        assert int(self._answers.readline()) in (0, -signal.SIGKILL), self._log.read_text()

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._calls.close()
        self._server.kill()
        self._server.wait()
        self._answers.close()
