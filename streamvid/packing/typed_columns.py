"""Metadata columns in Parquet: their types, from the schemas of the lists, and their values, from the clips' JSON.

A clip's metadata are one JSON object, the text of its `.json` file, merged from any number of lists. JSON has fewer
types than lists, so the types are passed along as a schema, the same for all shards of a pack; none is inferred again.
`verify` checks shards with the same conversion. docs/format.md specifies the types.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from streamvid.dataset.schema import FIELD_PREFIX
from streamvid.errors import InputError


def column_type(kind: pa.DataType) -> pa.DataType:
    """The Parquet type for a list's column: its own type, or text for structs, which are stored as JSON."""
    if pa.types.is_dictionary(kind):
        return column_type(kind.value_type)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_timestamp(kind):
        # Parquet has no seconds, and datetime, from which the JSON is written, no nanoseconds.
        return pa.timestamp({"s": "ms", "ns": "us"}.get(kind.unit, kind.unit), kind.tz)
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = column_type(kind.value_type)
        # A list of structs is one JSON text, not a list of JSON texts.
        return pa.string() if pa.types.is_string(inner) and not _is_text(kind.value_type) else pa.list_(inner)
    plain = (
        pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
    )
    return kind if plain else pa.string()


def unify_schemas(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of several lists, in order of first occurrence.

    A column of several lists gets a type for the values of all: the wider of two integer types, float64 for integers
    and floats, text for any other pair.
    """
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            kind = column_type(field.type)
            types[field.name] = _common(types[field.name], kind) if field.name in types else kind
    return pa.schema(list(types.items()))


def typed_columns(metas: Sequence[str], columns: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """Convert the metadata of clips from JSON to Parquet columns.

    Args:
        metas: a JSON object per clip.
        columns: names and types of the columns.
        keys: the clips' keys, for messages.

    Returns:
        One row per clip, null where it has no value; column names begin with `FIELD_PREFIX`.

    Raises:
        InputError: a value cannot be converted to the type of its column.
        ValueError: a clip has a column that is not in `columns`, or its metadata are not JSON.
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
    load_type = _load_type(field.type)
    try:
        return pa.array([_load_value(value, load_type) for value in values], type=load_type).cast(field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass
    for key, value in zip(keys, values, strict=True):
        try:
            pa.array([_load_value(value, load_type)], type=load_type).cast(field.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InputError(
                f"the column {field.name!r} holds {field.type}, but clip {key!r} has {str(value)[:100]!r} there: "
                "write all its values alike"
            ) from error
    raise AssertionError("values fit their column one by one, but not together")


def _load_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that JSON values are loaded as, before the cast: text for dates, which Arrow parses itself."""
    if pa.types.is_list(kind):
        return pa.list_(_load_type(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) and not pa.types.is_time(kind) else kind


def _load_value(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as Arrow accepts it for a column of that type."""
    if value is None:
        return None
    if pa.types.is_string(kind) and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if pa.types.is_floating(kind) and not isinstance(value, bool):
        return float(value)
    if pa.types.is_integer(kind) and (isinstance(value, bool) or value != int(value)):
        raise TypeError("no whole number")  # Arrow would truncate it
    if pa.types.is_time(kind):
        return datetime.time.fromisoformat(value)
    if pa.types.is_list(kind):
        return [_load_value(one, kind.value_type) for one in value]
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
        # Next to a signed type, an unsigned one needs the next width.
        bits = max(kind.bit_width * (1 if sign or all(s == sign for s in signed) else 2)
                   for kind, sign in zip((one, two), signed, strict=True))  # fmt: skip
        names = ("int", "uint")
        return pa.float64() if bits > 64 else getattr(pa, f"{names[not any(signed)]}{bits}")()
    if all(is_whole or pa.types.is_floating(kind) for is_whole, kind in zip(whole, (one, two), strict=True)):
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(two):
        inner = _common(one.value_type, two.value_type)
        # Numbers in lists are not converted to text one by one: such lists become one JSON text.
        texts = [pa.types.is_string(kind.value_type) or pa.types.is_null(kind.value_type) for kind in (one, two)]
        return pa.string() if pa.types.is_string(inner) and not all(texts) else pa.list_(inner)
    return pa.string()
