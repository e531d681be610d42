"""How well each order mixes a dataset that is sorted by class, and how many shards it has open for that.

    python -m tools.bench.shuffle [--quick] [--json FILE]

1,000 shards of 100 clips, 100 classes, each in ten shards one after the other: the worst that a packer can hand over.
Of every order: how many classes and shards a batch of 256 clips (of all ranks) shows, and from how many shards 100
batches in a row read.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from streamvid.stream.mixture import Stream
from streamvid.stream.order import SHUFFLES, Pool
from tools.bench.report import Report, Row, arguments, finish

SHARDS: Final = 1000
PER_SHARD: Final = 100
CLASSES: Final = 100
BATCH: Final = 256
RUN: Final = 100
BLOCK_SHARDS: Final = 16


def run(batches: int) -> Report:
    """Measure the first so many batches of an epoch."""
    clips = np.arange(SHARDS * PER_SHARD, dtype=np.int64)
    shards = (clips // PER_SHARD).astype(np.int32)
    rows: list[Row] = []
    for shuffle in SHUFFLES:
        order = Stream((Pool(clips, shards),), (1,), 0, shuffle, BLOCK_SHARDS).order(0)
        shown = shards[order][: batches * BATCH].reshape(-1, BATCH)
        classes = shown // (SHARDS // CLASSES)
        runs = [len(np.unique(shown[start : start + RUN])) for start in range(0, len(shown) - RUN + 1, RUN)]
        rows.append(
            {
                "shuffle": shuffle,
                "classes in a batch": float(np.mean([len(np.unique(batch)) for batch in classes])),
                "shards in a batch": float(np.mean([len(np.unique(batch)) for batch in shown])),
                f"shards in {RUN} batches": float(np.mean(runs)),
            }
        )
    notes = [
        f"{SHARDS} shards of {PER_SHARD} clips, {CLASSES} classes, sorted; batches of {BATCH}; "
        f"'block' shuffles {BLOCK_SHARDS} shards at a time."
    ]
    return Report("shuffle", rows, [], notes)


def main() -> int:
    """The program."""
    options = arguments(__doc__).parse_args()
    return finish(run(RUN if options.quick else 3 * RUN), options)


if __name__ == "__main__":
    raise SystemExit(main())
