"""The clips' columns by name, for filters and batches: built-in columns, which packing measured, and the user's
metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamvid.arrays import Bool, Int64
from streamvid.checks import did_you_mean, listed
from streamvid.dataset.clip_table import Categories, ClipTable, Int32
from streamvid.dataset.meta_columns import MetaColumns
from streamvid.dataset.schema import CATEGORIES
from streamvid.errors import DatasetError, InputError

META: Final = "meta."
"""Prefix that names a metadata column also where a built-in column has the same name."""
_NAMES_SHOWN: Final = 40

_INTEGERS: Final = ("width", "height", "rotation", "frames", "packets", "random_access")


class Columns:
    """The columns of some clips. Each is computed on first use and kept. Thread-safe.

    Args:
        clips: the clips' rows.
        classes: names of the class numbers, if they have names.
        meta: returns the metadata columns; called once, when one is first needed.
        extra: further built-in columns by name, each with one value per clip.
    """

    def __init__(
        self,
        clips: ClipTable,
        classes: Sequence[str] | None,
        *,
        meta: Callable[[], MetaColumns],
        extra: Mapping[str, Categories] | None = None,
    ) -> None:
        self._clips = clips
        makers: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: clips.key.array.combine_chunks(),
            "source": lambda: clips.source.array.combine_chunks(),
            "label": lambda: pa.array(clips.label, mask=clips.label < 0),
        }
        if classes is not None:
            makers["class"] = lambda: _strings(classes, pa.array(check_labels(clips, classes), mask=clips.label < 0))
        categories = {name: getattr(clips, name) for name in CATEGORIES} | dict(extra or {})
        makers |= {name: partial(_strings, column.names, column.codes) for name, column in categories.items()}
        makers |= {name: partial(pa.array, getattr(clips, name)) for name in _INTEGERS}
        # Upright, a clip that is rotated by 90 or 270 degrees has width and height exchanged.
        makers["upright_width"] = lambda: pa.array(np.where(clips.rotation % 180, clips.height, clips.width))
        makers["upright_height"] = lambda: pa.array(np.where(clips.rotation % 180, clips.width, clips.height))
        makers["seconds"] = lambda: pa.array(clips.seconds)
        makers["fps"] = lambda: _mean_fps(clips)
        self._makers = makers
        self._made: dict[str, pa.Array] = {}
        self._arrays: dict[str, tuple[npt.NDArray[Any], Bool | None] | None] = {}
        self._make_meta = meta
        self._meta: MetaColumns | None = None

    def __len__(self) -> int:
        """Number of clips."""
        return len(self._clips)

    @property
    def built_in(self) -> tuple[str, ...]:
        """Names of the columns that every dataset has."""
        return tuple(self._makers)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns. A metadata column named like a built-in one has `META` before its name."""
        return (*self._makers, *(META + name if name in self._makers else name for name in self.meta.names))

    @property
    def meta(self) -> MetaColumns:
        """The metadata columns."""
        if self._meta is None:
            self._meta = self._make_meta()  # two threads may both compute it, with equal results
        return self._meta

    def get(self, name: str) -> pa.Array:
        """A column, one value per clip, null where a clip has none.

        Args:
            name: name of a built-in or metadata column; ``meta.<name>`` is always the metadata column.

        Raises:
            InputError: there is no such column.
            DatasetError: the column's types contradict each other between shards or datasets.
        """
        if not isinstance(name, str):
            raise InputError(f"a column is named by a text; it is {name!r}"[:300])
        if name in self._makers:
            if name not in self._made:
                self._made[name] = self._makers[name]()
            return self._made[name]
        for field in (name, name.removeprefix(META)):
            if field in self.meta.names:
                return self.meta_column(field)
        raise InputError(f"there is no column {name!r}: {self.hint(name)}")

    def meta_column(self, name: str) -> pa.Array:
        """A metadata column, also if a built-in column has the same name; otherwise as `get`."""
        if name not in self.meta.names:
            raise InputError(f"the clips' metadata have no field {name!r}: {self.hint(name)}")
        if META + name not in self._made:
            self._made[META + name] = self.meta.get(name)
        return self._made[META + name]

    def hint(self, name: str) -> str:
        """The names of the columns, and the one most like `name`, for messages."""
        names = self.names
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return f"{did_you_mean(name, names)} the columns are {', '.join(names[:_NAMES_SHOWN])}{more}".lstrip()

    def table(self, names: Sequence[str]) -> pa.Table:
        """Columns as a table, one row per clip; errors as in `get`."""
        return pa.table({name: self.get(name) for name in listed(names, "columns", "column names")})

    def batch(self, name: str, rows: npt.ArrayLike) -> npt.NDArray[Any] | list[Any]:
        """A column's values for the clips of a batch. Their type depends on the whole column, never on the rows.

        Args:
            name: the column.
            rows: int [batch], row numbers.

        Returns:
            For numbers an array [batch]: int64, or float64 if they are floats or any clip of the dataset has none
            (NaN). For bools an array of bool, or of float64 1, 0 and NaN if any clip has none. For numbers in lists of
            fixed size an array [batch, size] of their own type, or likewise of float64 if whole numbers are missing.
            For text a list of str, empty where a clip has none. For other lists, and columns without any value, a list
            of Python objects.

        Raises:
            InputError, DatasetError: as in `get`.
        """
        if name not in self._arrays:
            column = self.get(name)
            try:
                self._arrays[name] = _numpy(column)
            except pa.ArrowInvalid:
                raise DatasetError(
                    f"the column {name!r} has whole numbers beyond 2^53 and clips without one, for which batches have "
                    "NaN: float64 would round the others; give each clip one, or the column as text (annotate)"
                ) from None
        made = self._arrays[name]
        rows = np.asarray(rows, dtype=np.int64)
        if made is not None:
            array, missing = made
            found = np.asarray(array[rows])
            if missing is None:
                return found
            found = found if found.dtype.kind == "f" else found.astype(np.float64)
            found[missing[rows]] = np.nan
            return found
        column = self.get(name)
        values: list[Any] = column.take(pa.array(rows)).to_pylist()
        if pa.types.is_large_string(column.type):
            return ["" if value is None else value for value in values]
        return values


