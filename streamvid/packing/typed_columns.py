"""The columns of lists, as every shard's Parquet has them: their types, and their values out of the clips' JSON.

Metadata travel through packing as one JSON object per clip, because that is what the clip's `.json` holds, whatever
came from which list. JSON has fewer types than the lists had, so the types travel beside it, as a schema that is the
same for all shards of a pack. docs/format.md says what comes out.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from streamvid.dataset.schema import FIELD_PREFIX
from streamvid.errors import InputError

NO_COLUMNS: Final = pa.schema([])


def column_type(kind: pa.DataType) -> pa.DataType:
    """The type in the Parquet of a list's column of that type: the same, or text where it is one of JSON's objects."""
    if pa.types.is_dictionary(kind):
        return column_type(kind.value_type)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_timestamp(kind):
        # Parquet has no whole seconds, and Python's clocks, which JSON's texts come from, no nanoseconds.
        return pa.timestamp({"s": "ms", "ns": "us"}.get(kind.unit, kind.unit), kind.tz)
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = column_type(kind.value_type)
        # Text may stand for objects here, and a list of these is one text: JSON is not put into JSON.
        return pa.string() if pa.types.is_string(inner) and not _is_text(kind.value_type) else pa.list_(inner)
    plain = (
        pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
    )
    return kind if plain else pa.string()


def united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of several lists together, in the order in which they first come.

    A column that several lists have gets a type that holds the values of all: whole numbers of different widths the
    wider one, whole numbers and others float64, everything else text.
    """
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            kind = column_type(field.type)
            types[field.name] = _common(types[field.name], kind) if field.name in types else kind
    return pa.schema(list(types.items()))


def typed_columns(metas: Sequence[str], columns: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """Clips' metadata as the Parquet has them.

    Args:
        metas: a JSON object per clip.
        columns: the columns' names and types, without the prefix.
        keys: the clips' keys, for messages.

    Returns:
        One row per clip; the names have `FIELD_PREFIX` before them. Null where a clip has no value.

    Raises:
        InputError: a value does not fit its column.
        ValueError: a clip has a column that is not among `columns`, or its metadata are no JSON object.
    """
    values: dict[str, list[Any]] = {name: [None] * len(metas) for name in columns.names}
    for row, text in enumerate(metas):
        if text == "{}":
            continue
        document: Mapping[str, Any] = json.loads(text)
        for name, value in document.items():
            if name not in values:
                raise ValueError(f"the column {name!r} of clip {keys[row]!r} is not among those of the pack")
            values[name][row] = value
    arrays = [_array(field, values[field.name], keys) for field in columns]
    return pa.table(dict(zip((FIELD_PREFIX + name for name in columns.names), arrays, strict=True)))


def _array(field: pa.Field[Any], values: list[Any], keys: Sequence[str]) -> pa.Array:
    carrier = _carrier(field.type)
    try:
        return pa.array([_fitting(value, carrier) for value in values], type=carrier).cast(field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass
    for key, value in zip(keys, values, strict=True):
        try:
            pa.array([_fitting(value, carrier)], type=carrier).cast(field.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"the column {field.name!r} holds {field.type}, but clip {key!r} has {str(value)[:100]!r} there: "
                "write all its values alike"
            ) from error
    raise AssertionError("values fit their column one by one, but not together")


def _carrier(kind: pa.DataType) -> pa.DataType:
    """What Arrow is given values of that type as: it reads dates out of JSON's texts itself, but no times of day."""
    if pa.types.is_list(kind):
        return pa.list_(_carrier(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) and not pa.types.is_time(kind) else kind


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """The value as Arrow takes it for a column of that type."""
    if value is None:
        return None
    if pa.types.is_string(kind) and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if pa.types.is_floating(kind) and not isinstance(value, bool):
        return float(value)
    if pa.types.is_integer(kind) and (isinstance(value, bool) or value != int(value)):
        raise TypeError("no whole number")  # Arrow would cut the fraction off
    if pa.types.is_time(kind):
        return datetime.time.fromisoformat(value)
    if pa.types.is_list(kind):
        return [_fitting(one, kind.value_type) for one in value]
    return value


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _common(one: pa.DataType, two: pa.DataType) -> pa.DataType:
    if one == two or pa.types.is_null(two):
        return one
    if pa.types.is_null(one):
        return two
    whole = [pa.types.is_integer(kind) for kind in (one, two)]
    if all(whole):
        signed = [pa.types.is_signed_integer(kind) for kind in (one, two)]
        # Of a signed and an unsigned one, the unsigned needs a bit more.
        bits = max(kind.bit_width * (1 if sign or all(s == sign for s in signed) else 2)
                   for kind, sign in zip((one, two), signed, strict=True))  # fmt: skip
        names = ("int", "uint")
        return pa.float64() if bits > 64 else getattr(pa, f"{names[not any(signed)]}{bits}")()
    if all(is_whole or pa.types.is_floating(kind) for is_whole, kind in zip(whole, (one, two), strict=True)):
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(two):
        inner = _common(one.value_type, two.value_type)
        # A list of texts must have been one before: numbers in lists are not turned into texts one by one.
        texts = [pa.types.is_string(kind.value_type) or pa.types.is_null(kind.value_type) for kind in (one, two)]
        return pa.string() if pa.types.is_string(inner) and not all(texts) else pa.list_(inner)
    return pa.string()
