"""What a rank does before it reads video: 10,000,000 clips in 10,000 shards; with --quick the dataset has
a twentieth.

    python -m tools.bench.plan [--quick] [--rows] [--json FILE]

First the dataset (`tools.bench.plan_dataset`): opening it, making a loader, the first step, a clip's frame index. It
is written to a temporary folder, with the cache up to 10 GB.

Then the plan, which sees row numbers and shards alone: dealt to 1, 64 and 1,024 ranks, 8 on a node, one rank puts an
epoch into order, steps through all of it, and is put back into the middle of it by another number of ranks. Each case
runs in a process of its own, whose memory counts whole: Python, NumPy and the dataset's columns too.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from streamvid.plan.epoch import Topology
from streamvid.plan.epoch_plan import Plan, Position, TopologyRun
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import SHUFFLES, Pool, Shuffle
from streamvid.plan.world import World
from tools.bench.isolated import apart
from tools.bench.plan_dataset import peak_mib, rows_and_checks
from tools.bench.plan_rows import PER_SHARD
from tools.bench.report import Check, Report, Row, arguments, finish

CLIPS: Final = 10_000_000
BATCH: Final = 16
BLOCK_SHARDS: Final = 16
KINDS: Final = 2000
GROUP: Final = 64
RANKS: Final = (1, 64, 1024)
PER_NODE: Final = 8

SECONDS: Final = 2.0
MIB: Final = 1024.0
GROWTH: Final = 1.5
"""Bars of issue 4: of an epoch's plan for one rank of 1,024, and of that over the same for one rank alone."""


