"""The consolidated rows of a dataset: the per-clip columns of all shards in one file, which is mapped into memory.

The file begins with the numeric columns of all clips, as NumPy arrays. Then comes an Arrow IPC stream for each block
whose texts and metadata were read (`streamvid.dataset.row_texts`), then JSON with the offsets of all of these, and 8
bytes with the length of the JSON. A block's offsets are known when it arrives, so several threads can write, and memory
holds only a few blocks. Arrays that are read back are views of the mapped file.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.dataset.clip_table import Categories, ClipTable, FileColumns
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.row_texts import STSD, RowTexts, TableTexts, text_batch
from streamvid.dataset.schema import CATEGORIES, NUMBERS, PLACE_NUMBERS, PLACE_TEXTS, TEXTS
from streamvid.dataset.shard_rows import RowBlock, TextBlock, shard_numbers
from streamvid.dataset.string_column import BinaryColumn, StringColumn, repeated
from streamvid.errors import DatasetError

_LAYOUT: Final = b"streamvid rows 9\n"
"""Part of the cache key: change it together with the format of `write_rows`."""
_WRITERS: Final = 4
_SAMPLE: Final = 1024
_KNOWN: Final = 4096
"""Sample descriptions that are recognised across blocks; others are recognised only within their block."""


def cache_key(entries: Sequence[ShardEntry], signatures: Sequence[tuple[int, int]]) -> str:
    """The name of a dataset's consolidated rows in the cache: SHA-256, in hexadecimal, of everything that they depend
    on.

    Args:
        entries: the shards' entries in dataset.json, with the checksum of every Parquet file. Other parts of a revision
            do not affect the rows.
        signatures: size and modification time of each local Parquet file, because its checksum is not compared.
    """
    digest = hashlib.sha256(_LAYOUT + repr(entries).encode())
    digest.update(np.array(signatures, dtype="<i8").tobytes())
    return digest.hexdigest()


def write_rows(path: str, blocks: Iterable[RowBlock], entries: Sequence[ShardEntry]) -> None:
    """Write the rows of all shards to a local file, padded to a multiple of 8 bytes.

    Args:
        path: path of the file.
        blocks: the rows in order.
        entries: the shards' entries in dataset.json.

    Raises:
        DatasetError: two clips have the same key, or a block cannot be read.
        OSError: the file cannot be written.
    """
    joined = _Joined(entries)
    blocks_at: list[tuple[int, str | tuple[int, int]]] = []
    end = joined.end
    pending: deque[Future[None]] = deque()
    with open(path, "wb") as file, ThreadPoolExecutor(_WRITERS) as pool:
        file.truncate(joined.end)
        for block in blocks:
            numbers, texts = joined.add(block)
            pending.append(pool.submit(_write, path, numbers, texts, end))
            if isinstance(texts, str):
                blocks_at.append((len(block), texts))
            else:
                size = pa.MockOutputStream()
                _write_stream(size, texts)
                blocks_at.append((len(block), (end, end := end + size.size())))
            if len(pending) > _WRITERS:
                pending.popleft().result()
        ordered = np.sort(joined.key_hashes)
        for future in pending:
            future.result()
        about = json.dumps({"numbers": joined.places, "names": joined.names(), "texts": blocks_at}).encode()
        about += b" " * (-len(about) % 8)
        file.seek(end)
        file.write(about + len(about).to_bytes(8, "little"))
    # Duplicate keys can be found only if all keys were read.
    if (ordered[1:] == ordered[:-1]).any() and not any(isinstance(texts, str) for _, texts in blocks_at):
        with pa.memory_map(path) as mapped:
            key = read_rows(mapped.read_buffer(), entries)[0].key
        for twice in repeated(key, joined.key_hashes):
            raise DatasetError(f"the dataset holds the clip {twice!r} more than once: pack it again")


def read_rows(
    content: pa.Buffer, entries: Sequence[ShardEntry], read: TableTexts | None = None
) -> tuple[ClipTable, RowTexts]:
    """Read rows that `write_rows` wrote, and their texts. Arrays are views of `content`.

    Args:
        content: the file.
        entries: the shards' entries in dataset.json.
        read: reads those texts that are not in the file.
    """
    length = int.from_bytes(content[content.size - 8 :], "little")
    about = json.loads(content[content.size - 8 - length : content.size - 8].to_pybytes())
    clips = sum(entry.clips for entry in entries)
    columns: dict[str, Any] = {
        name: np.frombuffer(content, dtype, clips, start) for name, (dtype, start) in about["numbers"].items()
    }
    columns |= {name: Categories(columns[name], tuple(texts)) for name, texts in about["names"].items()}
    blocks = [(rows, at if isinstance(at, str) else content[slice(*at)]) for rows, at in about["texts"]]
    texts = RowTexts(blocks, entries, read)
    columns |= {name: StringColumn(texts, name) for name in TEXTS}
    columns["stsds"] = BinaryColumn(texts, STSD)
    if "root" in columns:
        numbers = [columns.pop(name) for name in PLACE_NUMBERS]
        file, etag = (StringColumn(texts, name) for name in PLACE_TEXTS)
        columns["files"] = FileColumns(numbers[0], file, numbers[1], numbers[2], etag)
    return ClipTable(**columns), texts


def _write(path: str, numbers: Iterable[tuple[npt.NDArray[Any], int]], texts: pa.RecordBatch | str, at: int) -> None:
    """Write a block: its arrays at their offsets, and the stream of its texts if they were read."""
    with open(path, "r+b") as file:
        for values, place in numbers:
            # Zeros are not written, because holes in the file read as zeros and take no space.
            if len(values) and (values[0] or values.any()):
                file.seek(place)
                file.write(np.ascontiguousarray(values).data)
        if not isinstance(texts, str):
            file.seek(at)
            _write_stream(file, texts)


def _write_stream(sink: Any, texts: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, texts.schema) as stream:
        stream.write_batch(texts)


class _Joined:
    """Joins blocks: computes the offsets of their numbers, and renumbers references between clips.

    A clip's `stsd_id` is the row of the first clip known to have the same sample description, which is stored only
    there.

    Attributes:
        places: for each numeric column its dtype, and its offset in the file.
        end: offset at which the numeric columns end.
        key_hashes: uint64 [clips], hashes of the keys that were read.
    """

    def __init__(self, entries: Sequence[ShardEntry]) -> None:
        self._shard = shard_numbers(entries)
        clips = len(self._shard)
        kinds = NUMBERS | dict.fromkeys((*CATEGORIES, "stsd_id", "shard"), "int32") | {"row": "int64"}
        kinds |= {} if all(entry.has_tar for entry in entries) else PLACE_NUMBERS
        self.places: dict[str, tuple[str, int]] = {}
        self.end = 0
        for name, dtype in kinds.items():
            self.places[name] = dtype, self.end
            self.end += -(-clips * np.dtype(dtype).itemsize // 8) * 8
        self._names: dict[str, dict[str, int]] = {name: {} for name in CATEGORIES}
        self._known = pa.array([], type=pa.large_binary())
        self._known_rows = np.empty(0, dtype=np.int32)
        self.key_hashes = np.zeros(clips, dtype=np.uint64)
        self._done = 0

    def names(self) -> dict[str, list[str]]:
        """The distinct strings of dictionary-encoded columns, by column."""
        return {name: list(numbers) for name, numbers in self._names.items()}

    def add(self, block: RowBlock) -> tuple[list[tuple[npt.NDArray[Any], int]], pa.RecordBatch | str]:
        """Add a block. Returns its numeric columns with their offsets in the file, and its texts and metadata, or the
        SHA-256 of the file with these."""
        rows = slice(self._done, self._done + len(block))
        numbers = {**block.numbers, "shard": self._shard[rows], "row": np.arange(rows.start, rows.stop)}
        for name, category in block.categories.items():
            known = self._names[name]
            renumbered = [known.setdefault(text, len(known)) for text in category.names]
            same = renumbered == list(range(len(renumbered)))
            numbers[name] = category.codes if same else np.array(renumbered, dtype=np.int32)[category.codes]
        self._done = rows.stop
        numbers["stsd_id"] = numbers["row"]
        texts: pa.RecordBatch | str
        if isinstance(block.texts, str):
            texts = block.texts
        else:
            self.key_hashes[rows] = block.texts.key_hashes
            stsd, numbers["stsd_id"] = self._sample_descriptions(block.texts, rows)
            texts = text_batch(block.texts, stsd)
        placed = []
        for name, (dtype, start) in self.places.items():
            values = numbers[name] if name in numbers else np.full(len(block), -1)
            placed.append((values.astype(dtype, copy=False), start + rows.start * np.dtype(dtype).itemsize))
        return placed, texts

    def _sample_descriptions(self, block: TextBlock, rows: slice) -> tuple[pa.Array, npt.NDArray[np.int32]]:
        """large_binary [rows]: sample descriptions, null if an earlier clip has the same; and int32 [rows]: the clip
        that has each clip's description."""
        row_of = np.arange(rows.start, rows.stop, dtype=np.int32)
        known = np.zeros(len(row_of), dtype=bool)
        # Equal descriptions are not looked for if a sample of the clips has none.
        if pc.index_in(block.stsd[:_SAMPLE], value_set=self._known).null_count < min(_SAMPLE, len(row_of)):
            at = pc.index_in(block.stsd, value_set=self._known)
            known = np.asarray(pc.is_valid(at))
            row_of[known] = self._known_rows[at.filter(pa.array(known)).to_numpy()]
        new = np.flatnonzero((block.stsd_row == np.arange(len(row_of))) & ~known)[: _KNOWN - len(self._known)]
        if len(new):
            self._known = pa.concat_arrays([self._known, block.stsd.take(pa.array(new))])
            self._known_rows = np.concatenate([self._known_rows, row_of[new]])
        stsd = pc.if_else(pa.array(known), pa.scalar(None, block.stsd.type), block.stsd) if known.any() else block.stsd
        return stsd, row_of[block.stsd_row]
