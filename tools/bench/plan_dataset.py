"""The work of a rank before its first batch, on a dataset of millions of rows, and pyarrow reading the same files."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamvid.dataset import clip_source
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.schema import FIELD_PREFIX, SCHEMA
from streamvid.sampling.windows import Window
from streamvid.transform.spec import Transform
from tools.bench.isolated import apart
from tools.bench.plan_rows import PER_SHARD, write_rows
from tools.bench.report import Check, Row
from tools.processes import peak_bytes

RANKS: Final = 4
"""Ranks that open the dataset at the same time."""
PACKETS: Final = (30, 300, 1000)
_INDEX_CLIPS: Final = 8000
_KEYS: Final = ("key",)
_ROUNDS: Final = 3

RATIO: Final = 2.0
MIB: Final = 3072.0
INDEX_MS: Final = 0.3
"""Bars of issue 14."""


@dataclass(frozen=True)
class Measured:
    """Seconds by task, and the peak of memory of the process, in MiB."""

    seconds: dict[str, float] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)


def rows_and_checks(clips: int) -> tuple[list[Row], list[Check]]:
    """Write a dataset of so many clips, and measure."""
    with tempfile.TemporaryDirectory(prefix="streamvid-plan-") as folder:
        rows = write_rows(Path(folder) / "rows", clips)
        cold, pyarrow_all, pyarrow_keys, together, warm = [], [], [], [], []
        for number in range(_ROUNDS if clips <= 1_000_000 else 1):
            # One after the other in every round: other work on the machine slows all of them.
            pyarrow_keys.append(apart(_read_columns, rows, _KEYS)[0])
            pyarrow_all.append(apart(_read_columns, rows, None)[0])
            cold.append(apart(_open, rows, Path(folder) / f"cache{number}")[0])
            warm.append(apart(_make_loader, rows, Path(folder) / f"cache{number}")[0])
            ranks = apart(_open, rows, Path(folder) / f"together{number}", processes=RANKS)
            together.append(max(ranks, key=lambda rank: rank.seconds["open"]))
        parts = [
            ("pyarrow reads the keys", pyarrow_keys, "read"),
            ("pyarrow reads all columns that are kept", pyarrow_all, "read"),
            ("cold open", cold, "open"),
            (f"cold open, {RANKS} ranks at once, the slowest", together, "open"),
            ("warm open", warm, "open"),
            ("StreamLoader", warm, "loader"),
            ("plan of the first epoch, first step", warm, "plan"),
        ]
        seconds = {name: statistics.median(one.seconds[what] for one in found) for name, found, what in parts}
        peaks = {name: max(one.peak[what] for one in found) for name, found, what in parts}
        table: list[Row] = [{"": name, "seconds": seconds[name], "MiB": peaks[name]} for name in seconds]
        keys, everything, one, many, _, loader, _ = seconds.values()
        checks = [
            Check.at_most("StreamLoader : pyarrow reading the keys", loader / keys, RATIO),
            Check.at_most("cold open : pyarrow reading all columns that are kept", one / everything, RATIO),
            Check.at_most(f"cold open of {RANKS} ranks at once : of one", many / one, RATIO),
            Check.at_most("peak memory of a cold open, MiB", peaks["cold open"], MIB),
        ]
        for packets in PACKETS:
            indexed = write_rows(Path(folder) / f"packets{packets}", _INDEX_CLIPS, packets=packets, with_indexes=True)
            measured = apart(_read_indexes, indexed)[0]
            label = f"index of a clip, {packets} packets"
            table.append({"": label, "seconds": measured.seconds["index"], "MiB": measured.peak["index"]})
            milliseconds = measured.seconds["index"] * 1e3
            checks.append(Check.at_most(f"a clip's index, {packets} packets, ms", milliseconds, INDEX_MS))
    return table, checks


@contextmanager
def _timed(measured: Measured, what: str) -> Iterator[None]:
    # The high-water mark of memory begins anew (proc(5), clear_refs).
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    started = time.perf_counter()
    yield
    measured.seconds[what] = time.perf_counter() - started
    measured.peak[what] = peak_mib()


def peak_mib() -> float:
    """Most memory that this process has had."""
    return peak_bytes(os.getpid()) / 2**20


def _read_columns(rows: Path, columns: Sequence[str] | None) -> Measured:
    """Let pyarrow read columns of all Parquet files, all that `Dataset.open` keeps if none are given."""
    import pyarrow.dataset

    measured = Measured()
    files = sorted(map(os.fspath, rows.glob("shards/*.parquet")))
    with _timed(measured, "read"):
        source = pyarrow.dataset.dataset(files)
        kept = {*SCHEMA.names} - {"sha256"}
        mine = [name for name in source.schema.names if name in kept or name.startswith(FIELD_PREFIX)]
        for _ in source.to_batches(columns=list(columns or mine)):  # none is kept: 10 million rows take 10 GB
            pass
    return measured


def _open(rows: Path, cache: Path) -> Measured:
    os.environ["XDG_CACHE_HOME"] = os.fspath(cache)
    measured = Measured()
    with _timed(measured, "open"):
        Dataset.open(rows)
    return measured


def _make_loader(rows: Path, cache: Path) -> Measured:
    """Open the dataset warm, make a loader, and plan its first epoch; without the time to import PyTorch."""
    from streamvid.loader.stream_loader import StreamLoader

    os.environ["XDG_CACHE_HOME"] = os.fspath(cache)
    options: dict[str, Any] = {"batch_size": 16, "sampling": Window(16, fps=8), "device": "cpu", "num_threads": 1}
    options |= {"transform": Transform(resize=(224, 224)), "rank": 3, "world_size": 8}
    measured = Measured()
    with _timed(measured, "open"):
        dataset = Dataset.open(rows)
    StreamLoader(Dataset.open(write_rows(cache / "small", PER_SHARD)), **options).close()  # imports PyTorch
    with _timed(measured, "loader"):
        loader = StreamLoader(dataset, **options)
    with _timed(measured, "plan"):
        loader._schedule.start(0).epoch().step(0)
    return measured


def _read_indexes(rows: Path) -> Measured:
    """Read the frame indexes of clips one by one, in random order, none of them kept."""
    clip_source.INDEX_BYTES = 1  # type: ignore[attr-defined]
    dataset, measured = Dataset.open(rows), Measured()
    order = np.random.default_rng(0).permutation(len(dataset))[:4000].tolist()
    with _timed(measured, "index"):
        for row in order:
            dataset.index(row)
    measured.seconds["index"] /= len(order)
    return measured
