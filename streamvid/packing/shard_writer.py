"""Writes shards: clips → tar, DALI index (idx), frame indexes (packets) and Parquet. docs/format.md specifies all."""

from __future__ import annotations

import hashlib
import io
import math
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from webdataset.writer import TarWriter

from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.schema import (
    BLOCK,
    EXTENSIONS,
    KINDS,
    MAX_FILE_BYTES,
    idx_text,
)
from streamvid.packing.metadata import Metadata
from streamvid.packing.options import PreparedClip
from streamvid.packing.row_writer import HashingFile, Row, RowWriter, StartUpload
from streamvid.packing.typed_columns import dump_json
from streamvid.storage.upload import Upload
from streamvid.video.stored_clip import StoredClip

_OWNER: Final = "streamvid"
_MODE: Final = 0o444


def _clip_json(key: str, source: str, label: int | str | None, meta: str) -> bytes:
    """The ``<key>.json`` of a clip: its name, its video's, its label if it has one, and the columns of `meta`."""
    head = dump_json({"key": key, "source": source, **({} if label is None else {"label": label})})
    return (head if meta == "{}" else f"{head[:-1]},{meta[1:]}").encode()


def member_bytes(size: int) -> int:
    """Bytes of a file in a tar: a header block, and its data in whole blocks."""
    return BLOCK + math.ceil(size / BLOCK) * BLOCK


def tar_size(content: int) -> int:
    """Bytes of a tar: its members, two zero blocks, and padding to whole records (POSIX.1-2001, pax, ustar)."""
    return math.ceil((content + 2 * BLOCK) / tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def video_header(key: str, size: int) -> bytes:
    """The header block of a clip's MP4 in a tar."""
    header = tarfile.TarInfo(f"{key}.{EXTENSIONS[0]}")
    header.size, header.mode, header.mtime = size, _MODE, 0
    header.uname = header.gname = _OWNER
    return header.tobuf(tarfile.USTAR_FORMAT)


def _json_member(key: str, data: bytes) -> bytes:
    """A clip's JSON as a member of a tar."""
    tar = io.BytesIO()
    with TarWriter(tar, user=_OWNER, group=_OWNER, mode=_MODE, encoder=False, mtime=0) as writer:
        writer.write({"__key__": key, EXTENSIONS[1]: data})
    if len(tar.getbuffer()) != tar_size(member_bytes(len(data))):
        raise AssertionError("a tar header of more than one block: not USTAR")
    return tar.getvalue()[: member_bytes(len(data))]


class ShardWriter(RowWriter):
    """Writes one shard to a local folder, or its tar to an upload; `commit` makes it a part of the dataset. A context
    manager.

    MP4s are copied in chunks, so that memory does not grow with their size. Arguments as of `RowWriter`.
    """

    def __init__(self, number: int, folder: Path, *, metadata: Metadata, upload: StartUpload | None = None) -> None:
        super().__init__(number, folder, metadata=metadata, upload=upload)
        self._tar = self._path("tar").open("wb", buffering=1 << 20) if upload is None else upload("tar")
        self._hashed = HashingFile(self._tar)
        self._content = 0

    def is_full(self, key: str, source: str, prepared: PreparedClip, shard_size: int) -> bool:
        """Whether this clip is for the next shard, as the tar would be larger with it."""
        return self.size_with(key, source, prepared) > shard_size

    def size_with(self, key: str, source: str, prepared: PreparedClip) -> int:
        """Bytes of the tar if it ended with this clip; arguments as of `add`."""
        text = _clip_json(key, source, prepared.label, self._metadata.json(prepared.rows, prepared.span))
        return tar_size(self._content + sum(map(member_bytes, (prepared.clip.mp4_bytes, len(text)))))

    def add(self, key: str, source: str, prepared: PreparedClip) -> None:
        """Append a clip.

        Args:
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
        ends = self._content + np.cumsum([member_bytes(size) for size in sizes])
        offsets = [int(end) - member_bytes(size) + BLOCK for end, size in zip(ends, sizes, strict=True)]
        sha256 = self._add_video(clip, key, offsets[0])
        if self._hashed.written + BLOCK != offsets[1]:
            raise AssertionError("the tar's files are not where its index says")
        self._hashed.write(_json_member(key, text))
        self._content = int(ends[-1])
        place: Row = {"sha256": sha256}
        for kind, offset, size in zip(KINDS, offsets, sizes, strict=True):
            place |= {f"{kind}_offset": offset, f"{kind}_size": size}
        self._add_row(key, source, prepared, place)

    def _add_video(self, clip: StoredClip, key: str, offset: int) -> str:
        """Append a clip's MP4 at an offset, in chunks, where TarWriter takes a file as a whole; returns its SHA-256."""
        self._hashed.write(video_header(key, clip.mp4_bytes))
        if self._hashed.written != offset:
            raise AssertionError("the tar's files are not where its index says")
        checksum = hashlib.sha256()
        for chunk in clip.read_mp4():
            self._hashed.write(chunk)
            if not clip.sha256:
                checksum.update(chunk)
        self._hashed.write(bytes(-clip.mp4_bytes % BLOCK))
        if self._hashed.written != offset - BLOCK + member_bytes(clip.mp4_bytes):
            raise AssertionError("the mp4 is not as large as it was")
        return clip.sha256 or checksum.hexdigest()

    def commit(self, destination: str) -> ShardEntry:
        """Finish the shard and move its files to `destination`, in the order of `SHARD_EXTENSIONS`, each atomically.

        Raises:
            StreamvidError: the destination cannot be written.
        """
        self._hashed.write(bytes(tar_size(self._content) - self._content))
        here = ["tar"]
        if isinstance(self._tar, Upload):
            self._tar.finish()
            here = []
        index = idx_text([{k: v for k, v in row.items() if isinstance(v, int | str)} for row in self._rows])
        self._path("idx").write_bytes(index.encode())
        sums, entry = self._commit(destination, (*here, "idx"))
        return replace(entry, bytes=self._hashed.written, sha256=self._hashed.hexdigest(), idx_sha256=sums["idx"])

    def close(self) -> None:
        """Close the files."""
        self._hashed.close()
        super().close()
