"""Datasets to look at: whose text is hostile, and of many clips."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support.clips import write
from tests.support.packed import reseal
from tools.clips import Recipe

SCRIPT = "<script>document.title = 'pwned'</script>"
HOSTILE = (
    SCRIPT,
    "</script><script>document.title = 'pwned'</script>",
    "<!--<script>",
    "<img src=x onerror=\"document.title = 'pwned'\">",
    "'\"><svg onload=document.title='pwned'>",
    "\u202egnp.exe\u2066 \x00\x07\x1b[2J\u2028",
    "a\nb" + "long " * 100_000,
    "${name} $charts &lt;b&gt; {{x}}",
    "",
    None,
)
"""One caption for each of ten clips."""
_KINDS = (("h264", "mp4"), ("vp9", "mkv"), ("mjpeg", "avi"))


def hostile_dataset(folder: Path) -> Path:
    """Ten packed clips of three codecs, whose names, columns and captions want to be executed."""
    videos = folder / "in" / SCRIPT.replace("/", "\u2044")
    videos.mkdir(parents=True)
    names = []
    for n in range(10):
        codec, container = _KINDS[n % 3]
        gop = 1 if codec == "mjpeg" else 6
        name = f"{n} <img src=x onerror=alert(1)>.{container}"
        write(
            Recipe(codec=codec, container=container, width=96, height=64, frames=6 + n, gop=gop, b_frames=0, seed=n),
            videos / name,
        )
        names.append(f"{videos.name}/{name}")
    columns: dict[str, pa.Array] = {
        "path": pa.array(names),
        "label": pa.array([f"<b>{n % 2}</b>" for n in range(10)]),
        "caption": pa.array(HOSTILE),
        SCRIPT: pa.array([f"{n % 3}</script>" for n in range(10)]),
        "score": pa.array([0.5, float("nan"), None, float("inf"), -float("inf"), -3.0, 1e300, 5e-324, 7.0, 8.0]),
        "huge": pa.array([(1 << 62) + n for n in range(10)]),
        "lists": pa.array([[[n, None], []] for n in range(10)], pa.list_(pa.list_(pa.int32()))),
        "vector": pa.array([[n / 3] * 1000 for n in range(10)], pa.list_(pa.float32())),
        "fixed": pa.array([[n, n + 0.5] for n in range(10)], pa.list_(pa.float32(), 2)),
        "flag": pa.array([None, *[n % 2 == 0 for n in range(9)]]),
        "nothing": pa.nulls(10, pa.string()),
    }
    pq.write_table(pa.table(columns), folder / "labels.parquet")
    pack(
        [folder / "in"],
        folder / "set",
        labels=folder / "labels.parquet",
        options=PackOptions("any"),
        progress=False,
    )
    return folder / "set"


def multiplied(dataset: Path, target: Path, count: int, **columns: Any) -> Path:
    """A copy of a dataset of one shard with that many clips, whose rows name the old ones' bytes again and again.

    Args:
        dataset: the original.
        target: the copy.
        count: of clips.
        columns: metadata columns in the place of the old ones, one value per clip.
    """
    shutil.copytree(dataset, target)
    (path,) = (target / "shards").glob("*.parquet")
    table = pq.read_table(path)
    rows = table.take([n % len(table) for n in range(count)])
    place = rows.schema.get_field_index("key")
    rows = rows.set_column(place, table.schema.field("key"), pa.array([f"clip{n:05}" for n in range(count)]))
    place = rows.schema.get_field_index("meta")
    rows = rows.set_column(place, table.schema.field("meta"), pa.array(["{}"] * count))
    rows = rows.drop_columns([name for name in rows.schema.names if name.startswith("meta_")])
    for name, values in columns.items():
        rows = rows.append_column(f"meta_{name}", pa.array(values))
    pq.write_table(rows, path)
    document = json.loads((target / "dataset.json").read_text())
    frames = pc.sum(rows["frames"]).as_py()
    times = zip(*(rows[name].to_pylist() for name in ("duration", "time_base_num", "time_base_den")), strict=True)
    document |= {"clips": count, "frames": frames, "seconds": sum(a * b / c for a, b, c in times)}
    document["shards"][0] |= {"clips": count, "frames": frames}
    (target / "dataset.json").write_text(json.dumps(document))
    reseal(target)
    return target
