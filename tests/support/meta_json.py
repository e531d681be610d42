"""Typed columns inferred from JSON metadata: a reference to compare the Parquet's with, and columns for tests."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from streamvid.errors import DatasetError

_INT64 = range(-(1 << 63), 1 << 63)


def meta_columns(texts: Sequence[str], keys: Sequence[str]) -> dict[str, pa.Array]:
    """Every field that any clip's metadata have, as a column. A clip without the field has null there, as has one
    whose value is null, NaN or infinite.

    A column has one type for all clips: bool, int64, float64 (also where whole numbers and others are mixed, or one
    does not fit int64), large_string, or list of one of these or of lists. Where the values are of different types,
    or objects, the column is text: strings as they are, everything else as its JSON.

    Args:
        texts: a JSON object per clip.
        keys: the clips' keys, for messages.

    Returns:
        The columns by name, each with one value per clip, in the order in which the fields first come.

    Raises:
        DatasetError: a clip's metadata are not a JSON object.
    """
    columns: dict[str, list[Any]] = {}
    decode = json.JSONDecoder(parse_constant=_nothing, parse_float=_finite).decode
    for row, text in enumerate(texts):
        if text == "{}":
            continue
        try:
            document = decode(text)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise DatasetError(f"the metadata of clip {keys[row]!r} are not a JSON object: pack the dataset again")
        for name, value in document.items():
            if value is None and name in columns:
                continue
            column = columns.get(name)
            if column is None:
                column = columns[name] = [None] * len(texts)
            column[row] = value
    try:
        return {name: _typed(column) for name, column in columns.items()}
    except UnicodeEncodeError as error:
        raise DatasetError(f"the clips' metadata hold text that is not Unicode ({error}): pack them again") from error


def _nothing(_: str) -> None:
    return None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _typed(values: list[Any]) -> pa.Array:
    kind = _kind(values)
    if kind is None:
        return pa.array([_text(value) for value in values], type=pa.large_string())
    if _holds_floats(kind):
        try:
            return pa.array([_floats(value) for value in values], type=kind)
        except OverflowError:
            return pa.array([_text(value) for value in values], type=pa.large_string())
    return pa.array(values, type=kind)


def _kind(values: Iterable[Any]) -> Any:
    """The type that all values but None have in common; None if there is none."""
    values = list(values)
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.null()
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(value is None or value in _INT64 for value in values):
        return pa.int64()
    if kinds <= {int, float}:
        return pa.float64()
    if kinds == {str}:
        return pa.large_string()
    if kinds == {list}:
        inner = _kind(itertools.chain.from_iterable(value for value in values if value is not None))
        return None if inner is None else pa.list_(inner)
    return None


def _holds_floats(kind: Any) -> bool:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_floating(kind))


def _floats(value: Any) -> Any:
    """Its numbers as floats."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_floats(one) for one in value]
    return float(value)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
