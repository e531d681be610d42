"""Writes shards: tar, DALI index (idx), frame indexes (packets) and Parquet. docs/format.md specifies the files.

`NewShard` writes every kind of shard: with videos, with clips in place, and with the clips of an older shard
(`streamvid.revising.rewrite`). `ShardWriter` is for packing: it writes prepared clips, and publishes the shard.
"""

from __future__ import annotations

import hashlib
import math
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from streamvid.checksum import file_sha256
from streamvid.dataset.manifest import SHARD_FOLDER, ShardEntry
from streamvid.dataset.schema import BLOCK, EXTENSIONS, MAX_FILE_BYTES, PLACE_SCHEMA, SCHEMA, idx_text
from streamvid.errors import DatasetError, VideoError
from streamvid.packing.clip_rows import Row, clip_columns, write_parquet
from streamvid.packing.metadata import Metadata
from streamvid.packing.options import PreparedClip
from streamvid.packing.patience import read_mp4
from streamvid.packing.typed_columns import dump_json
from streamvid.storage import filesystem
from streamvid.storage.retry import Retry
from streamvid.storage.upload import Upload
from streamvid.storage.url import join
from streamvid.video.index_file import encode_index

_OWNER: Final = "streamvid"
_MODE: Final = 0o444
_CHUNK: Final = 1 << 20
MOST_INDEXED: Final = 4096
"""Most clips of a shard in place."""


def _clip_json(key: str, source: str, label: int | str | None, meta: str) -> bytes:
    """The ``<key>.json`` of a clip: its key, its source, its label if it has one, and the columns of `meta`."""
    head = dump_json({"key": key, "source": source, **({} if label is None else {"label": label})})
    return (head if meta == "{}" else f"{head[:-1]},{meta[1:]}").encode()


def member_bytes(size: int) -> int:
    """Bytes of a file in a tar: a header block, and its data in whole blocks."""
    return BLOCK + math.ceil(size / BLOCK) * BLOCK


