"""How well each order mixes a dataset that is sorted by class, and what grouping by size does to that.

    python -m tools.bench.shuffle [--quick] [--json FILE]

1,000 shards of 100 clips, 100 classes, each in ten shards one after the other: the worst that a packer can hand over.
The clips have 24 sizes, the commonest a quarter of them (Zipf's law), and 20 parameter sets of each size: 480 kinds. A
step takes 64 clips for each of 4 ranks. Of every order, means over steps: how many classes and shards a step shows,
and from how many shards 100 steps in a row read; how many kinds and sizes the batch of a rank holds; how many
decoders it must open, if the four kinds used last have theirs open; and how much more the busiest rank of a step has
to decode than the mean, also if the batches of a window were shuffled one by one and not whole steps of them. "Tied" is
where all clips of a class have one size: the worst for grouping.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.plan.bucket_key import BucketKeys
from streamvid.plan.epoch_plan import Plan
from streamvid.plan.mixture import Stream
from streamvid.plan.permutation import Pool, Shuffle
from streamvid.plan.world import World
from tools.bench.report import Report, Row, arguments, finish

SHARDS: Final = 1000
PER_SHARD: Final = 100
CLASSES: Final = 100
SIZES: Final = 24
SETS: Final = 20
RANKS: Final = 4
BATCH: Final = 64
RUN: Final = 100
BLOCK_SHARDS: Final = 16
OPEN: Final = 4
"""BucketKeys whose decoders stay open."""
ORDERS: Final[tuple[tuple[Shuffle, int], ...]] = (
    ("full", 0), ("full", 1), ("full", 16), ("full", 64), ("full", 256), ("block", 0), ("block", 64), ("none", 0),
)  # fmt: skip
"""Shuffle, and steps that are grouped together."""


@dataclass(frozen=True)
class Clips:
    """A made-up dataset.

    Attributes:
        classes: int64 [clips].
        kinds: [clips]; kind *k* has size *k* // SETS.
        pixels: int64 [clips], what a clip takes to decode.
    """

    classes: Int64
    kinds: BucketKeys
    pixels: Int64


def make_clips(*, tied: bool) -> Clips:
    """The dataset.

    Args:
        tied: all clips of a class have the same size; else sizes and classes have nothing to do with each other.
    """
    random = np.random.default_rng(0)
    count = SHARDS * PER_SHARD
    classes = np.arange(count) // (count // CLASSES)
    share = 1 / np.arange(1, SIZES + 1)
    # Which sizes are common has nothing to do with which are large.
    share = random.permutation(share / share.sum())
    sizes = random.choice(SIZES, CLASSES, p=share)[classes] if tied else random.choice(SIZES, count, p=share)
    kinds = (sizes * SETS + random.integers(0, SETS, count)).astype(np.uint16)
    # From 320x180 to 1920x1080, as the sides of videos go: in equal steps of their logarithm.
    area = np.geomspace(320 * 180, 1920 * 1080, SIZES).astype(np.int64)
    return Clips(classes, kinds, area[sizes])


def steps_of(shuffle: Shuffle, group: int, clips: Clips, steps: int) -> Int64:
    """int64 [steps, ranks, batch]: the clips of the first steps of an epoch."""
    items = np.arange(len(clips.classes), dtype=np.int64)
    stream = Stream((Pool(items, (items // PER_SHARD).astype(np.int32)),), (1,), 0, shuffle, BLOCK_SHARDS)
    ranks = []
    for rank in range(RANKS):
        plan = Plan(stream, BATCH, World(rank, RANKS), group=group, kinds=lambda: clips.kinds)
        epoch = plan.epoch(plan.start(0))
        ranks.append(np.stack([epoch.step(n).items for n in range(steps)]))
    return np.stack(ranks, axis=1)


def different(values: Int64) -> float:
    """How many different values there are along the last axis, on average."""
    ordered = np.sort(values, axis=-1)
    return float(np.mean(1 + np.count_nonzero(np.diff(ordered, axis=-1), axis=-1)))


def opened(kinds: Int64) -> float:
    """Decoders that a batch has to open on average; int [batches, batch]: kinds of the batches of a rank, in order."""
    there: OrderedDict[int, None] = OrderedDict()
    count = 0
    for batch in kinds:
        for kind in np.unique(batch).tolist():
            if kind in there:
                there.move_to_end(kind)
            else:
                count += 1
                there[kind] = None
                if len(there) > OPEN:
                    there.popitem(last=False)
    return count / len(kinds)


def busiest(work: Int64, window: int = 0) -> float:
    """What the rank with most to do has to do, over the mean of its step, on average.

    Args:
        work: int64 [steps, ranks].
        window: shuffle the batches of so many steps one by one before.
    """
    if window:
        whole = work[: len(work) // window * window].reshape(-1, window * RANKS)
        work = np.random.default_rng(0).permuted(whole, axis=1).reshape(-1, RANKS)
    return float(np.mean(work.max(axis=1) / work.mean(axis=1)))


def run(steps: int) -> Report:
    """Measure the first so many steps of an epoch."""
    free, tied = make_clips(tied=False), make_clips(tied=True)
    rows: list[Row] = []
    for shuffle, group in ORDERS:
        shown = steps_of(shuffle, group, free, steps)
        shards = shown.reshape(steps, -1) // PER_SHARD
        runs = [float(len(np.unique(shards[start : start + RUN]))) for start in range(0, steps - RUN + 1, RUN)]
        work = free.pixels[shown].sum(axis=-1)
        of_tied = steps_of(shuffle, group, tied, steps)
        rows.append(
            {
                "shuffle": shuffle,
                "grouped steps": group,
                "classes in a step": different(free.classes[shown].reshape(steps, -1)),
                "shards in a step": different(shards),
                f"shards in {RUN} steps": float(np.mean(runs)),
                "kinds in a batch": different(free.kinds[shown]),
                "sizes in a batch": different(free.kinds[shown] // SETS),
                "opened for a batch": opened(free.kinds[shown][:, 0]),
                "busiest rank": busiest(work),
                "if one by one": busiest(work, min(group, steps)),
                "tied: classes in a step": different(tied.classes[of_tied].reshape(steps, -1)),
                "tied: kinds in a batch": different(tied.kinds[of_tied]),
            }
        )
    notes = [
        f"{SHARDS} shards of {PER_SHARD} clips, {CLASSES} classes, sorted; {SIZES} sizes, {SIZES * SETS} kinds; "
        f"{RANKS} ranks x {BATCH} clips a step; 'block' shuffles {BLOCK_SHARDS} shards at a time.",
        f"opened: kinds of a batch that are not among the {OPEN} kinds used last.",
    ]
    return Report("shuffle", rows, [], notes)


def main() -> int:
    """The program."""
    options = arguments(__doc__).parse_args()
    return finish(run(RUN if options.quick else 3 * RUN), options)


if __name__ == "__main__":
    raise SystemExit(main())
