"""Columns of strings in Arrow memory."""

from __future__ import annotations

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
