"""Encoders in a process of their own: one that hangs or crashes, as SVT-AV1 and x265 do once in some thousand clips,
costs a clip and not the run."""

from __future__ import annotations

import multiprocessing
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import av

from tests.support.clips import write
from tools.clips import Recipe


class EncoderProcess:
    """A process that encodes one clip after the other, and is started when it is needed. It has to be closed: other
    tests count processes.

    Args:
        limit_s: seconds for a clip, after which the process is killed.
    """

    def __init__(self, *, limit_s: float = 60) -> None:
        self._limit_s = limit_s
        self._pipe: Connection | None = None

    def write(self, recipe: Recipe, path: Path) -> bool:
        """Make the clip; returns whether there is one."""
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            self.process = context.Process(target=_encode, args=(other,), daemon=True)
            self.process.start()
            other.close()
        with suppress(EOFError, OSError):  # it has crashed
            self._pipe.send((recipe, path))
            if self._pipe.poll(self._limit_s):
                return bool(self._pipe.recv())
        self.close()
        return False

    def close(self) -> None:
        """End the process."""
        if self._pipe is not None:
            self.process.kill()
            self.process.join()
            self._pipe = None

    def __enter__(self) -> EncoderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _encode(pipe: Connection) -> None:
    while True:
        recipe, path = pipe.recv()
        try:
            write(recipe, path)
        except av.error.FFmpegError:
            pipe.send(False)
        else:
            pipe.send(True)
