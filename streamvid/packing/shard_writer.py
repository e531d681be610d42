"""Writes shards: clips → tar, DALI index (idx), frame indexes (packets) and Parquet. docs/format.md specifies all."""

from __future__ import annotations

import hashlib
import io
import math
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from webdataset.writer import TarWriter

from streamvid.dataset.manifest import SHARD_EXTENSIONS, SHARD_FOLDER, ShardEntry
from streamvid.dataset.schema import (
    BLOCK,
    EXTENSIONS,
    KINDS,
    MAX_FILE_BYTES,
    SCHEMA,
    idx_text,
)
from streamvid.packing.metadata import Metadata
from streamvid.packing.options import PreparedClip
from streamvid.packing.typed_columns import dump_json
from streamvid.storage import filesystem
from streamvid.storage.url import join
from streamvid.video.frame_index import RANDOM_ACCESS
from streamvid.video.index_file import encode_index
from streamvid.video.stored_clip import StoredClip

_OWNER: Final = "streamvid"
_MODE: Final = 0o444
_CLIP_COLUMNS: Final = (
    "codec", "profile", "pix_fmt", "color_space", "color_range", "traits", "width", "height", "rotation", "duration",
    "stsd",
)  # fmt: skip
"""Attributes of a stored clip that are columns of the same names."""


def _clip_json(key: str, source: str, label: int | str | None, meta: str) -> bytes:
    """The ``<key>.json`` of a clip: its name, its video's, its label if it has one, and the columns of `meta`."""
    head = dump_json({"key": key, "source": source, **({} if label is None else {"label": label})})
    return (head if meta == "{}" else f"{head[:-1]},{meta[1:]}").encode()


def _member_bytes(size: int) -> int:
    """Bytes of a file in a tar: a header block, and its data in whole blocks."""
    return BLOCK + math.ceil(size / BLOCK) * BLOCK


