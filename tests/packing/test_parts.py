"""Which part of a split each clip is in."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import InputError
from streamvid.packing.parts import digests, order_of, parts_by_column, parts_by_share


def clips(**columns: list[Any]) -> Any:
    """What of a dataset a split looks at."""
    arrays = {name: pa.array(values) for name, values in columns.items()}
    arrays["key"] = arrays["key"].cast(pa.large_string())
    return SimpleNamespace(columns=SimpleNamespace(get=arrays.__getitem__), key=lambda row: columns["key"][row])


names = st.lists(st.text("abcXYZ019_-", min_size=1, max_size=6), min_size=1, max_size=60, unique=True)
shares = st.lists(st.fractions(Fraction(1, 50), 1, max_denominator=50), min_size=1, max_size=4).map(
    lambda found: {str(n): one / max(1, sum(found)) for n, one in enumerate(found)}
)


def split(data: ClipSource, keys: list[str], wanted: dict[str, Any], **options: Any) -> dict[str, str]:
    """The part of each clip, by key; parts may be empty."""
    found: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamvid.packing.parts._checked", lambda parts: parts)
        for name, rows in parts_by_share(data, np.arange(len(keys)), wanted, **options).items():
            assert not found.keys() & {keys[row] for row in rows}, "in two parts"
            found |= {keys[row]: name for row in rows}
    return found


@given(names, shares, st.integers(0, 5), st.randoms(use_true_random=False))
def test_parts_are_a_function_of_key_and_seed(keys: list[str], wanted: dict[str, Any], seed: int, random: Any) -> None:
    """Whatever other clips there are, and in whatever order."""
    found = split(clips(key=keys), keys, wanted, seed=seed, group="key")
    if sum(wanted.values()) == 1:
        assert found.keys() == set(keys)
    others = [key for key in keys if random.random() < 0.6] + [f"{key}.new" for key in keys[:5]]
    random.shuffle(others)
    again = split(clips(key=others), others, wanted, seed=seed, group="key")
    assert {key: found.get(key) for key in others if key in keys} == {
        key: again.get(key) for key in others if key in keys
    }


@given(names, shares, st.integers(0, 5), st.data())
def test_groups_stay_together(keys: list[str], wanted: dict[str, Any], seed: int, data: st.DataObject) -> None:
    source = data.draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=len(keys), max_size=len(keys)))
    found = split(clips(key=keys, source=source), keys, wanted, seed=seed, group="source")
    alone = split(clips(key=keys), keys, wanted, seed=seed, group="key")
    for group in ("a", "b", "c"):
        assert len({found.get(key) for key, one in zip(keys, source, strict=True) if one == group}) <= 1
    assert all(found.get(key) == alone.get(key) for key, one in zip(keys, source, strict=True) if one is None)


@pytest.mark.parametrize("seed", [0, 1])
def test_shares_are_about_what_was_asked_for(seed: int) -> None:
    keys = [f"clip-{n}" for n in range(4000)]
    found = split(clips(key=keys), keys, {"a": 0.7, "b": "0.2", "c": 0.1}, seed=seed, group="key")
    counts = np.unique(list(found.values()), return_counts=True)[1]
    # Five standard deviations of a binomial distribution.
    assert np.abs(counts - [2800, 800, 400]).max() < 5 * (4000 * 0.25) ** 0.5
    more = split(clips(key=keys), keys, {"a": 0.8, "b": 0.1, "c": 0.1}, seed=seed, group="key")
    assert all(more[key] == "a" for key, name in found.items() if name == "a")
    assert found != split(clips(key=keys), keys, {"a": 0.7, "b": 0.2, "c": 0.1}, seed=seed + 9, group="key")


def test_the_digests_never_change() -> None:
    """Whoever splits a dataset again, years later, gets the same parts."""
    assert digests(["a", "é", ""], 7).tolist() == [17717539358366699869, 10347742801254285809, 18041152350270047522]


@given(names, st.integers(0, 5), st.randoms(use_true_random=False))
def test_a_shuffled_order_is_a_function_of_keys_and_seed(keys: list[str], seed: int, random: Any) -> None:
    ordered = [keys[n] for n in order_of(clips(key=keys), np.arange(len(keys)), seed)]
    assert sorted(ordered) == sorted(keys)
    random.shuffle(keys)
    assert [keys[n] for n in order_of(clips(key=keys), np.arange(len(keys)), seed)] == ordered


def test_parts_are_named_by_values() -> None:
    place = ["test", None, "../etc", "train", "../etc", "a b", "a_b", ""]
    data = clips(key=[str(n) for n in range(8)], place=place)
    parts = parts_by_column(data, np.arange(8), "place")
    assert {name: rows.tolist() for name, rows in parts.items()} == {
        "_-e3b0c442": [7],
        "_etc-f7f9121f": [2, 4],
        "a_b": [6],
        "a_b-c8687a08": [5],
        "test": [0],
        "train": [3],
    }
    numbers = parts_by_column(clips(key=["a", "b"], fold=[1, 0]), np.arange(2), "fold")
    assert {name: rows.tolist() for name, rows in numbers.items()} == {"0": [1], "1": [0]}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({}, "together at most 1"),
        ({"a": 0.9, "b": 0.2}, "together at most 1"),
        ({"a": 0}, "the share of 'a' must be a number"),
        ({"a": "many"}, "the share of 'a' must be a number"),
        ({"a": float("nan")}, "the share of 'a' must be a number"),
        ({"../a": 1}, "a part is named by letters"),
        ({"a": 1e-9, "b": 0.5}, "no clip would be in the part 'a': give it a larger share, another seed"),
    ],
)
def test_shares_that_cannot_be(wanted: dict[str, Any], said: str) -> None:
    data = clips(key=["a", "b", "c", "d", "e", "f", "g"], tags=[[1]] * 7)
    with pytest.raises(InputError, match=said):
        parts_by_share(data, np.arange(7), wanted, seed=0, group="key")
    with pytest.raises(InputError, match="a column of lists"):
        parts_by_share(data, np.arange(7), {"a": 1}, seed=0, group="tags")