@dataclass(frozen=True)
class Case:
    """A measured plan.

    Attributes:
        shuffle, local: as in `Plan`.
        grouped: by kind.
        ranks: the world's size; a rank in its middle is measured.
        clips: of the dataset.
        rounds: how often; the median counts.
    """

    shuffle: Shuffle
    local: bool
    ranks: int
    clips: int = CLIPS
    rounds: int = 3
    grouped: bool = False

    @property
    def nodes(self) -> int:
        """Machines that the ranks are on."""
        return max(1, self.ranks // PER_NODE)


@dataclass(frozen=True)
class Cost:
    """The results, in seconds and MiB.

    Attributes:
        order: an epoch's order, until its first step could be taken.
        stepping: all steps of one rank.
        steps: how many those are.
        peak: most memory that the process had until then.
        restart: going on in the middle of an epoch that half as many, or twice as many ranks began.
        restart_peak: most memory until the end.
    """

    order: float
    stepping: float
    steps: int
    peak: float
    restart: float
    restart_peak: float


def measure(case: Case) -> Cost:
    """Time the case, and look at the memory of this process, which should be a new one."""
    plan = make_plan(case)
    orders, steppings = [], []
    steps = 0
    for epoch in range(case.rounds):
        started = time.perf_counter()
        remaining = plan.epoch(plan.start(epoch))
        orders.append(time.perf_counter() - started)
        steps = remaining.steps
        # A rank of many has few steps: done in two milliseconds, which says little about one of them.
        for _ in range(max(1, 50_000 // steps)):
            started = time.perf_counter()
            for number in range(steps):
                remaining.step(number)
            steppings.append(time.perf_counter() - started)
        del remaining
    peak = peak_mib()
    position = _halfway(case, plan)
    started = time.perf_counter()
    plan.epoch(position)
    restart = time.perf_counter() - started
    return Cost(statistics.median(orders), statistics.median(steppings), steps, peak, restart, peak_mib())


def make_plan(case: Case) -> Plan:
    """The plan of one rank."""
    items = np.arange(case.clips, dtype=np.int64)
    pool = Pool(items, (items // PER_SHARD).astype(np.int32))
    stream = SampleStream((pool,), (1,), seed=1, shuffle=case.shuffle, block_shards=BLOCK_SHARDS)
    world = World(case.ranks // 2, case.ranks, nodes=case.nodes)
    kinds = np.random.default_rng(0).integers(0, KINDS, case.clips, dtype=np.uint16)
    group = GROUP if case.grouped else 0
    return Plan(stream, BATCH, world, local=case.local, bucket_steps=group, bucket_keys=lambda: kinds)


def _halfway(case: Case, plan: Plan) -> Position:
    """In epoch 0, half of it done by another number of ranks."""
    nodes = case.nodes // 2 or 2
    before = Topology(
        nodes if case.local else 1, PER_NODE if case.local else nodes * PER_NODE, BATCH, plan.bucket_steps
    )
    start = plan.start(0)
    done = TopologyRun(before, case.clips // 2 // (before.partitions * before.share))
    return Position(start.epoch, start.first, start.size, (done,))


def table(costs: dict[Case, Cost]) -> list[Row]:
    """A row for each case."""
    return [
        {
            "shuffle": case.shuffle,
            "locality": "node" if case.local else "",
            "grouped": "yes" if case.grouped else "",
            "ranks": case.ranks,
            "order s": cost.order,
            "steps": cost.steps,
            "stepping s": cost.stepping,
            "us/step": cost.stepping / cost.steps * 1e6,
            "epoch s": cost.order + cost.stepping,
            "MiB": cost.peak,
            "restart s": cost.restart,
            "restart MiB": cost.restart_peak,
        }
        for case, cost in costs.items()
    ]


def checks(costs: dict[Case, Cost]) -> list[Check]:
    """The bars of issue 4."""
    most = max(RANKS)
    many = [(case, cost) for case, cost in costs.items() if case.ranks == most]
    alone = {replace(case, ranks=0): costs[case] for case in costs if case.ranks == 1}
    # An order that takes next to no time must not fail for a few milliseconds that the machine was busy.
    growth = [max(cost.order, 0.1) / max(alone[replace(case, ranks=0)].order, 0.1) for case, cost in many]
    # A rank alone makes 1,024 times as many steps, so that only the cost of one compares.
    per_step = [
        cost.stepping / cost.steps / (one.stepping / one.steps)
        for case, cost in many
        for one in [alone[replace(case, ranks=0)]]
    ]
    slowest = max(cost.order + cost.stepping for _, cost in many)
    memory = [cost.peak / alone[replace(case, ranks=0)].peak for case, cost in many]
    return [
        Check.at_most(f"an epoch's plan, one rank of {most:,}, slowest mode, s", slowest, SECONDS),
        Check.at_most("peak memory of its process, largest mode, MiB", max(cost.peak for _, cost in many), MIB),
        Check.at_most("the same after a restart in mid-epoch, MiB", max(cost.restart_peak for _, cost in many), MIB),
        Check.at_most(f"order, {most:,} ranks : 1 rank, worst mode", max(growth), GROWTH),
        Check.at_most(f"one step, {most:,} ranks : 1 rank, worst mode", max(per_step), GROWTH),
        Check.at_most(f"memory, {most:,} ranks : 1 rank, worst mode", max(memory), GROWTH),
    ]


def main() -> int:
    """Run the benchmark; 1 if a bar is missed."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", action="store_true", help="measure the dataset alone")
    options = parser.parse_args()
    clips = CLIPS // 20 if options.quick else CLIPS
    opened, promised = rows_and_checks(clips)
    report = Report("plan: the dataset", opened, promised, [f"{clips:,} clips in shards of {PER_SHARD}."])
    if options.rows:
        return finish(report, options)
    finish(report, Namespace(quick=options.quick, json=None))
    ranks = (min(RANKS), max(RANKS)) if options.quick else RANKS
    cases = [
        Case(shuffle, local, size, rounds=1 if options.quick else 3, grouped=grouped)
        for shuffle in SHUFFLES
        for grouped in (False, True)
        for local in (False, True)
        for size in ranks
    ]
    costs = {case: apart(measure, case)[0] for case in cases}
    notes = [
        f"{CLIPS:,} clips in {CLIPS // PER_SHARD:,} shards, batches of {BATCH}, {PER_NODE} ranks on a node.",
        "Memory is that of the whole process, with Python, NumPy and the dataset's rows and shards.",
        f"Grouped: {GROUP} steps at a time, of {KINDS:,} kinds.",
        "Restart: going on in the middle of an epoch that another number of ranks began.",
    ]
    return finish(Report("plan", table(costs), [*promised, *checks(costs)], notes, opened), options)


if __name__ == "__main__":
    sys.exit(main())