def _tar_size(content: int) -> int:
    """Bytes of a tar: its members, two zero blocks, and padding to whole records (POSIX.1-2001, pax, ustar)."""
    return math.ceil((content + 2 * BLOCK) / tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _header(name: str, size: int) -> bytes:
    """The header block of a file in a tar."""
    header = tarfile.TarInfo(name)
    header.size, header.mode, header.mtime = size, _MODE, 0
    header.uname = header.gname = _OWNER
    return header.tobuf(tarfile.USTAR_FORMAT)


def _json_member(key: str, data: bytes) -> bytes:
    """A clip's JSON as a member of a tar."""
    return _header(f"{key}.{EXTENSIONS[1]}", len(data)) + data + bytes(-len(data) % BLOCK)


class HashingFile:
    """A file that counts the bytes written and computes their SHA-256."""

    def __init__(self, file: BinaryIO | Upload) -> None:
        self.file = file
        self._sha256 = hashlib.sha256()
        self.written = 0
        self._before = self.written, self._sha256

    def mark(self) -> None:
        """Note the end of the file, for `rewind`."""
        self._before = self.written, self._sha256.copy()
        if isinstance(self.file, Upload):
            self.file.mark()

    def rewind(self) -> None:
        """Take back what was written since `mark`."""
        self.written, self._sha256 = self._before
        if isinstance(self.file, Upload):
            self.file.rewind()
        else:
            self.file.seek(self.written)
            self.file.truncate()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self.file.write(data)
        self._sha256.update(data)
        self.written += len(data)

    def hexdigest(self) -> str:
        """SHA-256 of the bytes written so far."""
        return self._sha256.hexdigest()


class NewShard:
    """The files of a shard while they are written.

    Args:
        name: the shard's name.
        folder: an existing local folder for its files.
        tar: an upload, or the open file in the folder; None: the shard has no tar.

    Attributes:
        rows: rows of the clips added so far.
    """

    def __init__(self, name: str, folder: Path, tar: BinaryIO | Upload | None) -> None:
        self.name, self._folder = name, folder
        self.rows: list[Row] = []
        self._tar = None if tar is None else HashingFile(tar)
        self._packets = HashingFile(self.path("packets").open("wb", buffering=_CHUNK))

    def path(self, extension: str) -> Path:
        """Path of the shard's file with this extension."""
        return self._folder / f"{self.name}.{extension}"

    def tar_with(self, *sizes: int) -> int:
        """Bytes of the tar if files of these sizes were added and the tar ended there."""
        assert self._tar is not None
        return _tar_size(self._tar.written + sum(map(member_bytes, sizes)))

    def add(
        self,
        row: Row,
        index: Iterable[bytes] = (),
        mp4: Iterable[bytes | memoryview] = (),
    ) -> None:
        """Append a clip and its row, in which the places of its bytes are filled in.

        Args:
            row: the clip's columns. If `mp4_size` is 0, as for a purged clip, nothing is added to the tar.
            index: the clip's frame index.
            mp4: the MP4 in chunks, so that memory does not grow with its size.

        Raises:
            DatasetError: the size of the MP4 is not the row's `mp4_size`.
            VideoError: by `mp4`; nothing was added.
        """
        if self._tar is not None and row["mp4_size"]:
            start = self._tar.written
            self._tar.mark()
            self._tar.write(_header(f"{row['key']}.{EXTENSIONS[0]}", row["mp4_size"]))
            try:
                for chunk in mp4:
                    self._tar.write(chunk)
            except VideoError:
                self._tar.rewind()
                raise
            self._tar.write(bytes(-row["mp4_size"] % BLOCK))
            text = _clip_json(row["key"], row["source"], row["label"], row["meta"])
            row |= {"mp4_offset": start + BLOCK, "json_offset": self._tar.written + BLOCK, "json_size": len(text)}
            if self._tar.written != start + member_bytes(row["mp4_size"]):
                raise DatasetError(f"clip {row['key']!r}: the size of its video is not the one in its row")
            self._tar.write(_json_member(row["key"], text))
        row["index_offset"] = self._packets.written
        for block in index:
            self._packets.write(block)
        self.rows.append(row)

    def finish(self, fields: pa.Table, schema: pa.Schema) -> ShardEntry:
        """Complete the files.

        Args:
            fields: the metadata columns of the rows.
            schema: the schema of all other columns.

        Returns:
            the shard's entry for dataset.json.
        """
        size, tar, idx = 0, "", ""
        if self._tar is not None:
            self._tar.write(bytes(self.tar_with() - self._tar.written))
            if isinstance(self._tar.file, Upload):
                self._tar.file.finish()
            self.path("idx").write_bytes(idx_text([row for row in self.rows if row["mp4_size"]]).encode())
            size, tar, idx = self._tar.written, self._tar.hexdigest(), file_sha256(self.path("idx"))
        self.close()
        write_parquet(self.rows, self.path("parquet"), fields, schema)
        frames, packets = sum(row["frames"] for row in self.rows), self._packets
        parquet = file_sha256(self.path("parquet"))
        return ShardEntry(
            self.name, len(self.rows), frames, size, tar, idx, packets.written, packets.hexdigest(), parquet
        )

    def close(self) -> None:
        """Close the files."""
        for file in (self._tar, self._packets):
            if file is not None:
                file.file.close()


class ShardWriter:
    """Writes one shard of prepared clips to a local folder, or its tar to an upload; `commit` publishes the shard.

    Args:
        number: the shard's number in the dataset.
        folder: an existing local folder for its files until `commit`.
        metadata: the rows of the clips, with all columns of the pack, including columns that no clip of this shard has.
        retry: for how long a local video is read again while its storage does not answer.
        upload: begins the upload of the file with an extension; None: files are moved to the dataset.
        in_place: the clips are in place, each with a `place`, and the shard has no tar.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        *,
        metadata: Metadata,
        retry: Retry | None = None,
        upload: Callable[[str], Upload] | None = None,
        in_place: bool = False,
    ) -> None:
        self._metadata, self._upload, self._in_place = metadata, upload, in_place
        self._retry = retry or Retry()
        self._metadata_of: list[tuple[Sequence[int], Mapping[str, float | int]]] = []
        name = f"{number:08d}"
        tar: BinaryIO | Upload | None = None
        if not in_place:
            tar = upload("tar") if upload else (folder / f"{name}.tar").open("wb", buffering=_CHUNK)
        self._shard = NewShard(name, folder, tar)

    @property
    def clips(self) -> int:
        """Number of clips added so far."""
        return len(self._shard.rows)

    def is_full(self, key: str, source: str, prepared: PreparedClip, shard_size: int) -> bool:
        """Whether this clip belongs into the next shard: the tar would exceed `shard_size` bytes with it, or the shard
        in place has `MOST_INDEXED` clips."""
        if self._in_place:
            return len(self._shard.rows) >= MOST_INDEXED
        return self.size_with(key, source, prepared) > shard_size

    def size_with(self, key: str, source: str, prepared: PreparedClip) -> int:
        """Bytes of the tar if it ended after this clip; arguments as in `add`."""
        text = _clip_json(key, source, prepared.label, self._metadata.json(prepared.rows, prepared.span))
        return self._shard.tar_with(prepared.clip.mp4_bytes, len(text))

    def add(self, key: str, source: str, prepared: PreparedClip) -> None:
        """Append a clip.

        Args:
            key: the clip's name, unique in the dataset.
            source: the name of its video.
            prepared: the clip, with the number of its class.

        Raises:
            ValueError: the MP4 is too large for a tar; nothing was written.
            VideoError: the file that has the MP4 was changed meanwhile; nothing was added.
        """
        clip, index = prepared.clip, encode_index(prepared.clip.index)
        meta = self._metadata.json(prepared.rows, prepared.span)
        label = prepared.label if isinstance(prepared.label, int) else None
        row: Row = {"key": key, "source": source, "label": label, "meta": meta, **clip_columns(clip, index)}
        if self._in_place:
            assert prepared.place is not None
            self._shard.add({**row, **prepared.place}, [index.data])
        else:
            if clip.mp4_bytes > MAX_FILE_BYTES:
                raise ValueError("the mp4 is larger than a tar can hold")
            checksum = hashlib.sha256()
            row |= {"mp4_size": clip.mp4_bytes, "sha256": clip.sha256}

            def chunks() -> Iterator[bytes | memoryview]:
                for chunk in read_mp4(clip, self._retry):
                    if not clip.sha256:
                        checksum.update(chunk)
                    yield chunk

            self._shard.add(row, [index.data], chunks())
            row["sha256"] = clip.sha256 or checksum.hexdigest()
        self._metadata_of.append((prepared.rows, prepared.span))

    def commit(self, destination: str) -> ShardEntry:
        """Finish the shard and move its files to `destination`, in the order of `SHARD_EXTENSIONS`, each atomically.

        Raises:
            StreamvidError: the destination cannot be written.
        """
        schema = pa.schema([*SCHEMA, *PLACE_SCHEMA]) if self._in_place else SCHEMA
        entry = self._shard.finish(self._metadata.columns(self._metadata_of), schema)
        for kind in entry.checksums:
            path = self._shard.path(kind)
            if self._upload is None:
                filesystem.move_file(path, join(destination, SHARD_FOLDER, path.name))
            elif kind != "tar":
                with closing(self._upload(kind)) as upload, path.open("rb") as file:
                    while chunk := file.read(_CHUNK):
                        upload.write(chunk)
                    upload.finish()
                path.unlink()
        return entry

    def close(self) -> None:
        """Close the files."""
        self._shard.close()
