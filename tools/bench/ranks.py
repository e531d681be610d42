"""How ranks of one node hinder each other: a process for each GPU, all of which decode clips of many sizes at once.

    python -m tools.bench.ranks [--quick] [--clips DIR] [--json FILE]
    python -m tools.bench.make_clips DIR                        # before, on a machine without a GPU

Pictures decoded per second by each rank, on its own share of the cores, as `tools.bench.decode` measures them: batches
of 64 windows of 16 frames of H.264, of one size, 8 and 132 in all ranks, and of 132 in each rank alone.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Final

from streamvid.text import format_count
from tools.bench.decode import OF_ONE_SIZE
from tools.bench.decode_cases import SIZES, Case, make_clips, size_paths
from tools.bench.report import Check, Report, Row, arguments, finish

CASE: Final = Case(f"H.264, {SIZES} sizes", 30, 1, 64)
FEW: Final = 8
_WAIT: Final = 120.0
"""Seconds in which every rank opens its decoder, and ends each part."""

Rates = dict[str, dict[int, float]]
"""Pictures per second, by part and rank."""


def decode_as_rank(
    rank: int, ranks: int, clips: Path, seconds: float, barrier: Barrier, rates: Queue[tuple[str, int, float]]
) -> None:
    """Decode as one rank, on the GPU of its number, together with the others.

    Args:
        rank, ranks: its number, and how many there are.
        clips: folder of the clips.
        seconds: how long each part takes.
        barrier: of all ranks.
        rates: for the parts' figures.
    """
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // ranks)
    os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])
    from streamvid.decode.gpu import GpuDecoder
    from streamvid.video.remux import store_clip
    from tools.bench.decode_rows import random_batches, rate, warm_up

    with tempfile.TemporaryDirectory() as work:
        stored = [store_clip(path, Path(tempfile.mkdtemp(dir=work))) for path in size_paths(CASE, clips)]
        decoder = GpuDecoder(device_id=rank, threads=share, max_batch=CASE.batch)
        batches = {count: random_batches(stored[:: SIZES // count][:count], CASE) for count in (1, FEW, SIZES)}
        warm_up(decoder, batches[SIZES])
        parts = [(_name(count), count, True) for count in batches]
        parts += [(f"{_name(SIZES)}, rank {one} alone", SIZES, one == rank) for one in range(ranks)]
        for name, count, takes_part in parts:
            barrier.wait(_WAIT)
            found, began = [], time.monotonic()
            while takes_part and time.monotonic() < began + seconds:
                found.append(rate(decoder, batches[count]))
            if found:
                rates.put((name, rank, statistics.median(found)))
        decoder.close()


def measure(ranks: int, clips: Path, seconds: float) -> Rates:
    """The rates of all ranks, each in a process of its own. Arguments as in `decode_as_rank`.

    Raises:
        RuntimeError: a rank failed.
    """
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(ranks), context.Queue()
    processes = [
        context.Process(target=decode_as_rank, args=(rank, ranks, clips, seconds, barrier, queue), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    rates: Rates = {}
    for _ in range(4 * ranks):  # three parts of all ranks, and each alone
        while queue.empty():
            if any(process.exitcode for process in processes):
                raise RuntimeError("a rank failed: its error is above")
            time.sleep(0.1)
        name, rank, value = queue.get()
        rates.setdefault(name, {})[rank] = value
    for process in processes:
        process.join(_WAIT)
    return rates


def report(rates: Rates) -> Report:
    """The table, and the bar for the slowest rank: `OF_ONE_SIZE` of its own speed with one size."""
    alone = {rank: value for name, one in rates.items() if "alone" in name for rank, value in one.items()}
    parts = {name: one for name, one in rates.items() if "alone" not in name} | {f"{_name(SIZES)}, each alone": alone}
    one_size = parts[_name(1)]
    rows: list[Row] = []
    checks = []
    for name, values in parts.items():
        slowest = min(value / one_size[rank] for rank, value in values.items())
        rows.append({"clips": name, **{f"rank {rank}": values[rank] for rank in sorted(values)}, "slowest": slowest})
        if values is not one_size:
            checks.append(Check.at_least(f"of one size's speed, the slowest rank, {name}", slowest, OF_ONE_SIZE))
    return Report("ranks", rows, checks, ["Pictures per second; slowest: the least share of its speed with one size."])


def _name(sizes: int) -> str:
    return format_count(sizes, "size")


def main() -> int:
    """The program."""
    import torch

    parser = arguments(__doc__)
    parser.add_argument("--clips", type=Path, metavar="DIR", help="clips that tools.bench.make_clips has made there")
    options = parser.parse_args()
    if torch.cuda.device_count() < 2:
        print("tools.bench.ranks needs two NVIDIA GPUs or more, and torch for CUDA", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        clips = options.clips or Path(name)
        make_clips([CASE], clips)
        return finish(report(measure(torch.cuda.device_count(), clips, 2 if options.quick else 5)), options)


if __name__ == "__main__":
    raise SystemExit(main())
