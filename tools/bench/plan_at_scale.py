"""The requests of a job of thousands of ranks to a bucket, simulated from the plan, as no such bucket is at hand.

    python -m tools.bench.plan_at_scale [--quick] [--json FILE]

4,096 ranks on 512 nodes, 1,000,000,000 clips of 100 MB (100 PB) in shards of 1,000, windows whose frames take 2 MB of a
clip, in two ranges, and a frame index of 30 kB, of which a window reads 30 kB at most; 30 clips a second and rank, and
a cache of ranges of 8 TB on each node. The plan is the loader's own (`Plan`, `Epoch`, `Uses`), for one node of the 512,
of a dataset with a hundredth of the clips and caches of a hundredth: shares do not depend on it, and memory grows with
the clips.

- hits: share of a node's clips in the second epoch that are in its cache, by the plan's own future.
- requests/s, GB/s: at the bucket, of all ranks, in that epoch, if each epoch takes the same frames of a clip ("same"),
  or others every time ("random"), of which the frame index alone may be there.
- GiB: of the plan, per rank, with two epochs, as a cache of ranges that is full asks for the next one; and of the
  numbers of all rows, which a node maps. Texts are not read for the order, but for the clips that come.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from typing import Any, Final

import numpy as np

from streamvid.dataset.schema import CATEGORIES, NUMBERS
from streamvid.plan.epoch_plan import Plan
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import Pool
from streamvid.plan.uses import Uses
from streamvid.plan.world import World
from tools.bench.report import Check, Report, Row, arguments, finish

RANKS, NODES, CLIPS, PER_SHARD, BATCH = 4096, 512, 10**9, 1000, 16
CLIP_BYTES, INDEX_BYTES, CACHE_BYTES = 2_000_000, 30_000, 8 * 10**12
RANGES: Final = 2
CLIPS_A_SECOND: Final = 30


def node(clips: int, scale: int, *, local: bool, shuffle: Any) -> dict[str, float]:
    """Hits of one node in its second epoch, and seconds and memory of a rank's plan."""
    shards = np.repeat(np.arange(clips // PER_SHARD, dtype=np.int32), PER_SHARD)  # a column of the rows
    rows = np.arange(clips)  # another
    tracemalloc.start()
    pool = Pool(rows, shards)
    world = World(0, RANKS, NODES)
    began = time.perf_counter()
    plan = Plan(SampleStream((pool,), (1,), 0, shuffle, 16), BATCH, world, local=local)
    position = plan.start(0)
    epoch, following = plan.epoch(position), plan.epoch(plan.after(position))
    for one in (epoch, following):
        one.step(0)
    seconds = (time.perf_counter() - began) / 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    uses = Uses(epoch, lambda: following, world, clips)
    (first, _), (second, _) = uses.of_node(epoch), uses.of_node(following)
    room = CACHE_BYTES // scale // (CLIP_BYTES + INDEX_BYTES)
    # At the end of the first epoch, those are kept that the second needs first; from then on those that it needs and
    # that fit, as every clip comes once.
    uses.read.update(range(len(plan)))
    when = uses.next()
    kept = np.intersect1d(first, second)
    by_plan = min(room, int(np.isfinite(when[kept]).sum())) / len(second)
    return {"hits": by_plan, "seconds": seconds, "bytes": peak / clips}


def row_bytes() -> int:
    """Bytes of a clip's numbers in the mapped file."""
    kinds = [*NUMBERS.values(), *["int32"] * len((*CATEGORIES, "stsd_id", "shard")), "int64"]
    return sum(np.dtype(kind).itemsize for kind in kinds)


def main() -> int:
    options = arguments(__doc__).parse_args()
    scale = 1000 if options.quick else 100
    rows: list[Row] = []
    for local in (False, True):
        found = node(CLIPS // scale, scale, local=local, shuffle="full")
        asked = RANKS * CLIPS_A_SECOND
        missed = 1 - found["hits"]
        memory = found["bytes"] * CLIPS / 2**30
        rows.append({
            "order": "full, " + ("a node has shards of its own" if local else "any clip on any node"),
            "hits": found["hits"],
            "requests/s, same": asked * missed * (RANGES + 1), "requests/s, random": asked * (RANGES + missed),
            "GB/s, same": asked * missed * (CLIP_BYTES + INDEX_BYTES) / 1e9,
            "GB/s, random": asked * (CLIP_BYTES + INDEX_BYTES * missed) / 1e9,
            "index kB a clip": INDEX_BYTES * missed / 1e3, "plan s": found["seconds"] * scale,
            "plan GiB a rank": memory, "rows GiB a node": row_bytes() * CLIPS / 2**30,
        })  # fmt: skip
    checks = [Check.at_least("hits, shards of its own", float(rows[1]["hits"]), 0.9)]
    return finish(
        Report("plan_at_scale", rows, checks, [f"the plan of {CLIPS // scale:,} clips, times {scale}"]), options
    )


if __name__ == "__main__":
    sys.exit(main())
