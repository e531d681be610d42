"""Writes what every shard has: clips → rows (Parquet) and frame indexes (packets). docs/format.md specifies both."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.dataset.manifest import SHARD_FOLDER, ShardEntry
from streamvid.dataset.schema import PLACE_SCHEMA, SCHEMA
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.metadata import Metadata
from streamvid.packing.options import Place, PreparedClip
from streamvid.storage import filesystem
from streamvid.storage.byte_range import FileVersion
from streamvid.storage.upload import Upload
from streamvid.storage.url import is_local, join
from streamvid.video.frame_index import RANDOM_ACCESS
from streamvid.video.index_file import EncodedIndex, encode_index
from streamvid.video.stored_clip import StoredClip

_CLIP_COLUMNS: Final = (
    "codec", "profile", "pix_fmt", "color_space", "color_range", "traits", "width", "height", "rotation", "duration",
    "stsd",
)  # fmt: skip
"""Attributes of a stored clip that are columns of the same names."""

Row = dict[str, int | str | bytes | None]
StartUpload = Callable[[str], Upload]

_CHUNK: Final = 1 << 20
MOST_INDEXED: Final = 4096
"""Clips of a shard that holds none of their bytes."""


class RowWriter:
    """Writes the rows and frame indexes of one shard to a local folder. A context manager."""

    schema = SCHEMA

    def __init__(self, number: int, folder: Path, *, metadata: Metadata, upload: StartUpload | None = None) -> None:
        """Begin a shard.

        Args:
            number: its number in the dataset.
            folder: an existing local folder for its files until `commit`.
            metadata: the rows of the clips, with all columns of the pack, also those that no clip of this shard has.
            upload: begins the upload of a file with this extension; None: files are moved to the dataset.
        """
        self.name = f"{number:08d}"
        self._metadata = metadata
        self._folder, self._upload = folder, upload
        self._packets = HashingFile(self._path("packets").open("wb", buffering=1 << 20))
        self._rows: list[Row] = []
        self._frames = 0
        self._metadata_of: list[tuple[tuple[int, ...], Mapping[str, float | int]]] = []

    @property
    def clips(self) -> int:
        """Number of clips added."""
        return len(self._rows)

    def _path(self, extension: str) -> Path:
        return self._folder / f"{self.name}.{extension}"

    def _add_row(self, key: str, source: str, prepared: PreparedClip, place: Row) -> None:
        """Append a clip's row and frame index; `place` says where its bytes are."""
        clip = prepared.clip
        index, index_offset = encode_index(clip.index), self._packets.written
        self._packets.write(index.data)
        self._frames += len(clip.index.visible)
        self._metadata_of.append((prepared.rows, prepared.span))
        self._rows.append(
            {
                "key": key,
                "source": source,
                "label": prepared.label if isinstance(prepared.label, int) else None,
                "meta": self._metadata.json(prepared.rows, prepared.span),
                **clip_columns(clip, index),
                "index_offset": index_offset,
                **place,
            }
        )

    def _commit(self, destination: str, others: Sequence[str]) -> tuple[dict[str, str], ShardEntry]:
        """Finish the files and move them to the dataset, `others` first, each atomically.

        Returns:
            the SHA-256 of the others, and the entry of a shard that has none of them.
        """
        self.close()
        write_parquet(self._rows, self._path("parquet"), self._metadata.columns(self._metadata_of), self.schema)
        files = (*others, "packets", "parquet")
        sums = {kind: hashlib.sha256(self._path(kind).read_bytes()).hexdigest() for kind in files if kind != "tar"}
        for kind in files:
            self._hand_over(kind, destination)
        entry = ShardEntry(
            self.name, len(self._rows), self._frames, 0, "", "", self._packets.written, sums["packets"], sums["parquet"]
        )
        return sums, entry

    def _hand_over(self, kind: str, destination: str) -> None:
        """Move a finished file to the dataset."""
        path = self._path(kind)
        if self._upload is None:
            filesystem.move_file(path, join(destination, SHARD_FOLDER, path.name))
            return
        with closing(self._upload(kind)) as upload, path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                upload.write(chunk)
            upload.finish()
        path.unlink()

    def close(self) -> None:
        """Close the files."""
        self._packets.close()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PlaceWriter(RowWriter):
    """Writes a shard of clips that stay where they are; arguments as of `RowWriter`."""

    schema = pa.schema([*SCHEMA, *PLACE_SCHEMA])

    def is_full(self, key: str, source: str, prepared: PreparedClip, shard_size: int) -> bool:
        """Whether this clip is for the next shard."""
        return self.clips >= MOST_INDEXED

    def add(self, key: str, source: str, prepared: PreparedClip) -> None:
        """Append a clip that has a place."""
        assert prepared.place is not None
        self._add_row(key, source, prepared, dict(prepared.place))

    def commit(self, destination: str) -> ShardEntry:
        """Finish the shard and move its files to `destination`; errors as of `streamvid.storage.filesystem`."""
        return self._commit(destination, ())[1]


def clip_columns(clip: StoredClip, index: EncodedIndex) -> Row:
    """The columns of a row that follow from the video."""
    return {
        **{name: getattr(clip, name) for name in _CLIP_COLUMNS},
        "time_base_num": clip.time_base[0],
        "time_base_den": clip.time_base[1],
        "frames": len(clip.index.visible),
        "packets": len(clip.index),
        "random_access": int(np.count_nonzero(clip.index.flags & RANDOM_ACCESS)),
        "index_size": len(index.data),
        "index_blocks": index.blocks,
        "index_crc32c": index.crc32c,
    }


def place_columns(source: SourceVideo, root: int) -> Place:
    """The columns of a row that say where a video stays; `root` is the number of its root."""
    version = FileVersion(source.file_bytes or source.size, source.mark)
    return place_of_clip(source.part or (0, source.size), root, source.file, version, local=is_local(source.path))


def place_of_clip(
    part: tuple[int, int], root: int, file: str, version: FileVersion, *, local: bool, sha256: str = ""
) -> Place:
    """The columns of a row that say where a clip stays.

    Args:
        part: offset and size in bytes, of its MP4 or of the file that it is cut out of.
        root, file: number of the root, and the path below it.
        version: of the file.
        local: whether that is a local one.
        sha256: of the clip's MP4, if it is known.
    """
    return {
        "mp4_offset": part[0],
        "mp4_size": part[1],
        "json_offset": 0,
        "json_size": 0,
        "sha256": sha256,
        "root": root,
        "file": file,
        "file_size": version.size,
        "file_mtime_ns": int(version.mark) if local else None,
        "file_etag": None if local else version.mark,
    }


def write_parquet(rows: Sequence[Row], path: Path, fields: pa.Table, schema: pa.Schema = SCHEMA) -> None:
    """Write the Parquet file of a shard.

    Args:
        fields: the metadata columns, see `streamvid.packing.metadata.Metadata.columns`.
    """
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    for name in fields.column_names:
        table = table.append_column(fields.schema.field(name), fields[name])
    # One row group, as a shard is read as a whole: more would cost requests.
    pq.write_table(table, path, compression="zstd", row_group_size=max(1, len(rows)))


class HashingFile(io.RawIOBase):
    """A file that counts the bytes written and computes their SHA-256."""

    def __init__(self, file: BinaryIO | Upload) -> None:
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
