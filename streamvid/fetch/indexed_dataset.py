"""A dataset for random access: frame indexes clip by clip, bytes by range."""

from __future__ import annotations

import bisect
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.dataset.clip_table import packet_rules
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.string_column import StringColumn
from streamvid.errors import DatasetError
from streamvid.fetch import encoded_batch
from streamvid.fetch.plan_samples import SamplePlan
from streamvid.storage import filesystem
from streamvid.storage.range_reader import ByteRange, RangeReader
from streamvid.video.frame_index import HIDDEN, NPY_HEADER_BYTES, FrameIndex
from streamvid.video.packet_selection import EncodedSlice

INDEX_BYTES: Final = 256 << 20
"""Memory for frame indexes of clips that were used last, per process."""
_BYTES_PER_PACKET: Final = 48
"""Of a frame index in memory, with what it keeps of its own."""


class IndexedDataset(Dataset):
    """A dataset which reads the frame index of a clip rather than of a shard, and ranges rather than shards.

    Made by `open_indexed`. Pickled it is its path: it is opened again where it is unpickled. The rows of a large
    dataset are then mapped from the user's cache folder (`streamvid.dataset.table_cache`), and shared by all processes.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._frame_indexes: OrderedDict[int, FrameIndex] = OrderedDict()
        self._packets_kept = 0
        self._lock = threading.Lock()
        self._reader = RangeReader()
        self._pid = os.getpid()
        self._by_key: Int64 | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(open_indexed(state["path"]).__dict__)

    def row(self, key: str) -> int:
        """The row of a clip. Raises KeyError if there is no such key."""
        if self._by_key is None:
            # Twice in two threads does no harm. A dict would take ten times the memory, in every process.
            self._by_key = pc.sort_indices(StringColumn.of(self.clips.key).array).to_numpy().astype(np.int64)
        place = bisect.bisect_left(self._by_key, key, key=lambda row: self.clips.key[int(row)])
        if place < len(self) and self.clips.key[row := int(self._by_key[place])] == key:
            return row
        raise KeyError(f"there is no clip {key[:100]!r} in {filesystem.redact(self.path)}")

    def index(self, i: int) -> FrameIndex:
        """The frame index of clip *i*, read from its shard's tar; errors as from `load_indexes`."""
        return self.load_indexes([i])[0]

    def load_indexes(self, rows: Sequence[int]) -> list[FrameIndex]:
        """Frame indexes of clips; those that are not at hand are read side by side.

        Raises:
            DatasetError: a shard cannot be read, or an index is damaged. Names the clip.
        """
        self._after_fork()
        found: dict[int, FrameIndex] = {}
        with self._lock:
            for row in rows:
                kept = self._frame_indexes.get(row)
                if kept is not None:
                    self._frame_indexes.move_to_end(row)
                    found[row] = kept
        missing = [row for row in dict.fromkeys(rows) if row not in found]
        if missing:
            clips = self.clips
            starts, sizes, shards = clips.npy_offset[missing], clips.npy_size[missing], clips.shard[missing]
            wanted = [
                ByteRange(self.shard_path(shard), start, end)
                for shard, start, end in zip(shards.tolist(), starts.tolist(), (starts + sizes).tolist(), strict=True)
            ]
            for row, data in zip(missing, self._reader.read(wanted), strict=True):
                found[row] = self._parsed(row, data.tobytes())
            with self._lock:
                for row in missing:
                    self._keep(row, found[row])
        return [found[row] for row in rows]

    def read_slices(self, samples: Sequence[SamplePlan]) -> list[EncodedSlice]:
        """The packets of samples, read by range from wherever the shards lie; see `encoded_batch.read_slices`."""
        return encoded_batch.read_slices(self, samples, self._reader, self.shard_path)

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # Another thread of the parent may have held the lock, or been in the middle of a change.
            self._lock, self._pid = threading.Lock(), os.getpid()
            self._frame_indexes, self._packets_kept = OrderedDict(self._frame_indexes), 0
            self._packets_kept = sum(len(index) for index in self._frame_indexes.values())

    def _keep(self, row: int, index: FrameIndex) -> None:
        if row in self._frame_indexes:
            return
        self._frame_indexes[row] = index
        self._packets_kept += len(index)
        while self._packets_kept * _BYTES_PER_PACKET > INDEX_BYTES and len(self._frame_indexes) > 1:
            self._packets_kept -= len(self._frame_indexes.popitem(last=False)[1])

    def _parsed(self, row: int, data: bytes) -> FrameIndex:
        """A frame index that agrees with its row; docs/format.md has the rules."""
        clips = self.clips
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
        shard = self.shards[int(self.clips.shard[row])].name
        return DatasetError(
            f"the frame index of clip {self.key(row)!r} in shard {shard}.tar is damaged: {what}; "
            "copy the shard again or run streamvid verify"
        )


def open_indexed(path: str) -> IndexedDataset:
    """Open a dataset; errors as from `Dataset.open`."""
    opened = IndexedDataset.open(path)
    assert isinstance(opened, IndexedDataset)
    return opened


def _check_header(data: bytes, packets: int) -> None:
    """Whether it is a .npy file of that many packets. Raises ValueError.

    NumPy's own reader makes an array as large as the header says before it looks how much there is.
    """
    if len(data) != NPY_HEADER_BYTES + 32 * packets:
        raise ValueError(f"it has {len(data)} bytes, {packets} packets take {NPY_HEADER_BYTES + 32 * packets}")
    stream = io.BytesIO(data[:NPY_HEADER_BYTES])
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # NumPy runs Python's tokenizer over it, which raises a dozen kinds
        raise ValueError("its header is none of NumPy's") from error
    if version != (1, 0):
        raise ValueError("it is no .npy file of version 1.0")
    if shape != (packets, 4) or fortran or dtype != np.dtype("<i8") or stream.tell() != NPY_HEADER_BYTES:
        raise ValueError(f"it is {dtype} {list(shape)}, not int64 [{packets}, 4]")
