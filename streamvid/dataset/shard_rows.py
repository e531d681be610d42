"""Reads and validates the rows of shards from their Parquet files. `streamvid.dataset.consolidated` joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Bool
from streamvid.dataset.clip_table import Categories, Int32
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.meta_columns import MetaColumns, from_parquet
from streamvid.dataset.schema import (
    BLOCK,
    CATEGORIES,
    EXTENSIONS,
    FIELD_PREFIX,
    NUMBERS,
    PLACE_NUMBERS,
    PLACE_SCHEMA,
    PLACE_TEXTS,
    SCHEMA,
    TEXTS,
)
from streamvid.dataset.string_column import UInt64, hashes
from streamvid.errors import DatasetError
from streamvid.mp4.boxes import ROTATIONS
from streamvid.storage.parquet import read_parquet
from streamvid.storage.regular_file import NotAFileError
from streamvid.storage.table_bounds import TooLargeError
from streamvid.storage.url import DOT_SEGMENTS
from streamvid.video.index_file import ENTRY_BYTES, PACKET_BYTES

MAX_SIDE: Final = 32768
MAX_TICKS: Final = 1 << 53
"""The largest time: a float64 represents every smaller integer exactly, and sums do not overflow int64."""
_TYPE_SHOWN: Final = 100
REMEDY: Final = "copy the shard again or run streamvid verify"
_KEY_PATTERN: Final = r"\A[A-Za-z0-9_-]{1,80}\z"
_FILE_PATTERN: Final = r"\A[^/\x00-\x1f]+(/[^/\x00-\x1f]+)*\z"
_MAX_FILE_NAME: Final = 4096
_SAMPLE: Final = 1024


@dataclass(frozen=True)
class TextBlock:
    """The texts and metadata of the rows of consecutive shards, whose Parquet files have the same metadata columns.

    Attributes:
        texts: large_string [clips], by name; with `PLACE_TEXTS` for shards without tars.
        key_hashes: uint64 [clips], see `streamvid.dataset.string_column.hashes`.
        stsd: large_binary [clips], each clip's sample description; null if it is known to equal an earlier clip's.
        stsd_row: int32 [clips], index in the block of the clip whose `stsd` entry is this clip's sample description.
        meta: the metadata columns.
    """

    texts: dict[str, pa.Array]
    key_hashes: UInt64
    stsd: pa.Array
    stsd_row: Int32
    meta: MetaColumns


@dataclass(frozen=True)
class RowBlock:
    """The rows of consecutive shards.

    Attributes:
        numbers: numeric columns, [clips], by name, as in `ClipTable`; with `PLACE_NUMBERS` for shards without tars.
        categories: columns whose strings many clips share, by name.
        texts: the texts and metadata, or the SHA-256 of the consolidated table's file with them.
    """

    numbers: dict[str, npt.NDArray[Any]]
    categories: dict[str, Categories]
    texts: TextBlock | str

    def __len__(self) -> int:
        return len(self.numbers["label"])


def read_scalars(source: str | pa.Buffer, entry: ShardEntry, *, checksums: bool = False) -> pa.Table:
    """The columns of a shard's Parquet file: `SCHEMA`, for a shard without a tar also `PLACE_SCHEMA`, and the metadata
    columns, whose names begin with `FIELD_PREFIX`.

    Args:
        source: path of a local file, or its bytes.
        entry: the shard's entry in dataset.json.
        checksums: include the column `sha256`, which only `streamvid verify` needs. The file must have it in any case.

    Raises:
        DatasetError: the file cannot be read, lacks columns, or does not have `entry.clips` rows.
    """
    schema = SCHEMA if entry.has_tar else pa.schema([*SCHEMA, *PLACE_SCHEMA])
    leave_out = () if checksums else ("sha256",)
    return read_columns(source, f"{entry.name}.parquet", entry.clips, schema, FIELD_PREFIX, leave_out)


def read_columns(
    source: str | pa.Buffer,
    file: str,
    clips: int,
    schema: pa.Schema,
    prefix: str = "",
    leave_out: Sequence[str] = (),
    encoded: Sequence[str] = (),
) -> pa.Table:
    """Read columns of a Parquet file: those of a schema, and those with a prefix.

    Args:
        source: path of a local file, or its bytes.
        file: the file's name, for messages.
        clips: the number of rows that it must have.
        schema: columns that it must have, with their types.
        prefix: further columns whose names begin with this are read; "": none.
        leave_out: columns of the schema that are not returned.
        encoded: as in `streamvid.storage.parquet.read_parquet`.

    Raises:
        DatasetError: as in `read_scalars`.
    """

    def choose(found: pa.Schema, rows: int) -> list[str]:
        if rows != clips:
            raise DatasetError(f"shard {file} has {rows} rows for {clips} clips: {REMEDY}")
        for field in schema:
            at = found.get_field_index(field.name)
            type_ = found.field(at).type if at >= 0 else "no such column"
            if field.name in encoded and isinstance(type_, pa.DictionaryType):
                type_ = type_.value_type
            if type_ != field.type:
                kind = str(type_)[:_TYPE_SHOWN]
                raise DatasetError(f"shard {file}: column {field.name!r} is not {field.type} ({kind}): {REMEDY}")
        typed = [name for name in found.names if prefix and name.startswith(prefix)]
        if len(set(typed)) < len(typed):
            raise DatasetError(f"shard {file} has two columns of one name: {REMEDY}")
        return [name for name in schema.names if name not in leave_out] + typed

    try:
        table = read_parquet(source, choose, encoded=encoded)
    except FileNotFoundError as error:
        raise DatasetError(f"shard {file} is missing: {REMEDY}") from error
    except PermissionError as error:
        raise unopened(file, error) from error
    except (NotAFileError, TooLargeError) as error:
        what = f"it is {error.strerror}" if isinstance(error, NotAFileError) else error
        raise DatasetError(f"shard {file} cannot be read: {what}; {REMEDY}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DatasetError(f"shard {file} cannot be read as Parquet: {REMEDY}") from error
    for field in schema:
        if not field.nullable and field.name not in leave_out and table[field.name].null_count:
            raise DatasetError(f"shard {file}: column {field.name!r} has empty cells: {REMEDY}")
    return table


def unopened(file: str, error: OSError) -> DatasetError:
    """The error for a file of a shard that cannot be opened."""
    remedy = "check who owns it and its folder, and their modes" if isinstance(error, PermissionError) else REMEDY
    return DatasetError(f"shard {file} cannot be opened ({error.strerror}): {remedy}")


def row_blocks(tables: Sequence[pa.Table], entries: Sequence[ShardEntry]) -> list[RowBlock]:
    """The rows of consecutive shards, in the fewest blocks of shards with the same metadata columns.

    Args:
        tables: the result of `read_scalars` for each shard.
        entries: the shards' entries in dataset.json.

    Raises:
        DatasetError: a value is out of range, such as a clip beyond the end of its shard's tar; the message names shard
            and clip.
    """
    blocks = []
    # Columns differ only between shards of different appends, or with and without tars.
    for _, group in groupby(zip(tables, entries, strict=True), key=lambda item: item[0].schema):
        some, its = zip(*group, strict=True)
        blocks.append(row_block(pa.concat_tables(some), its))
    return blocks


def shard_numbers(entries: Sequence[ShardEntry]) -> Int32:
    """int32 [clips]: the number of each clip's shard."""
    return np.repeat(np.arange(len(entries), dtype=np.int32), [entry.clips for entry in entries])


