"""Columns of strings in Arrow memory."""

from __future__ import annotations

from streamvid.dataset.string_column import StringColumn


def test_columns_are_equal_if_their_strings_are() -> None:
    column = StringColumn.of(["a", "", "é"])
    assert column == StringColumn.of(["a", "", "é"])
    assert column == ["a", "", "é"]
    assert column != StringColumn.of(["a", "", "e"])
    assert column != ["a", ""]


def test_repr_shows_the_first_three() -> None:
    assert repr(StringColumn.of([])) == "StringColumn([])"
    assert repr(StringColumn.of(["a", "b", "c"])) == "StringColumn(['a', 'b', 'c'])"
    assert repr(StringColumn.of(["a", "b", "c", "d"])) == "StringColumn(['a', 'b', 'c', …])"
