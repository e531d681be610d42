"""`streamvid annotate`: adds columns to a dataset, from a table with the clips' keys, without changing shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.checks import check, suggest_keywords
from streamvid.checksum import file_sha256
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.forgotten import digest
from streamvid.dataset.manifest import Overlay
from streamvid.dataset.meta_columns import common_type, in_words, memory_type, type_text
from streamvid.dataset.overlays import LABEL
from streamvid.dataset.revisions import change, publish_revision, table_name
from streamvid.dataset.selection import unknown_keys
from streamvid.errors import InputError
from streamvid.packing.destination import work_folder
from streamvid.packing.lists import label_column, read_list, whole_as_text
from streamvid.packing.revise import forgotten_clips, opened_to_change
from streamvid.packing.typed_columns import column_type, is_text, large_type, to_type
from streamvid.storage.parquet import read_parquet
from streamvid.storage.parquet_writer import write_parquet
from streamvid.storage.url import given_path, is_local, local_path, redact
from streamvid.text import first_line

KEY: Final = "key"
_GROUP_ROWS: Final = 1 << 20


@dataclass(frozen=True)
class AnnotateReport:
    """The result of `annotate`.

    Attributes:
        revision: the new revision.
        clips: number of clips for which the table has values.
        added: columns that the dataset did not have.
        replaced: columns that it had, which have new values for the table's clips.
        purged: number of rows of the table that were ignored because their clips were purged.
    """

    revision: int
    clips: int
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    purged: int


@suggest_keywords
def annotate(
    dataset: str | os.PathLike[str],
    table: str | os.PathLike[str] | pa.Table,
    *,
    roots: Sequence[str | os.PathLike[str]] = (),
) -> AnnotateReport:
    """Add columns to a dataset, or replace their values, by key. docs/revisions.md has examples.

    In an existing column, clips that the table does not name keep their values, and null in the table removes the
    value. A column `label` changes the labels: class names or numbers, as in the dataset.

    Args:
        dataset: a folder or URL.
        table: a Parquet, CSV or JSONL file, or an Arrow table, with a column `key` and at least one other. Lists of
            fixed size become tensors in batches.
        roots: as in `Dataset.open`.

    Raises:
        InputError: a key is not in the dataset, or twice in the table; a column exists with another type, or cannot be
            stored; another process changes the dataset, or has changed it meanwhile.
        DatasetError: the dataset is damaged, or cannot be written. In all these cases it is unchanged.
    """
    shown, given = _read(table)
    names = [name for name in given.column_names if name != KEY]
    keys = _keys(given, shown)
    if not names:
        raise InputError(f"{shown} has no column besides {KEY!r}: add the columns for the clips")
    if not len(keys):
        raise InputError(f"{shown} has no row: add one for each clip that gets values")
    with opened_to_change(dataset, roots) as (base, opened):
        record = forgotten_clips(base)
        rows, left_out = _rows(
            opened, keys, {*record.filter(pc.is_valid(record["purged"]))["key_sha256"].to_pylist()}, shown
        )
        if left_out.any():
            given = given.filter(pa.array(~left_out))
        before = set(opened.meta.names) | ({LABEL} if (opened.clips.label >= 0).any() else set())
        classes = opened.classes
        columns = {}
        for name in names:
            if name == LABEL:
                columns[name], classes = _labels(opened, given, rows, shown)
            else:
                columns[name] = _column(opened, name, given[name], rows, shown)
        with work_folder(base.path) as work:
            overlay, file = _write(columns, base.manifest.revision + 1, len(opened), work)
            manifest = replace(
                base.manifest,
                classes=classes,
                overlays=(*_superseded(base.manifest.overlays, {*names}), overlay),
                change=change("annotate", len(rows)),
            )
            published = publish_revision(base, manifest, {overlay.file: file})
    added = tuple(name for name in names if name not in before)
    others = tuple(name for name in names if name in before)
    return AnnotateReport(published.revision, len(rows), added, others, int(left_out.sum()))


def _read(table: object) -> tuple[str, pa.Table]:
    """The table's name for messages, and its columns; dates and times have their own types."""
    if isinstance(table, pa.Table):
        shown, found = "the table", table
        if len(set(table.column_names)) < table.num_columns:
            raise InputError("the table has two columns of one name: rename one")
    else:
        made = "a pyarrow.Table, as pyarrow.table(…) makes of a dict, and pyarrow.Table.from_pandas(…) of a DataFrame"
        check(isinstance(table, str | os.PathLike), table, "table", f"a path, a URL or {made}")
        path = given_path(table, "table")
        shown = redact(path)
        if path.lower().endswith(".parquet") and is_local(path):
            try:
                found = read_parquet(local_path(path))
                found.validate(full=True)
            except (pa.ArrowException, OSError, ValueError) as error:
                why = first_line(error) if os.path.isfile(local_path(path)) else "there is no such file"
                raise InputError(f"cannot read the table {shown}: {why}; give a .parquet, .csv or .jsonl") from error
            if len(set(found.column_names)) < found.num_columns:
                raise InputError(f"{shown} has two columns of one name: rename one")
        else:
            found = read_list(path).typed
    return shown, whole_as_text(found)


def _keys(table: pa.Table, shown: str) -> pa.Array:
    if KEY not in table.column_names:
        raise InputError(
            f"{shown} has no column {KEY!r} but {', '.join(table.column_names) or 'none'}: name clips in it"
        )
    column = table[KEY]
    if not is_text(column.type) or column.null_count:
        what = "empty cells" if is_text(column.type) else f"{column.type}, not text"
        raise InputError(f"the column {KEY!r} of {shown} holds {what}: name clips by their keys")
    return column.cast(pa.large_string()).combine_chunks()