def damaged(entry: ShardEntry, key: str, what: str) -> DatasetError:
    """The error for a clip's row that is invalid or contradicts other rows."""
    return DatasetError(f"shard {entry.name}.parquet is damaged: clip {key[:100]!r}: {what}; {REMEDY}")


def row_block(table: pa.Table, entries: Sequence[ShardEntry], texts: str = "") -> RowBlock:
    """The rows of consecutive shards from one table; otherwise as `row_blocks`.

    Args:
        table: the rows.
        entries: the shards' entries in dataset.json.
        texts: SHA-256 of the file with the texts; "" if they are in `table`.
    """
    kinds = NUMBERS if entries[0].has_tar else {**NUMBERS, **PLACE_NUMBERS}
    numbers = {name: _numbers(table[name], dtype) for name, dtype in kinds.items()}
    block = texts or text_block(table, entries)
    categories = {}
    with _explained(entries):
        for name in CATEGORIES:
            codes, distinct, _ = _dictionary(table[name])
            categories[name] = Categories(codes, tuple(distinct.to_pylist()))
    _check_numbers(numbers, table, block, entries)
    return RowBlock(numbers, categories, block)


def text_block(table: pa.Table, entries: Sequence[ShardEntry]) -> TextBlock:
    """The texts and metadata of consecutive shards from one table; otherwise as `row_blocks`."""
    with _explained(entries):
        texts = {name: _text(table[name]) for name in (*TEXTS, *(() if entries[0].has_tar else PLACE_TEXTS))}
        stsd, stsd_row, stsd_sizes = _sample_descriptions(table["stsd"])
        meta = table.select([name for name in table.column_names if name.startswith(FIELD_PREFIX)])
        meta.validate(full=True)
    key = texts["key"]
    rules = {
        "its key is not of letters, digits, '_' and '-'": _matches(key, _KEY_PATTERN),
        "it has no sample description": stsd_sizes >= 16,
    }
    if not entries[0].has_tar:
        file = texts["file"]
        rules["its file is not a relative path without '.' and '..'"] = (
            _matches(file, _FILE_PATTERN)
            & ~_matches(file, DOT_SEGMENTS)
            & (pc.binary_length(file).to_numpy() <= _MAX_FILE_NAME)
        )
    _hold(rules, entries, lambda row: str(key[row].as_py()))
    names = [name.removeprefix(FIELD_PREFIX) for name in meta.column_names]
    return TextBlock(texts, hashes(key), stsd, stsd_row, from_parquet(meta.rename_columns(names)))


