"""The time of `streamvid annotate`, against pyarrow's own join and write of the same rows.

    python -m tools.bench.annotate [--quick] [--json FILE]

A dataset of 10 million clips (--quick: 200,000), and a Parquet table of grades, scores and captions with a row for
each, in random order. Both read that table from disk and write columns in the order of the dataset, in turn, each in a
process of its own.

- pyarrow: reads the keys of all shards' Parquet files, joins them with the table (`pyarrow.Table.join`), sorts by row
  and writes Parquet.
- annotate: opens the dataset, whose rows the user's cache folder has, and publishes a revision.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import streamvid as sv
from tools.bench.isolated import apart
from tools.bench.plan_rows import write_rows
from tools.bench.report import Check, Report, Row, arguments, finish

MOST: Final = 3.0
"""Seconds of annotate by those of pyarrow, issue 19."""
CLIPS: Final = 10_000_000
QUICK: Final = 200_000


def make_table(rows: Path, path: Path) -> None:
    """A table with a row for each clip, in random order."""
    keys = pads.dataset(sorted(map(os.fspath, rows.glob("shards/*.parquet")))).to_table(columns=["key"])["key"]
    dice = np.random.default_rng(0)
    order = dice.permutation(len(keys))
    words = pa.array([f"a caption of some words, number {n} of those that there are" for n in range(1000)])
    table = pa.table(
        {
            "key": keys.take(pa.array(order)),
            "grade": dice.integers(0, 1000, len(keys)),
            "score": dice.random(len(keys), dtype=np.float32),
            "said": pa.chunked_array([words.take(pa.array(dice.integers(0, 1000, len(keys))))]),
        }
    )
    pq.write_table(table, path)


def by_pyarrow(rows: Path, table: Path, target: Path) -> float:
    """Seconds of pyarrow's join and write."""
    started = time.perf_counter()
    keys = pads.dataset(sorted(map(os.fspath, rows.glob("shards/*.parquet")))).to_table(columns=["key"])
    keys = keys.append_column("row", pa.array(np.arange(len(keys))))
    joined = keys.join(pq.read_table(table), keys="key", join_type="left outer").sort_by("row")
    pq.write_table(joined.select(["grade", "score", "said"]), target)
    return time.perf_counter() - started


def by_annotate(rows: Path, table: Path, target: Path) -> float:
    """Seconds of `sv.annotate`."""
    started = time.perf_counter()
    sv.annotate(rows, table)
    return time.perf_counter() - started


WAYS: Final = {"pyarrow": by_pyarrow, "annotate": by_annotate}


def main() -> int:
    options = arguments(__doc__).parse_args()
    clips, turns = (QUICK, 3) if options.quick else (CLIPS, 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        rows = write_rows(folder / "rows", clips)
        make_table(rows, folder / "table.parquet")
        sv.Dataset.open(rows)
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(turns):
            for way, seconds in found.items():
                seconds += apart(WAYS[way], rows, folder / "table.parquet", folder / "joined.parquet")
        published = sv.Dataset.open(rows).columns.get("said")
        assert published.null_count == 0
    ratio = median(a / b for a, b in zip(found["annotate"], found["pyarrow"], strict=True))
    table: list[Row] = [
        {"way": way, "clips": clips, "seconds": median(seconds), "slowest": max(seconds)}
        for way, seconds in found.items()
    ]
    checks = [Check.at_most("annotate by pyarrow's join and write, median of pairs", ratio, MOST)]
    return finish(Report("annotate", table, checks), options)


if __name__ == "__main__":
    sys.exit(main())
