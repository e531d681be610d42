"""Selects clips by a condition or by keys, and weighs them. docs/selecting.md has examples."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from streamvid.arrays import Bool, Float64, Int64, unique_rows
from streamvid.checks import did_you_mean, listed
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.columns import Columns, check_labels, is_number
from streamvid.dataset.where import evaluate
from streamvid.errors import InputError, StreamvidError
from streamvid.storage import filesystem
from streamvid.storage.parquet import read_parquet
from streamvid.storage.table_bounds import check_csv, check_json_lines, read_csv, read_json_lines
from streamvid.storage.url import has_extension, redact
from streamvid.text import first_line

Weights = Mapping[Any, float] | str | npt.ArrayLike | Callable[[ClipSource, Int64], npt.ArrayLike]

BALANCED: Final = "balanced"
MAX_WEIGHT: Final = 2000
"""The largest weight. Sample ids count repeats up to `streamvid.plan.sample_id.MAX_REPEATS`, which is a little more."""
_NO_FIELD = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ")


def select_rows(
    dataset: ClipSource,
    *,
    where: str | pc.Expression | None = None,
    keys: Sequence[str] | str | os.PathLike[str] | None = None,
) -> Int64:
    """The clips that match a condition and whose keys are in a list; without either, all clips.

    Args:
        dataset: one dataset or several concatenated.
        where: a condition on columns: text such as ``'label in (0, 3) and seconds >= 2.5'``, in which a comparison
            with a missing value is false; or a pyarrow.compute expression, with Arrow's rules for null.
        keys: a list of keys, or the path or URL of a file of them: .csv, .jsonl or .parquet with a column `key`,
            else text with one key per line. Order and repetitions do not matter.

    Returns:
        int64 [selected], row numbers, ascending; possibly empty.

    Raises:
        InputError: the condition cannot be parsed or names a column that does not exist; a key is not in the dataset;
            the file cannot be read. Quotes the part or the key.
        DatasetError: the condition needs a column whose types contradict each other between shards or datasets.
    """
    chosen = np.ones(len(dataset), dtype=bool)
    if keys is not None:
        chosen &= _with_keys(dataset, keys)
    if where is not None:
        chosen &= matches(dataset, where)
    return np.flatnonzero(chosen).astype(np.int64)


def delivered(
    dataset: ClipSource,
    *,
    where: str | pc.Expression | None = None,
    keys: Sequence[str] | str | os.PathLike[str] | None = None,
) -> Int64:
    """int64 [clips]: the rows of clips that `select_rows` selects, without forgotten ones, ascending.

    Raises:
        InputError: as in `select_rows`, or a key of a forgotten clip is named.
    """
    rows = select_rows(dataset, where=where, keys=keys)
    gone = np.isin(rows, dataset.forgotten)
    if keys is not None and gone.any():
        key = dataset.key(int(rows[gone][0]))
        raise InputError(f"clip {key!r} is forgotten: the dataset does not deliver it any more; leave its key out")
    return rows[~gone]


def matches(dataset: ClipSource, where: str | pc.Expression) -> Bool:
    """bool [clips]: which clips match a condition; see `select_rows`."""
    if isinstance(where, str):
        return evaluate(where, dataset.columns)
    if isinstance(where, pc.Expression):
        return _by_expression(where, dataset.columns)
    raise InputError(f"where must be text or a pyarrow.compute expression, it is {where!r}")


def repeats(dataset: ClipSource, rows: Int64, weights: Weights) -> Float64:
    """Expected number of times that each clip comes in an epoch.

    Args:
        dataset: one dataset or several concatenated.
        rows: int64 [n], the selected clips.
        weights: one of

            - a mapping from class names or label numbers to weights, 1 for labels not named; the key None is for clips
              without a label;
            - "balanced": 1 / (clips with the label), scaled so that the mean over `rows` is 1;
            - the name of a column of numbers;
            - an array with one number per clip **of the dataset**, [len(dataset)];
            - a function of dataset and rows that returns one number per row, [n].

    Returns:
        float64 [n], each from 0 to `MAX_WEIGHT`, at least one above 0 unless there are no rows.

    Raises:
        InputError: a weight is missing, negative, not finite or too large; a label, class or column is not there;
            the shape is wrong; all weights are 0.
        DatasetError: the column's types contradict each other between shards or datasets.
    """
    if isinstance(weights, str):
        result = _balanced(dataset, rows) if weights == BALANCED else _column(dataset, rows, weights)
    elif isinstance(weights, Mapping):
        result = _by_label(dataset, rows, weights)
    elif callable(weights):
        result = _numbers(weights(dataset, rows), len(rows), "the function of weights gave", "rows")
    else:
        result = _numbers(weights, len(dataset), "weights have", "clips of the dataset")[rows]
    wrong = ~((result >= 0) & (result <= MAX_WEIGHT))
    if wrong.any():
        at = int(np.argmax(wrong))
        said = "has no weight" if math.isnan(result[at]) else f"has weight {result[at]:g}"
        raise InputError(
            f"clip {dataset.key(int(rows[at]))!r} {said}: weights must be numbers from 0 to {MAX_WEIGHT}; "
            "correct it, or leave the clip out with a filter"
        )
    if len(rows) and not result.any():
        raise InputError(f"the weights of all {len(rows)} clips are 0: give some clip a weight above 0")
    return result


def given_keys(keys: Sequence[str] | str | os.PathLike[str]) -> list[str]:
    """The keys of the option `keys`: a list, also Arrow's, or those in a file; errors as in `select_rows`."""
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        keys = keys.to_pylist()
    wanted = _read_keys(os.fspath(keys)) if isinstance(keys, str | os.PathLike) else listed(keys, "keys", "texts")
    for key in wanted:
        if not isinstance(key, str):
            raise InputError(f"keys must be texts, one of them is {key!r}: write it in quotes")
    return wanted


