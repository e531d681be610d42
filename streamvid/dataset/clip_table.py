"""The rows of a dataset as NumPy arrays and Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamvid.arrays import Float64, Int64
from streamvid.dataset.string_column import BinaryColumn, StringColumn

Int32 = npt.NDArray[np.int32]
UInt32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Categories(Sequence[str]):
    """A dictionary-encoded column of strings: clip *i* has ``names[codes[i]]``.

    Attributes:
        codes: int32 [clips].
        names: the distinct strings.
    """

    codes: Int32
    names: tuple[str, ...]

    def __getitem__(self, i: Any) -> Any:
        return self.names[self.codes[i]]

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class FileColumns:
    """The files of clips in place, which lie outside of shards. docs/format.md describes the columns.

    Attributes:
        root: int32 [clips], number of the dataset's root; -1 for a clip of a shard.
        file: path below the root; "" for a clip of a shard.
        size, mtime_ns: int64 [clips], size in bytes and modification time of the file when it was indexed; -1 if
            unknown.
        etag: its ETag then; "" if unknown.
    """

    root: Int32
    file: StringColumn
    size: Int64
    mtime_ns: Int64
    etag: StringColumn


@dataclass(frozen=True)
class ClipTable:
    """One row per clip, over all shards in order. docs/format.md describes the columns.

    Attributes:
        row: int64 [clips], 0, 1, 2, …: an array of all row numbers that the processes of a node share.
        shard: int32 [clips], number of the clip's shard.
        label: int64 [clips], class number, or -1 for none.
        frames, packets, random_access: int32 [clips], counts.
        width, height: int32 [clips], pixels, before rotation.
        rotation: int32 [clips], degrees clockwise, plus 360 if mirrored before.
        time_base_num, time_base_den: int32 [clips], seconds per tick as a fraction.
        duration: int64 [clips], ticks.
        mp4_offset, mp4_size, json_offset, json_size: int64 [clips], bytes, in the shard's tar. For a clip in place, the
            first two are in its file, and the others 0.
        index_offset: int64 [clips], offset of the clip's frame index in the shard's .packets file.
        index_size: int32 [clips], size of the frame index in bytes.
        index_crc32c: uint32 [clips], CRC-32C of its directory.
        codec, profile, pix_fmt, color_space, color_range, traits: strings that many clips share.
        key, source, meta: strings, distinct per clip. `meta` is the clip's metadata as a JSON object.
        stsd_id: int32 [clips], the clip's sample description is ``stsds[stsd_id]``. Nearly every clip may have its own.
        stsds: sample description boxes (stsd); entries that no `stsd_id` names are undefined.
        files: the files of clips in place; None if there are no such clips.
    """

    row: Int64
    shard: Int32
    label: Int64
    frames: Int32
    packets: Int32
    random_access: Int32
    width: Int32
    height: Int32
    rotation: Int32
    time_base_num: Int32
    time_base_den: Int32
    duration: Int64
    mp4_offset: Int64
    mp4_size: Int64
    json_offset: Int64
    json_size: Int64
    index_offset: Int64
    index_size: Int32
    index_crc32c: UInt32
    codec: Categories
    profile: Categories
    pix_fmt: Categories
    color_space: Categories
    color_range: Categories
    traits: Categories
    key: StringColumn
    source: StringColumn
    meta: StringColumn
    stsd_id: Int32
    stsds: BinaryColumn
    files: FileColumns | None = None

    def __len__(self) -> int:
        return len(self.shard)

    def contiguous(self) -> ClipTable:
        """The table with each text column in a single chunk, from which few rows are taken fast."""
        return self._changed(lambda column: column, lambda texts: texts.combine_chunks(), stsds=True)

    def take(self, rows: Int64) -> ClipTable:
        """The table of some rows, int64 [rows], in this order. Numbers in `shard` stay those of the dataset."""
        stsds, stsd_id = np.unique(self.stsd_id[rows], return_inverse=True)
        taken = self._changed(lambda column: column[rows], lambda texts: texts.take(pa.array(rows)), stsds=False)
        return replace(
            taken, stsd_id=stsd_id.astype(np.int32), stsds=BinaryColumn(self.stsds.array.take(pa.array(stsds)))
        )

    def _changed(
        self,
        numbers: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
        texts: Callable[[pa.ChunkedArray], pa.Array | pa.ChunkedArray],
        *,
        stsds: bool,
    ) -> ClipTable:
        """A copy of the table with functions applied to its columns."""

        def change(values: Any) -> Any:
            if isinstance(values, Categories):
                return Categories(numbers(values.codes), values.names)
            if isinstance(values, FileColumns):
                return FileColumns(**{name: change(column) for name, column in vars(values).items()})
            return numbers(values) if isinstance(values, np.ndarray) else type(values)(texts(values.array))

        return ClipTable(
            **{
                name: change(column) if column is not None and (stsds or name != "stsds") else column
                for name, column in vars(self).items()
            }
        )

    @property
    def seconds(self) -> Float64:
        """float64 [clips]: duration in seconds."""
        return np.asarray(self.duration * (self.time_base_num / self.time_base_den), dtype=np.float64)
