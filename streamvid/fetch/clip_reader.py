"""Random access to the clips of a dataset: frame indexes clip by clip, packets by byte range."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.index_columns import packet_rules
from streamvid.errors import DatasetError
from streamvid.fetch.encoded_batch import read_slices
from streamvid.fetch.plan_samples import SamplePlan
from streamvid.fetch.shard_access import shard_errors
from streamvid.storage.range_reader import ByteRange, RangeReader
from streamvid.video.frame_index import HIDDEN, NPY_HEADER_BYTES, FrameIndex
from streamvid.video.packet_selection import EncodedSlice

INDEX_BYTES: Final = 256 << 20
"""Memory for the frame indexes used last, per process, in bytes."""
_BYTES_PER_PACKET: Final = 48
"""Size of a frame index in memory, with the arrays that it derives and keeps."""


class ClipReader:
    """Reads single clips, where `ClipSource.index` and `ShardAccess` read whole shards. Thread-safe and fork-safe.

    Pickled it holds the path of a `Dataset` rather than its rows, and opens it again where it is unpickled. The rows of
    a large dataset are then mapped from the user's cache folder (`streamvid.dataset.table_cache`), and shared by all
    processes of the machine.

    Attributes:
        dataset: whose clips are read.
    """

    def __init__(self, dataset: ClipSource) -> None:
        self.dataset = dataset
        self._ranges = RangeReader()
        self._indexes: OrderedDict[int, FrameIndex] = OrderedDict()
        self._cached_packets = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, str | ClipSource]:
        return {"dataset": self.dataset.path if isinstance(self.dataset, Dataset) else self.dataset}

    def __setstate__(self, state: dict[str, str | ClipSource]) -> None:
        dataset = state["dataset"]
        self.__init__(Dataset.open(dataset) if isinstance(dataset, str) else dataset)  # type: ignore[misc]

    def load_indexes(self, rows: Sequence[int]) -> list[FrameIndex]:
        """Frame indexes of clips, read from the shards' tars concurrently unless they are cached.

        Raises:
            DatasetError: a shard cannot be read, or an index is damaged. Names the clip.
        """
        self._reset_after_fork()
        found: dict[int, FrameIndex] = {}
        with self._lock:
            for row in rows:
                cached = self._indexes.get(row)
                if cached is not None:
                    self._indexes.move_to_end(row)
                    found[row] = cached
        missing = [row for row in dict.fromkeys(rows) if row not in found]
        if missing:
            clips = self.dataset.clips
            starts, sizes, shards = clips.npy_offset[missing], clips.npy_size[missing], clips.shard[missing]
            wanted = [
                ByteRange(self.dataset.shard_path(shard), start, end)
                for shard, start, end in zip(shards.tolist(), starts.tolist(), (starts + sizes).tolist(), strict=True)
            ]
            with shard_errors(self.dataset, shards.tolist(), self.dataset.shard_path):
                blocks = self._ranges.read(wanted)
            for row, data in zip(missing, blocks, strict=True):
                found[row] = self._parse(row, data.tobytes())
            with self._lock:
                for row in missing:
                    self._cache(row, found[row])
        return [found[row] for row in rows]

    def read_slices(self, samples: Sequence[SamplePlan]) -> list[EncodedSlice]:
        """The packets of samples; see `streamvid.fetch.encoded_batch.read_slices`."""
        return read_slices(self.dataset, samples, self._ranges, self.dataset.shard_path)

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            # Another thread of the parent may have held the lock while it changed the cache.
            self._lock, self._pid = threading.Lock(), os.getpid()
            self._indexes = OrderedDict(self._indexes)
            self._cached_packets = sum(len(index) for index in self._indexes.values())

    def _cache(self, row: int, index: FrameIndex) -> None:
        if row in self._indexes:
            return
        self._indexes[row] = index
        self._cached_packets += len(index)
        while self._cached_packets * _BYTES_PER_PACKET > INDEX_BYTES and len(self._indexes) > 1:
            self._cached_packets -= len(self._indexes.popitem(last=False)[1])

    def _parse(self, row: int, data: bytes) -> FrameIndex:
        """A frame index, validated against its row; docs/format.md has the rules."""
        clips = self.dataset.clips
        packets, mp4_size = int(clips.packets[row]), int(clips.mp4_size[row])
        try:
            _check_header(data, packets)
        except ValueError as error:
            raise self._damaged(row, str(error)) from error
        columns: Int64 = np.ascontiguousarray(
            np.frombuffer(data, dtype="<i8", offset=NPY_HEADER_BYTES).reshape(packets, 4).T, dtype=np.int64
        )
        pts, offset, size, flags = columns
        for what, good in packet_rules(pts, offset, size, flags, mp4_size).items():
            if not good.all():
                raise self._damaged(row, what)
        if int(((flags & HIDDEN) == 0).sum()) != int(clips.frames[row]):
            raise self._damaged(row, "it has not as many visible packets as frames")
        return FrameIndex(pts, offset, size, flags)

    def _damaged(self, row: int, what: str) -> DatasetError:
        shard = self.dataset.shards[int(self.dataset.clips.shard[row])].name
        return DatasetError(
            f"the frame index of clip {self.dataset.key(row)!r} in shard {shard}.tar is damaged: {what}; "
            "copy the shard again or run streamvid verify"
        )


def _check_header(data: bytes, packets: int) -> None:
    """Check that it is a .npy file, version 1.0, of int64 [packets, 4]. Raises ValueError.

    NumPy's own reader is not used: it allocates the array that the header asks for before it checks the file's size.
    """
    if len(data) != NPY_HEADER_BYTES + 32 * packets:
        raise ValueError(f"it has {len(data)} bytes, {packets} packets take {NPY_HEADER_BYTES + 32 * packets}")
    stream = io.BytesIO(data[:NPY_HEADER_BYTES])
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # NumPy runs Python's tokenizer over it, which raises a dozen kinds
        raise ValueError("its .npy header cannot be parsed") from error
    if version != (1, 0):
        raise ValueError("it is not a .npy file of version 1.0")
    if shape != (packets, 4) or fortran or dtype != np.dtype("<i8") or stream.tell() != NPY_HEADER_BYTES:
        raise ValueError(f"it is {dtype} {list(shape)}, not int64 [{packets}, 4]")