def _with_keys(dataset: ClipSource, keys: Sequence[str] | str | os.PathLike[str]) -> Bool:
    shown = f" of {redact(os.fspath(keys))}" if isinstance(keys, str | os.PathLike) else ""
    wanted = given_keys(keys)
    there = set(wanted)
    found = np.fromiter((key in there for key in dataset.clips.key), dtype=bool, count=len(dataset))
    if int(found.sum()) < len(there):
        known = set(dataset.clips.key)
        unknown = [key for key in dict.fromkeys(wanted) if key not in known]
        raise unknown_keys(dataset, unknown, f"{len(there)} keys{shown}")
    return found


def unknown_keys(dataset: ClipSource, unknown: Sequence[str], what: str) -> InputError:
    """The error for keys that no clip has."""
    some = ", ".join(repr(key[:100]) for key in unknown[:3]) + (", …" if len(unknown) > 3 else "")
    # In a concatenated dataset, a key that two parts have is prefixed by the part's name.
    meant = dataset.keys_meant(unknown[0])
    remedy = f"write {' or '.join(map(repr, meant[:3]))}" if meant else "correct them or drop them"
    return InputError(f"{len(unknown)} of the {what} are not in the dataset: {some}; {remedy}; streamvid ls lists all")


def _read_keys(path: str) -> list[str]:
    shown = redact(path)
    try:
        data = filesystem.read_bytes(path)
    except StreamvidError as error:
        raise InputError(
            f"cannot read the keys: {str(error).rstrip('.')}; give a file with a key per line, or a list in Python"
        ) from error
    try:
        if has_extension(path, (".csv",)):
            check_csv(data)
            options = pa.csv.ConvertOptions(column_types={"key": pa.string()}, strings_can_be_null=False)
            table = read_csv(data, options)
        elif has_extension(path, (".parquet",)):
            table = read_parquet(data)
        elif has_extension(path, (".jsonl",)) and data.strip():  # ls --json writes nothing for no clips
            check_json_lines(data)
            table = read_json_lines(data, ["key"])
            table = table if table["key"].null_count < table.num_rows else pa.table({})  # no line has one
        else:
            lines = (line.strip() for line in data.decode("utf-8-sig").splitlines())
            return [line for line in lines if line]
    except (pa.ArrowException, ValueError, OSError) as error:
        form = "give text with a key per line, or a .csv, .jsonl or .parquet with a column key"
        raise InputError(f"cannot read the keys in {shown}: {first_line(error)}; {form}") from error
    if table.schema.names.count("key") != 1:
        named = ", ".join(table.schema.names) or "none"
        raise InputError(f"{shown} has no single column 'key' but {named}: name the column of keys so")
    keys = table["key"]
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InputError(f"the column 'key' of {shown} holds text that is not UTF-8") from error
    if pa.types.is_dictionary(keys.type):
        keys = keys.cast(keys.type.value_type)
    if not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        raise InputError(f"the column 'key' of {shown} holds {keys.type}, not text")
    return [key for key in keys.to_pylist() if key]