def _rows(dataset: Dataset, keys: pa.Array, purged: set[str], shown: str) -> tuple[Int64, Any]:
    """int64: the row of each key, without purged clips; and bool [keys], which keys are of purged clips."""
    own = dataset.clips.key.array
    if len(keys) == len(dataset) and pc.all(pc.equal(own.combine_chunks(), keys)).as_py():
        return np.arange(len(keys)), np.zeros(len(keys), dtype=bool)
    found = np.asarray(pc.fill_null(pc.index_in(keys, value_set=own.combine_chunks()), -1)).astype(np.int64)
    left_out = found < 0
    if left_out.any():
        unknown = keys.filter(pa.array(left_out)).to_pylist()
        strange = [key for key in unknown if digest(key) not in purged]
        if strange:
            raise unknown_keys(dataset, strange, f"{len(keys)} keys of {shown}")
    rows = found[~left_out]
    times = np.bincount(rows, minlength=len(dataset))
    if len(rows) and times.max() > 1:
        key = dataset.key(int(times.argmax()))
        raise InputError(f"{shown} has the key {key!r} {times.max()} times: leave one row for each clip")
    return rows, left_out


def _labels(dataset: Dataset, table: pa.Table, rows: Int64, shown: str) -> tuple[pa.Array, tuple[str, ...] | None]:
    """The labels of all clips, and the names of the classes."""
    given, classes = label_column(table, shown), dataset.classes
    texts = is_text(given.type)
    if (dataset.clips.label >= 0).any() and given.null_count < len(given) and texts != (classes is not None):
        kinds = ("text", "numbers") if classes is not None else ("numbers", "text")
        raise InputError(f"the dataset's labels are {kinds[0]}, and those of {shown} are {kinds[1]}: use {kinds[0]}")
    if texts:
        classes = (*(classes or ()), *sorted({*pc.unique(given).drop_null().to_pylist()} - {*(classes or ())}))
        given = pc.index_in(given, value_set=pa.array([*classes, None], given.type))
        given = pc.if_else(pc.equal(given, len(classes)), -1, given)
    elif given.null_count < len(given):
        classes = None
    labels = dataset.clips.label.copy()
    labels[rows] = pc.fill_null(given, -1).to_numpy(zero_copy_only=False)
    return pa.array(labels, mask=labels < 0), classes


def _column(dataset: Dataset, name: str, given: pa.ChunkedArray, rows: Int64, shown: str) -> pa.Array:
    """A column of all clips, with the given values for these rows, and unchanged values for all others."""
    taken = name in dataset.columns.built_in and name not in dataset.meta.names
    if taken or not name or not name.isprintable():
        raise InputError(f"{shown} has a column {name!r}, a name that no new column can have: rename it")
    kind = _stored_type(given.type)
    try:
        values = pa.concat_arrays([_to_type(chunk, kind) for chunk in given.chunks] or [pa.array([], kind)])
    except InputError as error:
        raise InputError(f"the column {name!r} of {shown} holds {error}") from None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the column {name!r} of {shown} cannot be stored: {first_line(error)}") from error
    places = np.full(len(dataset), -1, dtype=np.int64)
    if name not in dataset.meta.names:
        if len(rows) == len(dataset) and (rows == np.arange(len(rows))).all():
            return values
        places[rows] = np.arange(len(rows))
        return values.take(pa.array(places, mask=places < 0))
    own = dataset.columns.meta_column(name)
    common = _common(name, own.type, values.type, shown)
    kind = values.type if memory_type(values.type) == common else common
    try:
        both = [own.cast(kind), values.cast(kind)]
    except pa.ArrowException:
        both = [own.cast(common), values.cast(common)]
    places[:] = np.arange(len(dataset))
    places[rows] = len(dataset) + np.arange(len(rows))
    return pa.concat_arrays(both).take(pa.array(places))


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column in the overlay's table: as in shards, but lists of numbers of fixed size keep their type."""
    in_memory = memory_type(kind)
    if in_memory is not None and pa.types.is_fixed_size_list(in_memory):
        return in_memory
    return large_type(column_type(kind))


def _to_type(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    return chunk.cast(kind) if pa.types.is_fixed_size_list(kind) or chunk.type == kind else to_type(chunk, kind)


def _common(name: str, own: pa.DataType, given: pa.DataType, shown: str) -> pa.DataType:
    """The type in memory of an existing column, which must also hold the given values."""
    new = memory_type(given)
    found = None if new is None else common_type(own, new)
    if found is None or found not in (own, new if pa.types.is_null(own) else own):
        raise InputError(
            f"the column {name!r} holds {in_words(own)} in the dataset and {in_words(new or given)} in {shown}: "
            "give it another name, or values of that type"
        )
    return found


def _write(columns: dict[str, pa.Array], revision: int, rows: int, work: Path) -> tuple[Overlay, Path]:
    path = work / "columns.parquet"
    table = pa.table(columns)
    coded = [
        field.name for field in table.schema if not (pa.types.is_floating(field.type) or pa.types.is_nested(field.type))
    ]
    write_parquet(table, path, group_rows=_GROUP_ROWS, dictionary=coded, by_column=True)
    sha256 = file_sha256(path)
    types = tuple(
        (field.name, type_text(column_type(field.type) if not pa.types.is_fixed_size_list(field.type) else field.type))
        for field in table.schema
    )
    return Overlay(table_name("columns", revision, sha256), sha256, path.stat().st_size, rows, types), path


def _superseded(overlays: Sequence[Overlay], names: set[str]) -> list[Overlay]:
    """The overlays without columns of these names; overlays without any column left are dropped."""
    left = [replace(old, columns=tuple(item for item in old.columns if item[0] not in names)) for old in overlays]
    return [table for table in left if table.columns]
