"""Distinct rows of a table by hashing, as NumPy finds them by sorting."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid import arrays
from streamvid.arrays import unique_rows

values = st.one_of(st.integers(0, 3), st.integers(0, (1 << 31) - 1))


@given(
    st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[values] * width), min_size=1, max_size=30)),
    st.sampled_from([1, 7, 1 << 20]),
)
def test_distinct_rows_are_those_of_numpy(table: list[tuple[int, ...]], block: int) -> None:
    columns = np.array(table, dtype=np.int32).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_BLOCK", block)
        first, which = unique_rows(*columns)
    _, expected_first, expected = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    assert first.tolist() == expected_first.tolist()
    assert which.tolist() == expected.ravel().tolist()


def test_no_rows_have_no_distinct_ones() -> None:
    first, which = unique_rows(np.zeros(0, np.int32), np.zeros(0, np.int32))
    assert (len(first), len(which)) == (0, 0)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20))
def test_a_single_column_may_hold_any_integers(column: list[int]) -> None:
    array = np.array([*column, *column[:5]], dtype=np.int64)
    first, which = unique_rows(array)
    assert array[first].tolist() == np.unique(array).tolist()
    assert array[first][which].tolist() == array.tolist()


@pytest.mark.parametrize("module", ["dataset.dataset", "packing.pack"])
def test_what_numpy_loads_late_is_loaded_before_threads_make_arrow_arrays(module: str) -> None:
    # Two threads that load it at once end in a RecursionError now and then, in a window of microseconds.
    program = f"import streamvid.{module}, numpy as np; print('ma' in vars(np))"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert said.stdout == "True\n"
