"""The first batch of a dataset of millions of clips in a bucket, from nothing: no listing, no request for each shard.

    python -m tools.bench.first_batch [--quick] [--json FILE] [--clips N] [--latency MS] [--data DIR]

It writes rows, frame indexes and consolidated tables as docs/format.md has them, with tars that are holes, and serves
them by S3's requests, behind the proxy of `tools.bench.object_store` (50 ms, 100 MB/s a connection). A process of its
own with an empty cache opens the dataset, plans an epoch, and reads the slices of a batch of 16. Then the same client
fetches the files of rows that this one asked for, and does nothing with them: the time to fetch its bytes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from streamvid.dataset.manifest import FILE_NAME, Manifest
from tests.support.s3_server import S3Server
from tests.support.serving import Handler, free_port, serving
from tools.bench.isolated import apart
from tools.bench.plan_dataset import peak_mib
from tools.bench.plan_rows import write_rows
from tools.bench.report import Check, Report, arguments, finish
from tools.bench.store_server import compile_link, slow_link

RATE: Final = 100.0
BATCH: Final = 16


class Files(Handler):
    """Answers with the files of a folder; counts requests by file."""

    folder: Path
    asked: Counter[str]

    def answer(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/bucket/")
        path = self.folder / name
        self.asked[name] += 1
        if not path.is_file():
            return self.send(404)
        size = path.stat().st_size
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(found[1]), min(int(found[2]), size - 1)) if found else (0, size - 1)
        headers = {"Content-Length": str(last + 1 - first), "ETag": '"1"'}
        headers["Last-Modified"] = "Sun, 22 Nov 2026 00:00:00 GMT"
        if found:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        self.send(206 if found else 200, headers=headers)
        if self.command == "GET":
            with path.open("rb") as file:
                self.connection.sendfile(file, first, last + 1 - first)
        return None


def first_batch(cache: str) -> dict[str, float]:
    """Seconds to the slices of the first batch, with those to open the dataset, and the most memory, in MiB."""
    import streamvid as sv
    from streamvid.storage.shard_cache import ShardCache
    from tools.bench.store_ways import slices

    begin = time.perf_counter()
    with ShardCache(Path(cache), limit_bytes=64 << 30) as shards:
        dataset = sv.Dataset.open("s3://bucket/rows", cache=shards)
        opened = time.perf_counter() - begin
        batches = slices(dataset, shards, sv.Window(2), BATCH)
        next(batches)
        seconds = time.perf_counter() - begin
        batches.close()  # type: ignore[attr-defined]
    return {"seconds": seconds, "open": opened, "peak": peak_mib()}


def fetch_tables(names: list[str]) -> dict[str, float]:
    """Seconds to fetch the files that were read, and nothing else."""
    from streamvid.storage.byte_range import PART_BYTES
    from streamvid.storage.ranges import RemoteRanges
    from streamvid.storage.retry import Retry

    begin, total = time.perf_counter(), 0
    reader = RemoteRanges()
    for first in range(0, len(names), 32):
        some = [name.split(":") for name in names[first : first + 32]]
        parts = [
            (f"s3://bucket/rows/{name}", start, min(start + PART_BYTES, int(size)))
            for name, size in some
            for start in range(0, int(size), PART_BYTES)
        ]
        total += sum(map(len, reader.read(parts, retry=Retry())))
    return {"seconds": time.perf_counter() - begin, "bytes": total}


def main() -> int:
    """See the module."""
    parser = arguments(__doc__)
    parser.add_argument("--clips", type=int, help="a multiple of 1,000 (10,000,000)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the dataset is, or is to be kept")
    parser.add_argument("--latency", type=float, default=50.0, metavar="MS", help="of a request (50)")
    options = parser.parse_args()
    clips = options.clips or (100_000 if options.quick else 10_000_000)
    with tempfile.TemporaryDirectory(prefix="sv-first-") as name:
        folder = Path(name)
        rows = write_rows((options.data or folder) / "rows", clips, with_indexes=True)
        manifest = Manifest.from_json((rows / FILE_NAME).read_bytes(), path=str(rows))
        program = compile_link(folder)
        port, asked = free_port(), Counter[str]()
        with (
            serving(Files, folder=rows.parent, asked=asked) as server,
            slow_link(program, port, server, options.latency, RATE),
        ):
            os.environ |= S3Server(f"http://127.0.0.1:{port}").environment()
            os.environ["XDG_CACHE_HOME"] = os.fspath(folder / "home")
            (found,) = apart(first_batch, os.fspath(folder / "cache"))
            requests = {name.removeprefix("rows/"): count for name, count in asked.items()}
            files = [name for name in requests if name.endswith((".json", ".parquet"))]
            (bare,) = apart(fetch_tables, [f"{file}:{(rows / file).stat().st_size}" for file in files])
    row = {
        "clips": clips, "shards": len(manifest.shards), "tables": len(manifest.tables), "MB": bare["bytes"] / 1e6,
        "fetch s": bare["seconds"], "open s": found["open"], "first batch s": found["seconds"],
        "peak MiB": found["peak"],
        "requests": sum(requests.values()),
    }  # fmt: skip
    parts = bare["bytes"] / (8 << 20) + 2 * len(files)
    kinds: Counter[str] = Counter()
    for name, count in requests.items():
        kinds[Path(name).suffix or "list"] += count
    own = kinds["list"] + kinds[".parquet"]
    checks = [
        Check.at_most("first batch: s, to 3 x fetching its bytes + 2 s", found["seconds"], 3 * bare["seconds"] + 2),
        Check.at_most("requests for rows, to those that the tables' parts take", own, parts),
    ]  # fmt: skip
    return finish(Report("first batch", [row], checks, [json.dumps(kinds)]), options)


if __name__ == "__main__":
    sys.exit(main())
