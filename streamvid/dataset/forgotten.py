"""The clips of a dataset that are never delivered, as the table that dataset.json names has them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamvid.arrays import Int64
from streamvid.dataset.manifest import FILE_NAME, Forgotten, Manifest
from streamvid.errors import DatasetError
from streamvid.storage import filesystem
from streamvid.storage.parquet import read_parquet
from streamvid.storage.retry import Retry
from streamvid.storage.url import join, redact

_BYTES_PER_CLIP = 64
_MIN_BYTES = 1 << 20
"""A larger table is refused: each row has a shard's name and a number."""
_COLUMNS = {"shard": pa.string(), "row": pa.int32()}


def read_forgotten(dataset: str, manifest: Manifest, retry: Retry) -> Int64:
    """int64 [clips]: the row numbers of forgotten clips, ascending.

    Raises:
        DatasetError: the table is missing, is not the one that dataset.json names, or names clips that there are not.
    """
    if manifest.forgotten is None:
        return np.empty(0, dtype=np.int64)
    path = join(dataset, manifest.forgotten.file)
    try:
        return _rows(path, manifest, retry)
    except ValueError as error:  # ArrowInvalid is a ValueError
        raise DatasetError(f"{redact(path)} is not the table that {FILE_NAME} names: {error}; copy it again") from error


def _rows(path: str, manifest: Manifest, retry: Retry) -> Int64:
    about = manifest.forgotten
    assert about is not None
    if about.clips > manifest.clips:
        raise ValueError(f"it would hold {about.clips} of {manifest.clips} clips")
    if filesystem.size(path, retry=retry) > _MIN_BYTES + _BYTES_PER_CLIP * about.clips:
        raise ValueError("it is too large")
    data = filesystem.read_bytes(path, retry=retry)
    if hashlib.sha256(data).hexdigest() != about.sha256:
        raise ValueError("it has another SHA-256")

    def choose(schema: pa.Schema, rows: int) -> list[str]:
        if rows != about.clips or any(schema.field(name).type != kind for name, kind in _COLUMNS.items()):
            raise ValueError(f"it has not {about.clips} rows of shard (string) and row (int32)")
        return list(_COLUMNS)

    try:
        table = read_parquet(data, choose)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError("it cannot be read as Parquet") from error
    names = pa.array([entry.name for entry in manifest.shards], pa.string())
    shard = pc.fill_null(pc.index_in(table["shard"], value_set=names), -1).to_numpy()
    row = pc.fill_null(table["row"], -1).to_numpy()
    clips = np.array([entry.clips for entry in manifest.shards], dtype=np.int64)
    if (shard < 0).any() or (row < 0).any() or (row >= clips[shard]).any():
        raise ValueError("it names clips that there are not")
    return np.unique((np.cumsum(clips) - clips)[shard] + row)


def write_forgotten(clips: Sequence[tuple[str, int]], revision: int) -> tuple[Forgotten, bytes]:
    """The table of forgotten clips, as dataset.json names it, and its bytes.

    Args:
        clips: shard and row of each.
        revision: of the dataset that forgets them.
    """
    columns = zip(_COLUMNS.items(), zip(*clips, strict=True), strict=True)
    table = pa.table({name: pa.array(values, kind) for (name, kind), values in columns})
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    data = stream.getvalue()
    return Forgotten(f"forgotten-{revision}.parquet", hashlib.sha256(data).hexdigest(), len(clips)), data
