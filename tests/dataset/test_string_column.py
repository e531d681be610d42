"""Columns of strings in Arrow memory."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from streamvid.dataset.string_column import StringColumn, hashes, repeated
from tests.support.tables import string_column


def test_columns_are_equal_if_their_strings_are() -> None:
    column = string_column(["a", "", "é"])
    assert column == string_column(["a", "", "é"])
    assert column == ["a", "", "é"]
    assert column != string_column(["a", "", "e"])
    assert column != ["a", ""]


def test_repr_shows_the_first_three() -> None:
    assert repr(string_column([])) == "StringColumn([])"
    assert repr(string_column(["a", "b", "c"])) == "StringColumn(['a', 'b', 'c'])"
    assert repr(string_column(["a", "b", "c", "d"])) == "StringColumn(['a', 'b', 'c', …])"


texts = st.lists(
    st.one_of(st.text(max_size=30), st.sampled_from(["", "\1", "\2\0", "a", "a\0", "b" * 8, "b" * 16])), max_size=20
)


@given(texts, st.integers(0, 5), st.integers(0, 20))
def test_repeated_strings_are_found_by_their_hashes(values: list[str], first: int, count: int) -> None:
    array = pa.array(values, type=pa.large_string()).slice(first, count)
    hashed = hashes(array)
    there = array.to_pylist()
    assert len(set(hashed.tolist())) == len(set(there))
    assert sorted(repeated(StringColumn(array), hashed)) == sorted(text for text in set(there) if there.count(text) > 1)
    # Hashes that are equal by chance make no strings equal.
    assert repeated(StringColumn(array), np.zeros(len(array), dtype=np.uint64)) == repeated(StringColumn(array), hashed)


def test_a_column_of_chunks_is_one_sequence() -> None:
    column = StringColumn(pa.chunked_array([["a", "b"], [], ["c"]], type=pa.large_string()))
    assert list(column) == column[:] == ["a", "b", "c"]
    assert (column[2], column[-1], column[1:]) == ("c", "c", ["b", "c"])
    assert column == string_column(["a", "b", "c"])
    assert pickle.loads(pickle.dumps(column)) == column
