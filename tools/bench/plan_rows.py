"""A dataset of any number of rows, for measuring: Parquet files as docs/format.md has them, and tars that are holes but
for the frame indexes, if these are asked for."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.dataset.manifest import FILE_NAME, SHARD_FOLDER, Manifest, ShardEntry
from streamvid.dataset.schema import SCHEMA
from streamvid.packing.tables import write_tables
from streamvid.video.frame_index import FrameIndex
from streamvid.video.index_file import encode_index

PER_SHARD: Final = 1000
_STSD_BYTES: Final = 180
_MP4_BYTES: Final = 1 << 20
_STRIDE: Final = _MP4_BYTES + 2048
"""Bytes of a clip's files in a tar."""


def write_rows(folder: Path, clips: int, *, packets: int = 2, with_indexes: bool = False) -> Path:
    """Write a dataset.

    Every clip has a sample description of its own, as most muxers write the bit rate into it, and a caption.

    Args:
        folder: where to.
        clips: how many, a multiple of `PER_SHARD`.
        packets: of each clip.
        with_indexes: write the frame indexes, too; otherwise their files hold zeros.

    Returns:
        The folder. One that holds a dataset is left as it is.
    """
    if (folder / FILE_NAME).exists():
        return folder
    (folder / SHARD_FOLDER).mkdir(parents=True)
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        write = partial(_shard, folder, packets, with_indexes)
        entries = tuple(pool.map(write, range(clips // PER_SHARD), chunksize=50))
    manifest = Manifest("rows", clips * 10.0, tuple(f"class{n}" for n in range(400)), entries)
    manifest = replace(manifest, tables=write_tables(str(folder), manifest))
    (folder / FILE_NAME).write_bytes(manifest.to_json())
    return folder


def _shard(folder: Path, packets: int, with_indexes: bool, number: int) -> ShardEntry:
    random = np.random.default_rng(number)
    rows = np.arange(number * PER_SHARD, (number + 1) * PER_SHARD)
    start = np.arange(PER_SHARD, dtype=np.int64) * _STRIDE + 512
    places = np.arange(packets, dtype=np.int64)
    index = FrameIndex(places * 3000, 48 + places * 500, np.full(packets, 500), np.where(places % 60, 0, 1))
    stored = encode_index(index)
    words = random.integers(0, 10_000, (PER_SHARD, 8))
    captions = ["a video of " + " ".join(f"word{n}" for n in line) for line in words.tolist()]
    size_of = np.array([(320, 240), (640, 360), (1280, 720), (1920, 1080)])[random.integers(0, 4, PER_SHARD)]
    stsd = random.integers(0, 256, (PER_SHARD, _STSD_BYTES), dtype=np.uint8)
    columns: dict[str, Any] = {
        "key": [f"batch{row // 100_000:03}_video{row:09}" for row in rows.tolist()],
        "source": [f"crawl/part-{row // 100_000:05}/video{row:09}.mp4" for row in rows.tolist()],
        "label": random.integers(0, 400, PER_SHARD),
        "meta": [f'{{"caption":"{text}"}}' for text in captions],
        "codec": ["h264"] * PER_SHARD,
        "profile": ["High"] * PER_SHARD,
        "pix_fmt": ["yuv420p"] * PER_SHARD,
        "color_space": ["bt709"] * PER_SHARD,
        "color_range": ["tv"] * PER_SHARD,
        "traits": [""] * PER_SHARD,
        "width": size_of[:, 0],
        "height": size_of[:, 1],
        "rotation": np.zeros(PER_SHARD, np.int32),
        "time_base_num": np.ones(PER_SHARD, np.int32),
        "time_base_den": np.where(rows % 3, 12800, 90000),
        "duration": random.integers(300_000, 1_800_000, PER_SHARD),
        "frames": np.full(PER_SHARD, packets),
        "packets": np.full(PER_SHARD, packets),
        "random_access": np.ones(PER_SHARD),
        "mp4_offset": start,
        "mp4_size": np.full(PER_SHARD, _MP4_BYTES),
        "json_offset": start - 512 + _STRIDE - 1024,
        "json_size": np.full(PER_SHARD, 200),
        "sha256": [random.bytes(32).hex() for _ in range(PER_SHARD)],
        "stsd": [stsd[n].tobytes() for n in range(PER_SHARD)],
        "index_offset": np.arange(PER_SHARD) * len(stored.data),
        "index_size": np.full(PER_SHARD, len(stored.data)),
        "index_blocks": np.full(PER_SHARD, stored.blocks),
        "index_crc32c": np.full(PER_SHARD, stored.crc32c),
    }
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in SCHEMA]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA).append_column("meta_caption", pa.array(captions))
    table = table.append_column("meta_score", pa.array(random.random(PER_SHARD)))
    path = folder / SHARD_FOLDER / f"{number:08d}.parquet"
    pq.write_table(table, path, compression="zstd", row_group_size=PER_SHARD)
    tar_bytes = PER_SHARD * _STRIDE + 10240
    with path.with_suffix(".tar").open("wb") as tar:
        tar.truncate(tar_bytes)
    with path.with_suffix(".packets").open("wb") as packets_file:
        for _ in range(PER_SHARD if with_indexes else 0):
            packets_file.write(stored.data)
        packets_file.truncate(packets_bytes := PER_SHARD * len(stored.data))
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    none = "0" * 64
    return ShardEntry(path.stem, PER_SHARD, PER_SHARD * packets, tar_bytes, none, none, packets_bytes, none, checksum)
