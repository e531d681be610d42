"""A part of a file in any storage as a file object, read by byte ranges as they are asked for."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamvid.storage.byte_range import ByteRange, FileVersion
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.retry import Retry

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class RangedFile(io.RawIOBase):
    """Bytes [start, end) of a file, for reading.

    Args:
        wanted: the file and the part of it.
        version: the version that the file must have; None: any.
        retry: for how long requests are repeated while a remote storage does not answer.
        block: least bytes per read, since headers are small and often follow each other.

    Raises:
        DatasetError: on reading, as in `RangeReader.read`.
    """

    def __init__(
        self, wanted: ByteRange, version: FileVersion | None = None, retry: Retry | None = None, *, block: int = 512
    ) -> None:
        self._part, self._reader, self._least = wanted, RangeReader(retry), block
        self._versions = {} if version is None else {wanted.path: version}
        self._at = 0
        self._begin, self._block = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._part.end - self._part.start}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        first, last = self._at, min(self._at + len(view), self._part.end - self._part.start)
        if last <= first:
            return 0
        if not self._begin <= first <= last <= self._begin + len(self._block):
            start = self._part.start + first
            end = min(max(start + self._least, self._part.start + last), self._part.end)
            (block,) = self._reader.read([ByteRange(self._part.path, start, end)], self._versions)
            self._begin, self._block = first, block.tobytes()
        view[: last - first] = self._block[first - self._begin : last - self._begin]
        self._at = last
        return last - first

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of several parts, each [start, end), requested concurrently."""
        first = self._part.start
        wanted = [ByteRange(self._part.path, first + start, first + end) for start, end in spans]
        return [block.tobytes() for block in self._reader.read(wanted, self._versions)]