def _tar_size(content: int) -> int:
    """Bytes of a tar: its members, two zero blocks, and padding to whole records (POSIX.1-2001, pax, ustar)."""
    return math.ceil((content + 2 * BLOCK) / tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _json_member(key: str, data: bytes) -> bytes:
    """A clip's JSON as a member of a tar."""
    tar = io.BytesIO()
    with TarWriter(tar, user=_OWNER, group=_OWNER, mode=_MODE, encoder=False, mtime=0) as writer:
        writer.write({"__key__": key, EXTENSIONS[1]: data})
    if len(tar.getbuffer()) != _tar_size(_member_bytes(len(data))):
        raise AssertionError("a tar header of more than one block: not USTAR")
    return tar.getvalue()[: _member_bytes(len(data))]


class ShardWriter:
    """Writes one shard to a local folder; `commit` moves it to the dataset. A context manager.

    MP4s are copied in chunks, so that memory does not grow with their size.
    """

    def __init__(self, number: int, folder: Path, *, metadata: Metadata) -> None:
        """Begin a shard.

        Args:
            number: its number in the dataset.
            folder: an existing local folder for its files until `commit`.
            metadata: the rows of the clips, with all columns of the pack, also those that no clip of this shard has.
        """
        self.name = f"{number:08d}"
        self._metadata = metadata
        self._folder = folder
        self._path = folder / f"{self.name}.tar"
        self._hashed = _HashingFile(self._path.open("wb", buffering=1 << 20))
        self._packets = _HashingFile(self._path.with_suffix(".packets").open("wb", buffering=1 << 20))
        self._content = 0
        self._rows: list[dict[str, int | str | bytes | None]] = []
        self._frames = 0
        self._metadata_of: list[tuple[tuple[int, ...], Mapping[str, float | int]]] = []

    @property
    def clips(self) -> int:
        """Number of clips added."""
        return len(self._rows)

    def size_with(self, key: str, source: str, prepared: PreparedClip) -> int:
        """Bytes of the tar if it ended with this clip; arguments as of `add`."""
        text = _clip_json(key, source, prepared.label, self._metadata.json(prepared.rows, prepared.span))
        return _tar_size(self._content + sum(map(_member_bytes, (prepared.clip.mp4_bytes, len(text)))))

    def add(self, key: str, source: str, prepared: PreparedClip) -> None:
        """Append a clip.

        Args:
            key: its name in the dataset.
            source: the name of its video.
            prepared: the clip, with the number of its class.

        Raises:
            ValueError: it is too large for a tar; nothing of it was written.
        """
        clip = prepared.clip
        if clip.mp4_bytes > MAX_FILE_BYTES:
            raise ValueError("the mp4 is larger than a tar can hold")
        meta = self._metadata.json(prepared.rows, prepared.span)
        text = _clip_json(key, source, prepared.label, meta)
        sizes = [clip.mp4_bytes, len(text)]
        ends = self._content + np.cumsum([_member_bytes(size) for size in sizes])
        offsets = [int(end) - _member_bytes(size) + BLOCK for end, size in zip(ends, sizes, strict=True)]
        sha256 = self._add_video(clip, key)
        self._hashed.write(_json_member(key, text))
        self._content = int(ends[-1])
        index, index_offset = encode_index(clip.index), self._packets.written
        self._packets.write(index.data)
        self._frames += len(clip.index.visible)
        self._metadata_of.append((prepared.rows, prepared.span))
        self._rows.append(
            {
                "key": key,
                "source": source,
                "label": prepared.label,
                "meta": meta,
                **{name: getattr(clip, name) for name in _CLIP_COLUMNS},
                "time_base_num": clip.time_base[0],
                "time_base_den": clip.time_base[1],
                "frames": len(clip.index.visible),
                "packets": len(clip.index),
                "random_access": int(np.count_nonzero(clip.index.flags & RANDOM_ACCESS)),
                **{
                    name: value
                    for kind, offset, size in zip(KINDS, offsets, sizes, strict=True)
                    for name, value in ((f"{kind}_offset", offset), (f"{kind}_size", size))
                },
                "index_offset": index_offset,
                "index_size": len(index.data),
                "index_blocks": index.blocks,
                "index_crc32c": index.crc32c,
                "sha256": sha256,
            }
        )

    def _add_video(self, clip: StoredClip, key: str) -> str:
        """Append a clip's MP4 in chunks, where TarWriter takes a file as a whole; returns its SHA-256."""
        header = tarfile.TarInfo(f"{key}.{EXTENSIONS[0]}")
        header.size, header.mode, header.mtime = clip.mp4_bytes, _MODE, 0
        header.uname = header.gname = _OWNER
        start = self._hashed.written
        self._hashed.write(header.tobuf(tarfile.USTAR_FORMAT))
        checksum = hashlib.sha256()
        for chunk in clip.read_mp4():
            self._hashed.write(chunk)
            if not clip.sha256:
                checksum.update(chunk)
        self._hashed.write(bytes(-header.size % BLOCK))
        if self._hashed.written != start + _member_bytes(header.size):
            raise AssertionError("the mp4 is not as large as it was")
        return clip.sha256 or checksum.hexdigest()

    def commit(self, destination: str) -> ShardEntry:
        """Finish the shard and move its files to `destination`, in the order of `SHARD_EXTENSIONS`, each atomically.

        Raises:
            StreamvidError: the destination cannot be written.
        """
        self.close()
        self._check()
        paths = {kind: self._folder / f"{self.name}.{kind}" for kind in SHARD_EXTENSIONS}
        index = idx_text([{k: v for k, v in row.items() if isinstance(v, int | str)} for row in self._rows])
        paths["idx"].write_bytes(index.encode())
        fields = self._metadata.columns(self._metadata_of)
        write_parquet(self._rows, paths["parquet"], fields)
        sums = {kind: hashlib.sha256(paths[kind].read_bytes()).hexdigest() for kind in ("idx", "parquet")}
        for kind, path in paths.items():
            filesystem.move_file(path, join(destination, SHARD_FOLDER, f"{self.name}.{kind}"))
        return ShardEntry(
            name=self.name,
            clips=len(self._rows),
            frames=self._frames,
            bytes=self._hashed.written,
            sha256=self._hashed.hexdigest(),
            idx_sha256=sums["idx"],
            packets_bytes=self._packets.written,
            packets_sha256=self._packets.hexdigest(),
            parquet_sha256=sums["parquet"],
        )

    def close(self) -> None:
        """End the tar, and close the files."""
        if not self._hashed.closed:
            self._hashed.write(bytes(_tar_size(self._content) - self._content))
            self._hashed.close()
            self._packets.close()

    def _check(self) -> None:
        """Check the offsets by the size of the tar and the headers of the last clip."""
        if self._hashed.written != _tar_size(self._content) or self._path.stat().st_size != self._hashed.written:
            raise AssertionError("the tar is not as large as its files make it")
        row = self._rows[-1]
        with self._path.open("rb") as file:
            for extension, kind in zip(EXTENSIONS, KINDS, strict=True):
                offset, size = row[f"{kind}_offset"], row[f"{kind}_size"]
                assert isinstance(offset, int)
                file.seek(offset - BLOCK)
                header = tarfile.TarInfo.frombuf(file.read(BLOCK), "utf-8", "strict")
                if (header.name, header.size) != (f"{row['key']!s}.{extension}", size):
                    raise AssertionError("the tar's files are not where its index says")

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_parquet(rows: Sequence[dict[str, int | str | bytes | None]], path: Path, fields: pa.Table) -> None:
    """Write the Parquet file of a shard.

    Args:
        rows: the columns of each clip.
        path: of the file.
        fields: the metadata columns, see `streamvid.packing.metadata.Metadata.columns`.
    """
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in SCHEMA]
    table = pa.Table.from_arrays(columns, schema=SCHEMA)
    for name in fields.column_names:
        table = table.append_column(fields.schema.field(name), fields[name])
    # One row group, as a shard is read as a whole: more would cost requests.
    pq.write_table(table, path, compression="zstd", row_group_size=max(1, len(rows)))


class _HashingFile(io.RawIOBase):
    """A file that counts the bytes written and computes their SHA-256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.written

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        self._file.write(data)
        self._sha256.update(data)
        self.written += len(data)
        return len(data)

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
