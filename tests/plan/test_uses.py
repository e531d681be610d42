"""When clips are needed next, against a walk through the steps of all ranks of a node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamvid.plan.epoch_plan import Plan
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import Pool
from streamvid.plan.sample_id import rows_of
from streamvid.plan.uses import Uses
from streamvid.plan.world import World


@pytest.mark.parametrize("shuffle", ["full", "block", "none"])
@pytest.mark.parametrize(
    ("world", "local"), [(World(0, 1), False), (World(1, 2), False), (World(5, 8, 2), False), (World(2, 6, 3), True)]
)
@pytest.mark.parametrize("samples", [1, 2])
def test_next_uses_are_those_of_the_epoch_step_by_step(shuffle: Any, world: World, local: bool, samples: int) -> None:
    clips, batch = 61, 3
    ids = np.repeat(np.arange(clips - 5), samples)  # five clips are not selected
    pool = Pool(ids, (ids // 10).astype(np.int32))
    plan = Plan(SampleStream((pool,), (1,), 3, shuffle, 2), batch, world, local=local)
    position = plan.start(1)
    epoch, following = plan.epoch(position), plan.epoch(plan.after(position))
    per_node = world.size // world.nodes
    node = range(world.node * per_node, (world.node + 1) * per_node)
    for step in (0, 1, len(plan) - 1):
        uses = Uses(epoch, lambda: following, world, clips, set(range(step)))
        order: list[int] = []
        for number, first in ((1, step), (2, 0)):
            others = [Plan(plan.stream, batch, World(rank, world.size, world.nodes), local=local) for rank in node]
            epochs = [other.epoch(other.start(number)) for other in others]
            for n in range(first, len(plan)):
                for one in epochs:
                    planned = one.step(n)
                    order += rows_of(planned.sample_ids[planned.valid]).tolist()
        when = uses.next()
        # As many samples before, but for the order among the ranks of a step, and smaller last steps.
        slack = 2 * batch * world.size
        for row in range(clips):
            if row in order:
                assert abs(when[row] - order.index(row)) <= slack, row
            else:
                assert when[row] == np.inf
