"""The rows of a dataset and their frame indexes as NumPy arrays, read from the shards' Parquet files and validated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamvid.arrays import Bool, Float64, Int64, UInt8
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.schema import BLOCK, FIELD_PREFIX, INDEX_TYPES, SCALAR_SCHEMA, SCHEMA
from streamvid.dataset.string_column import StringColumn
from streamvid.errors import DatasetError
from streamvid.mp4.boxes import ROTATIONS
from streamvid.video.frame_index import HIDDEN, FrameIndex

Int32 = npt.NDArray[np.int32]

MAX_SIDE: Final = 32768
_MAX_TICKS: Final = 1 << 53
"""The largest time: a float64 represents every smaller integer exactly, and sums do not overflow int64."""
_MAX_FLAGS: Final = 15
_KEY_PATTERN: Final = r"\A[A-Za-z0-9_-]{1,80}\z"
_REMEDY: Final = "copy the shard again or run streamvid verify"


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
class ClipTable:
    """One row per clip, over all shards in order. docs/format.md describes the columns.

    Attributes:
        shard: int32 [clips], which of the dataset's shards holds the clip.
        label: int64 [clips], class number, or -1 for none.
        frames, packets, random_access: int32 [clips], counts.
        width, height: int32 [clips], pixels, before rotation.
        rotation: int32 [clips], degrees clockwise, plus 360 if mirrored before.
        time_base_num, time_base_den: int32 [clips], seconds per tick as a fraction.
        duration: int64 [clips], ticks.
        mp4_offset, mp4_size, npy_offset, npy_size, json_offset, json_size: int64 [clips], bytes, in the shard's tar.
        codec, profile, pix_fmt, color_space, color_range, traits: strings that many clips share.
        key, source, meta, sha256: strings, distinct per clip. `meta` is the clip's metadata as a JSON object.
        stsd_id: int32 [clips], the clip's sample description is ``stsds[stsd_id]``.
        stsds: the distinct sample description boxes (stsd).
    """

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
    npy_offset: Int64
    npy_size: Int64
    json_offset: Int64
    json_size: Int64
    codec: Categories
    profile: Categories
    pix_fmt: Categories
    color_space: Categories
    color_range: Categories
    traits: Categories
    key: StringColumn
    source: StringColumn
    meta: StringColumn
    sha256: StringColumn
    stsd_id: Int32
    stsds: list[bytes]

    def __len__(self) -> int:
        return len(self.shard)

    @property
    def seconds(self) -> Float64:
        """float64 [clips]: duration in seconds."""
        return np.asarray(self.duration * (self.time_base_num / self.time_base_den), dtype=np.float64)


@dataclass(frozen=True)
class ShardIndex:
    """The frame indexes of all clips of a shard, one after another.

    Attributes:
        starts: int64 [clips + 1], where each clip's packets begin.
        pts, offset: int64 [packets].
        size: int32 [packets].
        flags: uint8 [packets].
    """

    starts: Int64
    pts: Int64
    offset: Int64
    size: Int32
    flags: UInt8

    @property
    def nbytes(self) -> int:
        """Size of the arrays in memory, in bytes."""
        return sum(a.nbytes for a in (self.starts, self.pts, self.offset, self.size, self.flags))

    def clip(self, row: int) -> FrameIndex:
        """The frame index of the clip in that row of the shard."""
        part = slice(int(self.starts[row]), int(self.starts[row + 1]))
        return FrameIndex(
            self.pts[part], self.offset[part], self.size[part].astype(np.int64), self.flags[part].astype(np.int64)
        )


def read_scalars(source: str | pa.Buffer, entry: ShardEntry) -> pa.Table:
    """The columns of a shard's Parquet file that hold one value per clip: `SCALAR_SCHEMA`, and the metadata columns,
    whose names begin with `FIELD_PREFIX`.

    Args:
        source: path of a local file, or its bytes.
        entry: the shard's entry in dataset.json.

    Raises:
        DatasetError: the file cannot be read, lacks columns, or has not as many rows as it should.
    """
    return _read(source, entry, SCALAR_SCHEMA, FIELD_PREFIX)


def clip_table(tables: Sequence[pa.Table], entries: Sequence[ShardEntry]) -> ClipTable:
    """Concatenate the scalar columns of shards and validate them.

    Raises:
        DatasetError: a value out of range, such as a clip beyond the end of its shard's tar. Names shard and clip.
    """
    parts = [table.select(SCALAR_SCHEMA.names) for table in tables]
    table = pa.concat_tables(parts) if parts else SCALAR_SCHEMA.empty_table()
    shard = shard_numbers(entries)
    columns: dict[str, Any] = {
        field.name: _numbers(table[field.name], field.type)
        for field in SCALAR_SCHEMA
        if pa.types.is_integer(field.type)
    }
    try:
        for name in ("codec", "profile", "pix_fmt", "color_space", "color_range", "traits"):
            codes, names = _dictionary_encode(table[name])
            columns[name] = Categories(codes, tuple(names))
        for name in ("key", "source", "meta", "sha256"):
            columns[name] = _string_column(table[name])
        columns["stsd_id"], columns["stsds"] = _dictionary_encode(table["stsd"])
    except ValueError as error:  # ArrowInvalid is a ValueError
        raise DatasetError(f"the parquets of the dataset hold text that is not UTF-8 ({error}): {_REMEDY}") from error
    clips = ClipTable(shard=shard, **columns)
    _check(clips, table, entries)
    return clips


def shard_numbers(entries: Sequence[ShardEntry]) -> Int32:
    """int32 [clips]: which shard each clip is in."""
    return np.repeat(np.arange(len(entries), dtype=np.int32), [entry.clips for entry in entries])


def read_index(source: str | pa.Buffer, entry: ShardEntry, clips: ClipTable, first: int) -> ShardIndex:
    """The frame indexes of a shard.

    Args:
        source: its Parquet file: path of a local file, or its bytes.
        entry: the shard's entry in dataset.json.
        clips: the dataset's rows, with which the indexes must agree.
        first: the row of the shard's first clip.

    Raises:
        DatasetError: the file cannot be read, or an index is invalid. Names shard and clip.
    """
    table = _read(source, entry, pa.schema([SCHEMA.field(name) for name in INDEX_TYPES]))
    columns: dict[str, npt.NDArray[Any]] = {}
    rows = slice(first, first + entry.clips)
    starts = np.concatenate([[0], np.cumsum(clips.packets[rows], dtype=np.int64)])
    for name in INDEX_TYPES:
        lists: Any = table[name].combine_chunks()
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        _require(lengths == clips.packets[rows], f"{name!r} has not one value per packet", clips, entry, first)
        values = lists.flatten()
        if values.null_count:
            raise DatasetError(f"shard {entry.name}.parquet has empty values in {name!r}: {_REMEDY}")
        # A copy, as a view keeps the whole file in memory.
        columns[name] = values.to_numpy(zero_copy_only=True).copy()
    index = ShardIndex(starts, **columns)
    _check_index(index, entry, clips, first)
    return index


def packet_rules(
    pts: Int64, offset: Int64, size: Int64 | Int32, flags: Int64 | UInt8, mp4_size: Int64 | int
) -> dict[str, Bool]:
    """The rules for packets of a frame index: the message for a violation → bool [packets], which packets are valid.

    Args:
        pts, offset, size, flags: [packets], as in `FrameIndex`.
        mp4_size: bytes of the mp4, of each packet's clip or of the one clip.
    """
    visible = (flags & HIDDEN) == 0
    return {
        "a packet does not lie within the mp4": (
            # Not offset + size, which may overflow int64.
            (offset >= 0) & (size >= 1) & (offset <= mp4_size) & (size <= mp4_size - offset)
        ),
        "a packet has an unknown flag": (flags >= 0) & (flags <= _MAX_FLAGS),
        "a packet's time is out of range": (pts >= -_MAX_TICKS) & (pts <= _MAX_TICKS),
        "a visible packet comes before time 0": ~visible | (pts >= 0),
    }


def _read(source: str | pa.Buffer, entry: ShardEntry, schema: pa.Schema, prefix: str = "") -> pa.Table:
    """The columns of a schema, and all whose names begin with the prefix, if one is given."""
    file = entry.file("parquet").rpartition("/")[2]
    try:
        with pq.ParquetFile(pa.BufferReader(source) if isinstance(source, pa.Buffer) else source) as parquet:
            if parquet.metadata.num_rows != entry.clips:
                raise DatasetError(
                    f"shard {file} has {parquet.metadata.num_rows} rows for {entry.clips} clips: {_REMEDY}"
                )
            found = parquet.schema_arrow
            for field in schema:
                at = found.get_field_index(field.name)
                if at < 0 or not _same_type(found.field(at).type, field.type):
                    kind = "no such column" if at < 0 else str(found.field(at).type)
                    raise DatasetError(f"shard {file}: column {field.name!r} is not {field.type} ({kind}): {_REMEDY}")
            names = schema.names + [name for name in found.names if prefix and name.startswith(prefix)]
            table = parquet.read(columns=names, use_threads=False).select(names)
    except FileNotFoundError as error:
        raise DatasetError(f"shard {file} is missing: {_REMEDY}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DatasetError(f"shard {file} cannot be read as Parquet: {_REMEDY}") from error
    for field in schema:
        if field.name != "label" and table[field.name].null_count:
            raise DatasetError(f"shard {file}: column {field.name!r} has empty cells: {_REMEDY}")
    return table


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):  # the elements' name and nullability may differ
        return bool(pa.types.is_list(found) and found.value_type == wanted.value_type)
    return bool(found == wanted)


def _string_column(column: pa.ChunkedArray) -> StringColumn:
    whole: Any = column.cast(pa.large_string()).combine_chunks()
    whole.validate(full=True)
    return StringColumn(whole)


def _numbers(column: pa.ChunkedArray, kind: pa.DataType) -> npt.NDArray[Any]:
    if column.null_count:
        column = pa.chunked_array([chunk.fill_null(-1) for chunk in column.chunks], type=kind)
    return np.ascontiguousarray(column.to_numpy(), dtype=kind.to_pandas_dtype())


def _dictionary_encode(column: pa.ChunkedArray) -> tuple[Int32, list[Any]]:
    encoded: Any = column.dictionary_encode().unify_dictionaries().combine_chunks()
    return np.array(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int32), encoded.dictionary.to_pylist()


def _check(clips: ClipTable, table: pa.Table, entries: Sequence[ShardEntry]) -> None:
    tar_size = np.array([entry.bytes for entry in entries], dtype=np.int64)[clips.shard]
    keys = pc.match_substring_regex(table["key"], _KEY_PATTERN).to_numpy()
    stsd_sizes = np.array([len(stsd) for stsd in clips.stsds], dtype=np.int64)[clips.stsd_id]
    rules = {
        "its key is not of letters, digits, '_' and '-'": keys.astype(bool),
        f"its frames are not 1 to {MAX_SIDE} pixels wide and high": (
            (clips.width >= 1) & (clips.width <= MAX_SIDE) & (clips.height >= 1) & (clips.height <= MAX_SIDE)
        ),
        "its rotation is not a multiple of 90 from 0 to 630": np.isin(clips.rotation, ROTATIONS),
        "its time base is not positive": (clips.time_base_num >= 1) & (clips.time_base_den >= 1),
        "its duration is out of range": (clips.duration >= 0) & (clips.duration <= _MAX_TICKS),
        "its label is negative": (clips.label >= 0) | pc.is_null(table["label"]).to_numpy(),
        "it has no frames, or more frames than packets": (clips.frames >= 1) & (clips.frames <= clips.packets),
        "it has more random access points than packets": (
            (clips.random_access >= 0) & (clips.random_access <= clips.packets)
        ),
        "it has no sample description": stsd_sizes >= 16,
    }
    for name in ("mp4", "npy", "json"):
        offset, size = getattr(clips, f"{name}_offset"), getattr(clips, f"{name}_size")
        # Not offset + size, which may overflow int64.
        rules[f"its {name} does not lie within the tar"] = (
            (offset >= BLOCK) & (size >= 1) & (offset <= tar_size) & (size <= tar_size - np.minimum(offset, tar_size))
        )
    for what, good in rules.items():
        if not good.all():
            row = int(np.argmin(good))
            raise _wrong(entries[clips.shard[row]], clips.key[row], what)
    frames = np.bincount(clips.shard, weights=clips.frames, minlength=len(entries)).astype(np.int64)
    for entry, count in zip(entries, frames, strict=True):
        if count != entry.frames:
            raise DatasetError(f"shard {entry.name}.parquet has {count} frames instead of {entry.frames}: {_REMEDY}")
    if pc.count_distinct(clips.key.array).as_py() != len(clips):
        counted = pc.value_counts(clips.key.array)
        twice = counted.filter(pc.greater(counted.field("counts"), 1))[0].as_py()["values"]
        raise DatasetError(f"the dataset holds the clip {twice!r} more than once: pack it again")


def _check_index(index: ShardIndex, entry: ShardEntry, clips: ClipTable, first: int) -> None:
    rows = slice(first, first + entry.clips)
    if entry.clips:
        mp4_size = np.repeat(clips.mp4_size[rows], clips.packets[rows])
        # Every clip has packets (`_check`), so `reduceat` reduces over the packets of each clip.
        for what, good in packet_rules(index.pts, index.offset, index.size, index.flags, mp4_size).items():
            _require(np.logical_and.reduceat(good, index.starts[:-1]), what, clips, entry, first)
        frames = np.add.reduceat((index.flags & HIDDEN) == 0, index.starts[:-1], dtype=np.int64)
        _require(frames == clips.frames[rows], "it has not as many visible packets as frames", clips, entry, first)


def _require(good: Bool, what: str, clips: ClipTable, entry: ShardEntry, first: int) -> None:
    if not good.all():
        raise _wrong(entry, clips.key[first + int(np.argmin(good))], what)


def _wrong(entry: ShardEntry, key: str, what: str) -> DatasetError:
    return DatasetError(f"shard {entry.name}.parquet is damaged: clip {key[:100]!r}: {what}; {_REMEDY}")
