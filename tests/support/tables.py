"""Datasets that are rows alone: nothing of them is on a disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamvid.dataset.clip_table import Categories, ClipTable
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import Manifest, ShardEntry
from streamvid.dataset.meta_columns import MetaColumns
from streamvid.dataset.string_column import BinaryColumn, StringColumn
from streamvid.packing.lists import ParsedList
from streamvid.packing.metadata import Metadata, MetadataLists
from tests.support.meta_json import meta_columns

needs_fixed_lists = pytest.mark.skipif(
    int(pa.__version__.partition(".")[0]) < 26, reason="this PyArrow reads no lists of fixed size with missing rows"
)


def dataset_of(
    metas: Sequence[dict[str, Any] | str],
    *,
    labels: Sequence[int | None] | None = None,
    classes: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    name: str = "made",
    shards: int = 1,
    **columns: Sequence[int],
) -> Dataset:
    """A dataset of one clip per object of metadata, in as many shards. Columns not given are 1, or "x"."""
    count = len(metas)
    whole: dict[str, Any] = {}
    for field, kind in ClipTable.__annotations__.items():
        if kind == "Categories":
            whole[field] = Categories(np.zeros(count, dtype=np.int32), ("x",))
        elif kind in ("Int32", "Int64", "UInt32"):
            dtype = {"Int32": np.int32, "Int64": np.int64, "UInt32": np.uint32}[kind]
            whole[field] = np.asarray(columns.get(field, np.ones(count)), dtype=dtype)
    whole["row"] = np.arange(count)
    whole["stsd_id"] = np.zeros(count, dtype=np.int32)
    whole["label"] = np.array([-1 if n is None else n for n in labels or [None] * count], dtype=np.int64)
    whole["shard"] = np.sort(np.arange(count, dtype=np.int32) % shards)
    whole |= {
        "key": string_column(keys or [f"clip{row}" for row in range(count)]),
        "source": string_column([f"{row}.mp4" for row in range(count)]),
        "meta": string_column([meta if isinstance(meta, str) else json.dumps(meta) for meta in metas]),
        "stsds": BinaryColumn(pa.array([b"\0" * 16], type=pa.large_binary())),
    }
    for field in ("rotation",):
        whole[field] = np.asarray(columns.get(field, np.zeros(count)), dtype=np.int32)
    clips = ClipTable(**whole)
    zeros = "0" * 64
    entries = tuple(
        ShardEntry(f"{s:08d}", int((clips.shard == s).sum()), 1, 1, zeros, zeros, 1, zeros, zeros)
        for s in range(shards)
    )
    manifest = Manifest(name, 1.0, tuple(classes) if classes else None, entries)
    return Dataset(f"/made/{name}", manifest, clips, meta=MetaColumns(meta_columns(clips.meta, clips.key)))


def string_column(values: Sequence[str]) -> StringColumn:
    return StringColumn(pa.array(values, type=pa.large_string()))


def metadata_of(table: pa.Table) -> Metadata:
    """The metadata of a pack with one list, of these columns."""
    lists = MetadataLists()
    lists.add(ParsedList(table, table), (), "the list")
    return lists.finish(pa.schema([]))