@contextmanager
def _explained(entries: Sequence[ShardEntry]) -> Iterator[None]:
    """A context that turns an Arrow error into a DatasetError that names the shards."""
    try:
        yield
    except ValueError as error:  # ArrowInvalid is a ValueError
        where = f"shards {entries[0].name} to {entries[-1].name}"
        raise DatasetError(f"text in {where} is not UTF-8 ({str(error).splitlines()[0]}): {REMEDY}") from error


def _sample_descriptions(column: pa.ChunkedArray) -> tuple[pa.Array, Int32, npt.NDArray[Any]]:
    """`TextBlock.stsd` and `stsd_row`, and the size of each clip's description in bytes, int [clips]. If most clips of
    a sample have different ones, equal descriptions are not looked for."""
    if len(column) > _SAMPLE and pc.count_distinct(column.slice(0, _SAMPLE)).as_py() > _SAMPLE // 2:
        own = column.cast(pa.large_binary()).combine_chunks()
        return own, np.arange(len(own), dtype=np.int32), np.asarray(pc.binary_length(own))
    codes, distinct, first = _dictionary(column)
    row = first[codes]
    again = row != np.arange(len(codes))
    sizes = np.asarray(pc.binary_length(distinct))[codes]
    return distinct.cast(pa.large_binary()).take(pa.array(codes, mask=again)), row, sizes


def _numbers(column: pa.ChunkedArray, dtype: str) -> npt.NDArray[Any]:
    return np.asarray((pc.fill_null(column, -1) if column.null_count else column).to_numpy(), dtype=dtype)


def _text(column: pa.ChunkedArray) -> pa.Array:
    text: Any = (pc.fill_null(column, "") if column.null_count else column).cast(pa.large_string()).combine_chunks()
    text.validate(full=True)
    return text


def _matches(column: pa.Array, pattern: str) -> Bool:
    return np.asarray(pc.match_substring_regex(column, pattern))


def _dictionary(column: pa.ChunkedArray) -> tuple[Int32, pa.Array, Int32]:
    """Dictionary-encode a column: the code of each value, int32 [rows]; the distinct values in order of first
    appearance; and the row in which each appears first, int32 [distinct]. (The dictionary in the file may have another
    order.)"""
    column.validate(full=True)
    encoded: Any = column.combine_chunks()
    encoded = encoded if pa.types.is_dictionary(encoded.type) else encoded.dictionary_encode()
    codes, distinct = encoded.indices.to_numpy(), encoded.dictionary
    if len(distinct) == 1 and len(codes):  # most columns
        return np.zeros(len(codes), dtype=np.int32), distinct, np.zeros(1, dtype=np.int32)
    first = np.full(len(distinct), len(codes), dtype=np.int32)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    order = np.argsort(first)[: int((first < len(codes)).sum())]
    if len(order) < len(first) or (np.diff(order) < 0).any():
        number = np.empty(len(first), dtype=np.int32)
        number[order] = np.arange(len(order))
        codes, distinct, first = number[codes], distinct.take(pa.array(order)), first[order]
    return codes, distinct, first


