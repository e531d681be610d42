"""The tables of docs/multinode.md, from the plan itself.

    python -m tests.docs.multinode_tables            check that the document shows what the plan gives
    python -m tests.docs.multinode_tables --write    put the plan's tables into the document

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. A clip is written as its shard's letter and its number
in it: C2 is the second clip of shard C. Brackets are around clips that only fill a batch.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.plan.epoch import LastBatch, Step
from streamvid.plan.epoch_plan import Plan, Position
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import Pool, Shuffle
from streamvid.plan.world import World

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "multinode.md"
CLIPS_IN_SHARD: Final = (3, 3, 3, 3, 3, 3, 2, 2)
BATCH: Final = 2
_TABLE: Final = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def plans(
    shuffle: Shuffle = "full",
    *,
    nodes: int = 2,
    per_node: int = 2,
    local: bool = False,
    last_batch: LastBatch = "partial",
    clips: int = sum(CLIPS_IN_SHARD),
) -> list[Plan]:
    """The plan of every rank of the example: 8 shards of 22 clips, or the first so many of them."""
    shards = np.repeat(np.arange(len(CLIPS_IN_SHARD), dtype=np.int32), CLIPS_IN_SHARD)[:clips]
    pool = Pool(np.arange(clips, dtype=np.int64), shards)
    stream = SampleStream((pool,), (1,), seed=0, shuffle=shuffle, block_shards=2)
    worlds = [World(rank, nodes * per_node, nodes=nodes) for rank in range(nodes * per_node)]
    return [Plan(stream, BATCH, world, last_batch=last_batch, local=local) for world in worlds]


def name(clip: int) -> str:
    """Letter of the shard, number in it."""
    ends = np.cumsum(CLIPS_IN_SHARD)
    shard = int(np.searchsorted(ends, clip, side="right"))
    return f"{'ABCDEFGH'[shard]}{clip - int(ends[shard]) + CLIPS_IN_SHARD[shard] + 1}"


def after(plan: Plan, steps: int, position: Position | None = None) -> Position:
    """Where a run stands that has made some more steps of epoch 0."""
    position = position or plan.start(0)
    for _ in range(steps):
        position = position.advanced(plan.topology)
    return position


def epoch_table(ranks: list[Plan], position: Position | None = None, *, only_last: bool = False) -> str:
    """What is left of epoch 0: a line for each step, a column for each rank, and what each node reads."""
    position = position or ranks[0].start(0)
    epochs = [plan.epoch(position) for plan in ranks]
    done = sum(run.steps for run in position.history)
    heads = [f"node {plan.world.node}, rank {plan.world.rank}" for plan in ranks]
    lines = [_line(["step", *heads]), _line(["---"] * (1 + len(heads)))]
    read: list[set[str]] = [set() for _ in range(ranks[0].world.nodes)]
    steps = range(epochs[0].done, epochs[0].steps)
    for count, number in enumerate(steps):
        row = [epoch.step(number) for epoch in epochs]
        for plan, step in zip(ranks, row, strict=True):
            read[plan.world.node] |= {name(clip)[0] for clip in step.sample_ids.tolist()}
        if not only_last or number == steps[-1]:
            lines.append(_line([str(done + count), *(cell(step) for step in row)]))
    if not only_last:
        lines.append("")
        lines += [
            f"Node {node} reads {len(shards)} shards: {' '.join(sorted(shards))}."
            + ("\\" if node < len(read) - 1 else "")
            for node, shards in enumerate(read)
        ]
    return "\n".join(lines) + "\n"


def cell(step: Step) -> str:
    """A batch."""
    pairs = zip(step.sample_ids.tolist(), step.valid.tolist(), strict=True)
    return " ".join(name(clip) if valid else f"({name(clip)})" for clip, valid in pairs)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def ends_table() -> str:
    """The last step under each policy, with 22 clips, and with 17 where a single one is left."""
    policies: tuple[LastBatch, ...] = ("partial", "fill", "drop")
    lines = [_line(["clips", "`last_batch`", "steps", *(f"rank {rank}" for rank in range(4))]), _line(["---"] * 7)]
    for clips in (22, 17):
        for policy in policies:
            ranks = plans(last_batch=policy, clips=clips)
            epochs = [plan.epoch(plan.start(0)) for plan in ranks]
            cells = [cell(epoch.step(epoch.steps - 1)) for epoch in epochs]
            lines.append(_line([str(clips), f'`"{policy}"`', str(epochs[0].steps), *cells]))
    return "\n".join(lines) + "\n"


def restart_table(*, local: bool) -> str:
    """2 nodes of 2 ranks make one step; 1 node of 3 ranks makes the rest."""
    ranks = plans(nodes=1, per_node=3, local=local)
    return epoch_table(ranks, after(plans(local=local)[0], 1))


TABLES: Final[dict[str, Callable[[], str]]] = {
    "full": lambda: epoch_table(plans("full")),
    "block": lambda: epoch_table(plans("block")),
    "none": lambda: epoch_table(plans("none")),
    "node": lambda: epoch_table(plans("full", local=True)),
    "node block": lambda: epoch_table(plans("block", local=True)),
    "restart": lambda: restart_table(local=False),
    "restart node": lambda: restart_table(local=True),
    "ends": ends_table,
}


def fill_in(text: str) -> str:
    """The document with the plan's tables.

    Raises:
        KeyError: it names a table that there is not.
    """
    return _TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def main() -> int:
    """Check, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into the document")
    options = parser.parse_args()
    text = DOCUMENT.read_text(encoding="utf-8")
    right = fill_in(text)
    if options.write:
        DOCUMENT.write_text(right, encoding="utf-8")
    elif text != right:
        print(f"{DOCUMENT} does not show what the plan gives: run python -m tests.docs.multinode_tables --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
