"""docs/multinode.md shows what the plan gives."""

from __future__ import annotations

from tests.docs import multinode_tables as tables


def test_the_tables_of_the_document_are_the_plans() -> None:
    text = tables.DOCUMENT.read_text(encoding="utf-8")
    assert text == tables.fill_in(text), "run python -m tests.docs.multinode_tables --write"
    for table in tables.TABLES:
        assert f"<!-- table: {table} -->" in text


def test_the_sentences_around_the_tables() -> None:
    """What the document says in words of the example's clips."""
    text = tables.DOCUMENT.read_text(encoding="utf-8")
    first = [tables.cell(one.epoch(one.start(0)).step(0)) for one in tables.plans()]
    assert f"Its 8 clips are done: {' '.join(first)}." in " ".join(text.split())
    ends = tables.plans(nodes=1, per_node=3)
    position = tables.after(tables.plans()[0], 1)
    last = [one.epoch(position).step(one.epoch(position).steps - 1) for one in ends]
    assert [int(step.valid.sum()) for step in last] == [0, 1, 1]
    shards = [set(), set()]  # type: list[set[str]]
    for one in tables.plans(local=True):
        epoch = one.epoch(one.start(0))
        for number in range(epoch.steps):
            shards[one.world.node] |= {tables.name(clip)[0] for clip in epoch.step(number).sample_ids.tolist()}
    assert shards[0] & shards[1] == {"C"}
