"""Time to read byte ranges of local shards: pread (`RangeReader`) against DALI's WebDataset reader, warm and cold.

    python -m tools.bench.read_ranges [folder]

Cold: the page cache of the files is dropped before each round (posix_fadvise DONTNEED); the folder must then be on a
disk, not on tmpfs. Prints the least of the rounds in milliseconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from streamvid.storage.byte_range import ByteRange
from streamvid.storage.range_reader import RangeReader

CASES = {"4 ranges, 0.8 MB": (4, 200_000), "64 ranges, 13.7 MB": (64, 214_000), "64 ranges, 64 MB": (64, 1_000_000)}
SHARDS, SHARD_BYTES, ROUNDS = 4, 256 << 20, 7


def by_dali(ranges: Sequence[ByteRange]) -> None:
    """Read with `fn.readers.webdataset` over an index of just these ranges, as streamvid did until issue 13."""
    from nvidia.dali import fn, pipeline_def

    by_file: dict[str, list[ByteRange]] = {}
    for one in sorted(ranges, key=lambda one: (one.path, one.start)):
        by_file.setdefault(one.path, []).append(one)
    with tempfile.TemporaryDirectory() as folder:
        indexes = []
        for number, own in enumerate(by_file.values()):
            lines = [f"b {one.start // 512 * 512} {one.end - one.start // 512 * 512} range" for one in own]
            indexes.append(f"{folder}/{number}.idx")
            Path(indexes[-1]).write_text("\n".join([f"v1.2 {len(own)}", *lines]) + "\n")

        @pipeline_def(batch_size=len(ranges), num_threads=1, device_id=None, prefetch_queue_depth=1)
        def pipeline() -> object:
            return fn.readers.webdataset(
                paths=list(by_file), index_paths=indexes, ext=["b"], dont_use_mmap=True, prefetch_queue_depth=1
            )

        pipe = pipeline()
        pipe.build()
        (blocks,) = pipe.run()
        _ = [np.array(blocks.at(i)) for i in range(len(ranges))]


def by_pread(ranges: Sequence[ByteRange]) -> None:
    RangeReader().read(ranges)


def drop(paths: Sequence[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def least(read: Callable[[Sequence[ByteRange]], None], ranges: Sequence[ByteRange], cold: Sequence[Path]) -> float:
    taken = []
    for _ in range(ROUNDS):
        drop(cold)
        started = time.perf_counter()
        read(ranges)
        taken.append(time.perf_counter() - started)
    return 1000 * min(taken)


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        paths = [Path(folder) / f"{n}.tar" for n in range(SHARDS)]
        for path in paths:
            with path.open("wb") as file:
                for _ in range(SHARD_BYTES >> 20):
                    file.write(rng.bytes(1 << 20))
                os.fsync(file.fileno())
        print(f"{'':20}{'':>6}{'pread ms':>12}{'DALI ms':>12}")
        for name, (count, size) in CASES.items():
            ranges = []
            for _ in range(count):
                start = int(rng.integers(0, SHARD_BYTES - size))
                ranges.append(ByteRange(str(paths[int(rng.integers(SHARDS))]), start, start + size))
            for state, cold in (("warm", []), ("cold", paths)):
                times = [least(read, ranges, cold) for read in (by_pread, by_dali)]
                print(f"{name:20}{state:>6}{times[0]:12.1f}{times[1]:12.1f}", flush=True)


if __name__ == "__main__":
    main()