def is_number(column: pa.Array) -> bool:
    """Whether a column holds integers or floats."""
    return bool(pa.types.is_integer(column.type) or pa.types.is_floating(column.type))


def is_list(column: pa.Array) -> bool:
    """Whether a column holds lists, of any sizes or of one."""
    return bool(pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type))


def check_labels(clips: ClipTable, classes: Sequence[str]) -> Int64:
    """The labels, int64 [clips]. Raises DatasetError if one is neither -1 nor the number of a class."""
    if len(clips) and clips.label.max() >= len(classes):
        row = int(np.argmax(clips.label))
        raise DatasetError(
            f"clip {clips.key[row]!r} has label {clips.label[row]}, but the dataset has {len(classes)} classes: "
            "pack it again"
        )
    return clips.label


def _numpy(column: pa.Array) -> tuple[npt.NDArray[Any], Bool | None] | None:
    """A column of numbers or bools, or of lists of fixed size, as an array, see `Columns.batch`, and for such lists,
    whose array is not copied, bool [clips], which clips have none. None for other columns."""
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        values = column.values.slice(column.offset * size, len(column) * size)
        if values.null_count and not pa.types.is_floating(values.type):  # of list elements, or of a clip without a list
            values = values.cast(pa.float64())
        array = values.to_numpy(zero_copy_only=False).reshape(len(column), size)
        return array, np.asarray(column.is_null()) if column.null_count else None
    if not is_number(column) and not pa.types.is_boolean(kind):
        return None
    if column.null_count:
        column = column.cast(pa.float64())
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64), None
    array = column.to_numpy(zero_copy_only=False)
    return (np.asarray(array, dtype=np.int64) if pa.types.is_integer(kind) else np.asarray(array)), None


def _strings(names: Sequence[str], numbers: Int32 | pa.Array) -> pa.Array:
    return pa.array(names, type=pa.large_string()).take(pa.array(numbers))


def _mean_fps(clips: ClipTable) -> pa.Array:
    seconds = clips.seconds
    with np.errstate(divide="ignore"):
        return pa.array(clips.frames / seconds, mask=seconds <= 0)
