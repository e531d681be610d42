"""Converts the values of lists to Parquet types, and to JSON. docs/format.md specifies both."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.errors import InputError
from streamvid.storage.parquet import MAX_LISTS, without_view


def column_type(kind: pa.DataType, lists: int = MAX_LISTS) -> pa.DataType:
    """The Parquet type for a list's column: its own type, or text for structs, and for more than `lists` lists in each
    other, which are stored as JSON."""
    if pa.types.is_dictionary(kind):
        return column_type(kind.value_type, lists)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_timestamp(kind):
        return pa.timestamp({"s": "ms", "ns": "us"}.get(kind.unit, kind.unit), kind.tz)  # Parquet has no seconds
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if not lists:
            return pa.string()
        inner = column_type(kind.value_type, lists - 1)
        # A list of structs is one JSON text, not a list of JSON texts.
        return pa.string() if pa.types.is_string(inner) and not is_text(kind.value_type) else pa.list_(inner)
    plain = (
        pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
    )
    return kind if plain else pa.string()


def unify_schemas(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of several lists, in order of first occurrence.

    A column of several lists gets a common type: the wider of two integer types, float64 for integers and floats, text
    for any other pair.
    """
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            kind = column_type(field.type)
            types[field.name] = _common(types[field.name], kind) if field.name in types else kind
    return pa.schema(list(types.items()))


def to_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of a list's column in its Parquet type, or in one of `unify_schemas`.

    Values without a Parquet type become text, as in the JSON.

    Args:
        kind: a type from `column_type` or `large_type`.

    Raises:
        InputError: as in `json_values`.
    """
    if pa.types.is_dictionary(column.type):
        return to_type(column.dictionary_decode(), kind)
    if is_text(kind) and not is_text(column.type):
        values = json_values(column)
        texts = [value if value is None or isinstance(value, str) else dump_json(value) for value in values]
        return pa.array(texts, type=kind)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and not pa.types.is_null(column.type):
        # Arrow's cast fails for some slices of nested lists.
        lists, offset = (pa.ListArray, pa.int32()) if pa.types.is_list(kind) else (pa.LargeListArray, pa.int64())
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), offset)
        return lists.from_arrays(offsets, to_type(pc.list_flatten(column), kind.value_type), mask=column.is_null())
    return column.cast(kind, safe=False)


def large_type(kind: pa.DataType) -> pa.DataType:
    """The type with offsets of 64 bits, for columns of whole lists, which may have more than 2 GiB of text or 2^31
    numbers in lists."""
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_list(kind.value_type) if pa.types.is_list(kind) else kind


def column_of_values(values: Sequence[Any]) -> pa.Array:
    """An Arrow column of untrusted values from JSON files, as `utf8_json` gives them: numbers, texts, lists of these;
    null for None. If the types of the values disagree, all become text."""
    scalars = {type(value) for value in values} - {type(None)}
    if scalars <= {int, float} or len(scalars) == 1:
        try:
            column = pa.array([float(v) if float in scalars and type(v) is int else v for v in values])
            if column_type(column.type) == column.type and column.type != pa.uint64():
                return column
        except (pa.ArrowException, OverflowError):
            pass
    return pa.array([v if v is None or isinstance(v, str) else dump_json(json_value(v)) for v in values], pa.string())


def utf8_json(value: Any) -> Any:
    """A JSON value with lone surrogates in its names and texts, which JSON can have but UTF-8 cannot encode, replaced
    by escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [utf8_json(item) for item in value]
    return {utf8_json(name): utf8_json(item) for name, item in value.items()} if isinstance(value, dict) else value


def usable_type(kind: pa.DataType) -> pa.DataType:
    """A type that Python and Arrow's functions support: without nanoseconds, which datetime lacks, views, and numbers
    of 16 bits, which old PyArrow gives as NumPy's."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz) if kind.unit == "ns" else kind
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(usable_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(usable_type(kind.key_type), usable_type(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(usable_type(kind.value_type), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(usable_type(kind.value_type))
    return pa.list_(usable_type(kind.value_type)) if pa.types.is_list(kind) else without_view(kind)


def json_values(column: pa.Array) -> list[Any]:
    """The values of a list's column as in `json_value`, None for null.

    Raises:
        InputError: JSON has no form for them. The message names the type and the remedy, as the end of a sentence.
    """
    kind = column.type
    try:
        if usable_type(kind) != kind:
            column = column.cast(usable_type(kind), safe=False)
        return [json_value(value) for value in column.to_pylist()]
    except (TypeError, pa.ArrowNotImplementedError):
        raise InputError(f"{kind}, which JSON has no form for: turn it into text or numbers, or leave it out") from None
    except (ValueError, OverflowError, LookupError):
        raise InputError(
            f"{kind} outside of the years 1 to 9999, or in an unknown time zone: turn it into text, or leave it out"
        ) from None


def json_value(value: Any) -> Any:
    """A value of a list for JSON. Numbers that JSON lacks become the texts "NaN", "Infinity" and "-Infinity".

    Raises:
        TypeError: JSON has no form for the type.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, dict):
        return {key: json_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [json_value(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} values")


def dump_json(value: Any) -> str:
    """The JSON text that shards store: without spaces, non-ASCII characters unescaped, keys in the given order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is a string type."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
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
        # A list becomes one JSON text, instead of a list of numbers as texts.
        texts = [pa.types.is_string(kind.value_type) or pa.types.is_null(kind.value_type) for kind in (one, two)]
        return pa.string() if pa.types.is_string(inner) and not all(texts) else pa.list_(inner)
    return pa.string()
