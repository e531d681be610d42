"""Ranged reads of one process from a static server: how many a second, and what a stalling request costs a batch.

    python -m tools.bench.bucket_reads [--quick] [--json FILE] [--peers PYTHON]

- reads: ranges of 1,000 bytes and of 100 KiB all over 64 objects, 256 at a time, by `RangeReader`, and by bare obstore
  in the same run, if the Python of `--peers` has it (pip install obstore).
- batches: a StreamLoader of small clips from a server with 20 ms of latency, on which 1 % of requests stall for 30 s,
  and a training step of 50 ms: how long a step with its batch takes, the median and the 99th percentile; and by a loop
  that has frozen what is imported (`gc.freeze`), as docs/training.md advises.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import s3fs

import streamvid as sv
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.retry import Retry
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.clips import Recipe, write

OBJECTS, OBJECT_BYTES, AT_ONCE = 64, 4 << 20, 256
SIZES: Final = {"1,000 bytes": 1000, "100 KiB": 100 << 10}
STEP_SECONDS: Final = 0.05
LEAST_READS: Final = 2500.0
MOST_P99: Final = 1.5

OBSTORE: Final = """
import asyncio, sys, time
import numpy as np
from obstore.store import S3Store
endpoint, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = S3Store("bucket", endpoint=endpoint, access_key_id="k", secret_access_key="s", region="us-east-1",
                virtual_hosted_style_request=False, client_options={"allow_http": True})
dice = np.random.default_rng(1)
names = dice.integers(0, OBJECTS, count); starts = dice.integers(0, OBJECT_BYTES - size, count)
async def main():
    turns = asyncio.Semaphore(AT_ONCE)
    async def one(name, start):
        async with turns:
            await store.get_range_async(f"objects/{name}", start=int(start), end=int(start) + size)
    await asyncio.gather(*(one(n, s) for n, s in zip(names[:256], starts)))
    begin = time.perf_counter()
    await asyncio.gather(*(one(n, s) for n, s in zip(names, starts)))
    print(count / (time.perf_counter() - begin))
asyncio.run(main())
"""


@contextlib.contextmanager
def server(folder: Path, *options: str) -> Iterator[str]:
    """The endpoint of a server of a folder, with the environment that reaches it."""
    command = [sys.executable, "-m", "tools.bench.range_server", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        endpoint = f"http://127.0.0.1:{child.stdout.readline().strip()}"
        os.environ |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
                       "AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": os.devnull}  # fmt: skip
        s3fs.S3FileSystem.clear_instance_cache()  # which keep the endpoint of before
        try:
            yield endpoint
        finally:
            child.kill()


def reads(size: int, count: int) -> float:
    """Ranged reads a second of this process."""
    dice = np.random.default_rng(1)
    names, starts = dice.integers(0, OBJECTS, count).tolist(), dice.integers(0, OBJECT_BYTES - size, count).tolist()
    ranges = [(f"s3://bucket/objects/{n}", a, a + size) for n, a in zip(names, starts, strict=True)]
    remote, retry = RangeReader().remote, Retry(0)  # not joined: these are to be requests
    remote.read(ranges[:AT_ONCE], retry=retry)
    began = time.perf_counter()
    remote.read(ranges, retry=retry)
    return count / (time.perf_counter() - began)


def steps(cache: Path, epochs: int, *, freeze: bool) -> np.ndarray:
    """Seconds of each step with its batch, but for the first epoch's; hardly any is read from the cache."""
    taken = []
    with sv.StreamLoader("s3://bucket/set", batch_size=8, sampling=sv.Window(2), device="cpu", num_threads=1,
                         fetch="ranges", cache_dir=cache, cache_bytes=100_000) as loader:  # fmt: skip
        for epoch in range(epochs):
            if freeze and epoch == 1:
                gc.freeze()
            loader.dataset.forget_indexes()
            before = None
            for _ in loader:
                now = time.perf_counter()
                if before is not None and epoch:
                    taken.append(now - before)
                before = now
                time.sleep(STEP_SECONDS)
    gc.unfreeze()
    return np.array(taken)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--peers", metavar="PYTHON", help="which has obstore")
    options = parser.parse_args()
    count, clips, epochs = (4000, 400, 4) if options.quick else (20_000, 400, 12)
    rows: list[Row] = []
    checks = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "served/bucket/objects").mkdir(parents=True)
        for n in range(OBJECTS):
            (folder / f"served/bucket/objects/{n}").write_bytes(np.random.default_rng(n).bytes(OBJECT_BYTES))
        with server(folder / "served") as endpoint:
            for text, size in SIZES.items():
                mine = reads(size, count)
                row: dict[str, str | int | float] = {"": f"ranges of {text}", "reads/s": mine}
                bar = LEAST_READS
                if options.peers:
                    figures = f"OBJECTS, OBJECT_BYTES, AT_ONCE = {OBJECTS}, {OBJECT_BYTES}, {AT_ONCE}"
                    command = [options.peers, "-c", figures + OBSTORE, endpoint, str(size), str(count)]
                    found = subprocess.run(command, capture_output=True, text=True, check=False)
                    bare = float(found.stdout or "nan")
                    row["obstore"] = bare
                    bar = min(bar, 0.9 * bare) if found.stdout else bar
                rows.append(row)
                if size == 1000:
                    checks.append(Check.at_least("ranged reads a second", mine, bar))
        video = write(Recipe(width=64, height=64, frames=40, gop=10, b_frames=0), folder / "v.mp4")
        (folder / "videos").mkdir()
        for n in range(clips):
            os.link(video, folder / f"videos/{n:04}.mp4")
        sv.pack(folder / "videos", folder / "served/bucket/set", progress=False, options=sv.PackOptions("any"))
        for freeze, (text, stall) in itertools.product((False, True), (("none stalls", "0"), ("1 % stall", "0.01"))):
            text += ", gc.freeze" * freeze
            with server(folder / "served", "--latency", "20", "--stall", stall):
                taken = steps(folder / f"cache{stall}{freeze}", epochs, freeze=freeze)
            median, late = np.median(taken), np.percentile(taken, 99)
            about = f"median {median * 1e3:.0f} ms, P99 {late * 1e3:.0f} ms"
            notes.append(f"{len(taken)} steps of 50 ms, {text}: {about}")
            checks.append(Check.at_most(f"P99 of a batch to its median, {text}", float(late / median), MOST_P99))
    return finish(Report("bucket_reads", rows, checks, notes), options)


if __name__ == "__main__":
    sys.exit(main())
