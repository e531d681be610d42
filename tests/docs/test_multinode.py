"""docs/multinode.md shows what the plan gives, and the benchmark of the plan measures it."""

from __future__ import annotations

from streamvid.plan.permutation import SHUFFLES
from tools import who_reads_what
from tools.bench import plan


def test_the_tables_of_the_document_are_the_plans() -> None:
    text = who_reads_what.DOCUMENT.read_text(encoding="utf-8")
    assert text == who_reads_what.fill_in(text), "run python -m tools.who_reads_what --write"
    for table in who_reads_what.TABLES:
        assert f"<!-- table: {table} -->" in text


def test_the_sentences_around_the_tables() -> None:
    """What the document says in words of the example's clips."""
    text = who_reads_what.DOCUMENT.read_text(encoding="utf-8")
    first = [who_reads_what.cell(one.epoch(one.start(0)).step(0)) for one in who_reads_what.plans()]
    assert f"Its 8 clips are done: {' '.join(first)}." in " ".join(text.split())
    ends = who_reads_what.plans(nodes=1, per_node=3)
    position = who_reads_what.after(who_reads_what.plans()[0], 1)
    last = [one.epoch(position).step(one.epoch(position).steps - 1) for one in ends]
    assert [int(step.valid.sum()) for step in last] == [0, 1, 1]
    shards = [set(), set()]  # type: list[set[str]]
    for one in who_reads_what.plans(local=True):
        epoch = one.epoch(one.start(0))
        for number in range(epoch.steps):
            shards[one.world.node] |= {who_reads_what.name(clip)[0] for clip in epoch.step(number).items.tolist()}
    assert shards[0] & shards[1] == {"C"}


def test_the_benchmark_of_the_plan() -> None:
    cases = [plan.Case(shuffle, local, ranks, clips=50_000, rounds=1)
             for shuffle in SHUFFLES for local in (False, True) for ranks in (1, 1024)]  # fmt: skip
    costs = {case: plan.measure(case) for case in cases}
    assert all(cost.order > 0 and cost.restart > 0 and cost.peak > 10 for cost in costs.values())
    assert {cost.steps for case, cost in costs.items() if case.ranks == 1} == {50_000 // plan.BATCH}
    assert len(plan.table(costs)) == len(cases)
    assert [check.bar for check in plan.checks(costs)] == [2.0, 1024, 1024, 1.5, 1.5, 1.5]