def _by_expression(where: pc.Expression, columns: Columns) -> Bool:
    try:
        try:
            return _filtered(where, columns, columns.built_in)
        except pa.ArrowInvalid as error:
            if not _NO_FIELD.search(str(error)):
                raise
        # The expression names a metadata column. Built-in columns are tried first, as a metadata column may be
        # unusable.
        return _filtered(where, columns, columns.names)
    except (pa.ArrowException, TypeError) as error:
        missing = _NO_FIELD.search(str(error))
        if missing:
            name = missing.group(1)
            raise InputError(f"there is no column {name!r} for {where}: {columns.hint(name)}") from error
        raise InputError(f"the expression {where} cannot be evaluated: {str(error).splitlines()[0]}") from error


def _filtered(where: pc.Expression, columns: Columns, names: Sequence[str]) -> Bool:
    number = "row"
    while number in names:
        number += "_"
    table = columns.table(names).append_column(number, pa.array(np.arange(len(columns))))
    found = np.zeros(len(columns), dtype=bool)
    found[table.filter(where)[number].to_numpy()] = True
    return found


def _balanced(dataset: ClipSource, rows: Int64) -> Float64:
    labels = dataset.clips.label[rows]
    if (labels < 0).any():
        without = int((labels < 0).sum())
        key = dataset.key(int(rows[np.argmax(labels < 0)]))
        raise InputError(
            f"{without} of {len(rows)} clips, such as {key!r}, have no label to balance by: "
            "leave them out with where='label is not None', or give other weights"
        )
    _, which = unique_rows(labels)
    counts = np.bincount(which).astype(np.float64)
    return np.asarray(len(rows) / (len(counts) * counts))[which]


def _column(dataset: ClipSource, rows: Int64, name: str) -> Float64:
    try:
        column = dataset.columns.get(name)
    except InputError as error:
        raise InputError(f"weights: {error}; or {BALANCED!r}") from error
    if not is_number(column):
        raise InputError(f"weights: column {name!r} holds {column.type}, not numbers")
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64)[rows]


def _by_label(dataset: ClipSource, rows: Int64, weights: Mapping[Any, float]) -> Float64:
    numbers = {name: number for number, name in enumerate(dataset.classes or ())}
    labels = check_labels(dataset.clips, dataset.classes) if dataset.classes is not None else dataset.clips.label
    first, _ = unique_rows(labels)
    there = set(numbers.values()) if dataset.classes is not None else set(labels[first].tolist()) - {-1}
    found: dict[int, float] = {}
    for name, weight in weights.items():
        number = -1 if name is None else _label_number(name, numbers, there)
        if number in found:
            raise InputError(f"weights name label {number} twice, the second time as {name!r}: name it once")
        found[number] = _weight(name, weight)
    first, which = unique_rows(labels[rows])
    own = labels[rows[first]].tolist()
    return np.array([found.get(number, 1.0) for number in own], dtype=np.float64)[which]


def _label_number(name: Any, numbers: Mapping[str, int], there: set[int]) -> int:
    if isinstance(name, str):
        if name in numbers:
            return numbers[name]
        if not numbers:
            raise InputError(f"weights name class {name!r}, but the labels of this dataset are numbers: use those")
        hint = did_you_mean(name, numbers) or f"there are {', '.join(list(numbers)[:20])}"
        raise InputError(f"weights name class {name!r}, which is not in the dataset: {hint}")
    try:
        number = operator.index(name)
    except TypeError:
        raise InputError(f"weights must be by label number or class name, one of them is by {name!r}") from None
    if isinstance(name, bool) or number not in there:
        raise InputError(f"weights name label {name!r}, which no clip of the dataset has: drop it or correct it")
    return number


def _weight(name: Any, weight: Any) -> float:
    try:
        number = float("nan") if isinstance(weight, str | bool) else float(weight)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= MAX_WEIGHT:
        raise InputError(f"the weight of {name!r} must be a number from 0 to {MAX_WEIGHT}, it is {weight!r}")
    return number


def _numbers(values: npt.ArrayLike, count: int, who: str, what: str) -> Float64:
    try:
        array = np.asarray(values)
        numeric = array.dtype.kind in "iuf"
    except ValueError:
        numeric = False
    if not numeric:
        raise InputError(f"{who} no numbers: weights are numbers, one each for the {count} {what}")
    if array.shape != (count,):
        raise InputError(f"{who} shape {list(array.shape)}, but there are {count} {what}: one number each is needed")
    return array.astype(np.float64)