def _check_numbers(
    numbers: dict[str, npt.NDArray[Any]], table: pa.Table, texts: TextBlock | str, entries: Sequence[ShardEntry]
) -> None:
    shard = shard_numbers(entries)
    packets_bytes = np.array([entry.packets_bytes for entry in entries], dtype=np.int64)[shard]
    width, height, frames, packets = (numbers[name] for name in ("width", "height", "frames", "packets"))
    rules = {
        f"its frames are not 1 to {MAX_SIDE} pixels wide and high": (
            (width >= 1) & (width <= MAX_SIDE) & (height >= 1) & (height <= MAX_SIDE)
        ),
        "its rotation is not a multiple of 90 from 0 to 630": np.isin(numbers["rotation"], ROTATIONS),
        "its time base is not positive": (numbers["time_base_num"] >= 1) & (numbers["time_base_den"] >= 1),
        "its duration is out of range": (numbers["duration"] >= 0) & (numbers["duration"] <= MAX_TICKS),
        "its label is negative": (numbers["label"] >= 0) | pc.is_null(table["label"]).to_numpy(),
        "it has no frames, or more frames than packets": (frames >= 1) & (frames <= packets),
        "it has more random access points than packets": (
            (numbers["random_access"] >= 0) & (numbers["random_access"] <= packets)
        ),
    }
    placed = {
        "its frame index has not the size of its packets and blocks": (
            (blocks := table["index_blocks"].to_numpy().astype(np.int64)) >= 1
        )
        & (numbers["index_size"] == PACKET_BYTES * packets.astype(np.int64) + ENTRY_BYTES * blocks),
        "its frame index does not lie within the .packets file": _within(
            numbers["index_offset"], numbers["index_size"], packets_bytes
        ),
    }
    if entries[0].has_tar:
        tar_size = np.array([entry.bytes for entry in entries], dtype=np.int64)[shard]
        for name in EXTENSIONS:
            offset = numbers[f"{name}_offset"]
            placed[f"its {name} does not lie within the tar"] = (offset >= BLOCK) & _within(
                offset, numbers[f"{name}_size"], tar_size
            )
    else:
        # The number of a root is compared with the roots where these are known.
        placed["its root is negative"] = numbers["root"] >= 0
        placed["its mp4 does not lie within its file"] = _within(
            numbers["mp4_offset"], numbers["mp4_size"], numbers["file_size"]
        )
        undated = pc.is_null(table["file_mtime_ns"]).to_numpy()
        placed["its modification time is negative"] = (numbers["file_mtime_ns"] >= 0) | undated
    # A purged clip has no bytes, so its old offsets do not matter.
    purged = (numbers["mp4_size"] == 0) & (numbers["index_size"] == 0)
    rules |= {what: good | purged for what, good in placed.items()}
    _hold(rules, entries, lambda row: f"row {row}" if isinstance(texts, str) else str(texts.texts["key"][row].as_py()))
    counts = np.bincount(shard, weights=frames, minlength=len(entries)).astype(np.int64)
    for entry, count in zip(entries, counts.tolist(), strict=True):
        if count != entry.frames:
            raise DatasetError(f"shard {entry.name}.parquet has {count} frames instead of {entry.frames}: {REMEDY}")


def _hold(rules: Mapping[str, Bool], entries: Sequence[ShardEntry], name: Callable[[int], str]) -> None:
    """Raise a DatasetError for the first clip that breaks one of the rules, bool [clips] each."""
    for what, good in rules.items():
        if not good.all():
            row = int(np.argmin(good))
            raise damaged(entries[shard_numbers(entries)[row]], name(row), what)


def _within(offset: npt.NDArray[Any], size: npt.NDArray[Any], whole: npt.NDArray[Any]) -> Bool:
    """bool [clips]: whether bytes lie within a file. Computed without offset + size, which may overflow int64."""
    return np.asarray((offset >= 0) & (size >= 1) & (offset <= whole) & (size <= whole - np.minimum(offset, whole)))
