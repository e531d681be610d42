"""How much memory packing takes for many videos: the peak of the parent process, which knows them all.

    python -m tools.bench.pack_memory [--videos 100000] [--limit-mib 1024]

The videos are few small ones under many names. Exits with 1 if the peak is above the limit.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from tools.clips import Recipe, write

_FILES = 20


def make_list(folder: Path, count: int) -> Path:
    """A list of `count` names with a label and a caption each, hard links to a few videos of one frame."""
    for n in range(_FILES):
        write(Recipe(width=64, height=64, frames=1, gop=1, b_frames=0, seed=n), folder / f"made-{n}.mp4")
    rows = ["path,label,caption"]
    for n in range(count):
        inside = folder / f"{n // 1000:04d}"
        inside.mkdir(exist_ok=True)
        os.link(folder / f"made-{n % _FILES}.mp4", inside / f"clip-{n}.mp4")
        rows.append(f"{n // 1000:04d}/clip-{n}.mp4,class {n % 50},number {n} of some clips that a person described")
    path = folder / "list.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def main() -> int:
    """Pack and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--videos", type=int, default=100_000)
    parser.add_argument("--limit-mib", type=int, default=1024)
    arguments = parser.parse_args()
    from streamvid.packing.pack import pack

    with tempfile.TemporaryDirectory(prefix="streamvid-memory-") as name:
        listed = make_list(Path(name), arguments.videos)
        before = _peak_mib()
        began = time.monotonic()
        report = pack([listed], Path(name) / "dataset", shard_size=8 << 20)
        seconds = time.monotonic() - began
    peak = _peak_mib()
    print(
        f"{report.clips:,} clips of {arguments.videos:,} videos in {seconds:.0f} s, "
        f"{len(report.manifest.shards)} shards: peak {peak:.0f} MiB, {before:.0f} MiB before; limit "
        f"{arguments.limit_mib} MiB"
    )
    return int(peak > arguments.limit_mib)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
