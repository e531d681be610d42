"""Byte ranges of shards → bytes: by pread from local files, by ranged requests side by side from anywhere else."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.errors import DatasetError
from streamvid.storage import filesystem
from streamvid.storage.local_path import local_path

log = logging.getLogger(__name__)

OPEN_FILES: Final = 64
"""Shards that a process holds open at most."""
_RETRY_AFTER_SECONDS: Final = (1.0, 4.0)
"""s3fs tries each request five times by itself; these are for what breaks in the middle of a body or lasts longer."""


@dataclass(frozen=True)
class Span:
    """UInt8 [start, end) of a shard at a local path or URL."""

    path: str
    start: int
    end: int


class ShardReader:
    """Reads ranges of shards. For several threads; may be pickled, and used in forked children.

    Nothing of a connection or of an event loop is kept here: a forked child gets its own from `storage`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _File] = OrderedDict()
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def read(self, spans: Sequence[Span]) -> list[UInt8]:
        """The bytes of each range, uint8, in the order asked for.

        Raises:
            DatasetError: a shard is missing, or shorter than a range needs; its storage stays away.
        """
        remote = [n for n, span in enumerate(spans) if not filesystem.is_local(span.path)]
        blocks: dict[int, bytes] = dict(zip(remote, _fetch([spans[n] for n in remote]), strict=True))
        for n, span in enumerate(spans):
            if n not in blocks:
                blocks[n] = self._file(span.path).read(span)
            if len(blocks[n]) != span.end - span.start:
                raise DatasetError(
                    f"{filesystem.redact(span.path)} ends before byte {span.end}: copy it again or run streamvid verify"
                )
        return [np.frombuffer(blocks[n], dtype=np.uint8) for n in range(len(spans))]

    def _file(self, path: str) -> _File:
        if self._pid != os.getpid():
            # Forked: the lock may have been held, and what is open came with the fork, where nobody counts it.
            self.__init__()  # type: ignore[misc]
        with self._lock:
            file = self._open.get(path)
            if file is None:
                file = self._open[path] = _File(path)
                if len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)
            self._open.move_to_end(path)
            return file


class _File:
    """A file for reading at any place. It closes when the last who uses it lets go: dropping it from the cache does not
    take it from under another thread."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        try:
            self._descriptor = os.open(local_path(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DatasetError(
                f"{path} cannot be opened ({error.strerror}): copy it again or run streamvid verify"
            ) from error

    def read(self, span: Span) -> bytes:
        """As much of the range as there is."""
        parts, at = [], span.start
        while at < span.end:
            try:
                part = os.pread(self._descriptor, span.end - at, at)
            except OSError as error:
                raise DatasetError(f"{span.path} cannot be read ({error.strerror}): check the disk") from error
            if not part:
                break
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _fetch(spans: Sequence[Span]) -> list[bytes]:
    """Ranges of remote files, all asked for at once."""
    if not spans:
        return []
    delays = list(_RETRY_AFTER_SECONDS)
    while True:
        try:
            return filesystem.read_ranges([(span.path, span.start, span.end) for span in spans])
        except filesystem.StorageUnavailable as error:
            if not delays:
                raise
            # Spread out, as all workers of a job see the same failure at the same time.
            delay = delays.pop(0) * random.uniform(0.5, 1.5)
            log.warning("%s Trying again in %.1f s.", error, delay)
            time.sleep(delay)
