"""The samples of what a loader streams, found without sorting all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamvid.errors import InputError
from streamvid.plan import inputs
from streamvid.plan.inputs import Mix, Subset, make_pools, open_source
from streamvid.plan.sample_id import rows_of
from streamvid.sampling.windows import TiledWindows, Window
from tests.support.tables import dataset_of

CLIPS = 2000


def made(name: str, *, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    return dataset_of(
        [{}] * CLIPS,
        name=name,
        labels=random.integers(0, 5, CLIPS).tolist(),
        frames=random.integers(1, 50, CLIPS).tolist(),
        duration=random.integers(100, 5000, CLIPS).tolist(),
        time_base_num=random.integers(1, 3, CLIPS).tolist(),
        time_base_den=random.choice([600, 1000, 90000], CLIPS).tolist(),
        shards=7,
    )


@pytest.mark.parametrize("pad", ["none", "edge"])
@pytest.mark.parametrize("kind", ["one", "subset", "balanced", "mix"])
def test_rows_are_those_of_the_samples_and_nothing_sorts_them(
    kind: str, pad: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At ten million clips, sorting tables of rows took 25 s on every rank."""
    one, two = made("one"), made("two", seed=1)
    data: Any = {
        "one": one,
        "subset": Subset(one, where="label != 2", weights={0: 2.5, 3: 0.5}),
        "balanced": Subset(one, weights="balanced"),
        "mix": Mix([(Subset(one, where="label == 1"), 1), (two, 3)]),
    }[kind]
    source = open_source(data, lambda _: one)
    sampling = TiledWindows(frames=4, fps=8, pad=pad) if kind != "one" else Window(frames=4, fps=8, pad=pad)
    sort, sorted_sizes = np.unique, []

    def counting(values: Any, *args: Any, **options: Any) -> Any:
        sorted_sizes.append(np.size(values))
        return sort(values, *args, **options)

    monkeypatch.setattr(np, "unique", counting)
    pools = make_pools(source, sampling)
    rows = pools.rows()
    monkeypatch.undo()
    assert max(sorted_sizes, default=0) < 100
    expected = sorted({int(row) for pool in pools.pools for row in rows_of(pool.sample_ids)})
    assert rows.tolist() == expected
    assert rows.dtype == np.int64
    assert len(rows) > 100


@pytest.mark.parametrize("sampling", [Window(4), TiledWindows(4)])
def test_counted_block_by_block_samples_are_the_same(sampling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(made("one"), lambda path: made("one"))
    at_once = make_pools(source, sampling)
    monkeypatch.setattr(inputs, "_BLOCK", 7)
    in_blocks = make_pools(source, sampling)
    assert np.array_equal(at_once.pools[0].sample_ids, in_blocks.pools[0].sample_ids)
    assert np.array_equal(at_once.pools[0].shards, in_blocks.pools[0].shards)
    assert np.array_equal(at_once.rows(), in_blocks.rows())


def test_a_whole_dataset_takes_no_memory_of_its_own() -> None:
    """All processes of a node share the numbers of its rows: at a billion clips each held 24 GB of them."""
    dataset = made("one")
    pools = make_pools(open_source(dataset, lambda path: dataset), Window(4))
    for own in (pools.pools[0].sample_ids, pools.rows()):
        assert np.shares_memory(own, dataset.clips.row)
        assert np.array_equal(own, np.arange(CLIPS))
    assert np.shares_memory(pools.pools[0].shards, dataset.clips.shard)


def test_a_mix_from_lists_as_of_a_json_file() -> None:
    assert Mix([["a", 1], ["b", 2]]) == Mix([("a", 1), ("b", 2)])  # type: ignore[list-item]


@pytest.mark.parametrize("parts", [None, "ab", ["a", "b"], 3, []])
def test_a_mix_of_something_else(parts: Any) -> None:
    with pytest.raises(InputError, match=r"Mix must be a list of \(dataset, weight\)"):
        Mix(parts)
