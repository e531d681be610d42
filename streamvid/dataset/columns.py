"""The clips' columns by name, for filters and batches: what packing found out, and what came with the clips."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamvid.arrays import Bool, Int64
from streamvid.dataset.clip_table import Categories, ClipTable
from streamvid.dataset.meta_fields import Fields
from streamvid.dataset.meta_json import meta_columns
from streamvid.dataset.string_column import StringColumn
from streamvid.errors import DatasetError, InputError

if TYPE_CHECKING:
    from streamvid.dataset.clip_source import ClipSource

META: Final = "meta."
"""What may be put before the name of a field of the metadata, and must be where a column of packing's has that name."""
_NAMES_SHOWN: Final = 40

_AS_THEY_ARE: Final = ("width", "height", "rotation", "frames", "packets", "random_access")
_CATEGORIES: Final = ("codec", "profile", "pix_fmt", "color_space", "color_range", "traits")


class Columns:
    """The columns of some clips. Each is computed when it is first asked for, and kept. May be used by several threads.

    Args:
        clips: the clips' rows.
        classes: the names of the class numbers, if they have names.
        extra: further columns by name, each with one value per clip.
        fields: gives the fields of the metadata, when they are first needed; by default they are parsed out of JSON.
    """

    def __init__(
        self,
        clips: ClipTable,
        classes: Sequence[str] | None,
        extra: Mapping[str, Categories] | None = None,
        *,
        fields: Callable[[], Fields] | None = None,
    ) -> None:
        self._clips = clips
        makers: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: StringColumn.of(clips.key).array,
            "source": lambda: StringColumn.of(clips.source).array,
            "label": lambda: pa.array(clips.label, mask=clips.label < 0),
        }
        if classes is not None:
            makers["class"] = lambda: _class_texts(clips, classes)
        categories = {name: getattr(clips, name) for name in _CATEGORIES} | dict(extra or {})
        makers |= {name: _texts_of(column) for name, column in categories.items()}
        makers |= {name: _numbers_of(getattr(clips, name)) for name in _AS_THEY_ARE}
        makers["upright_width"] = lambda: pa.array(np.where(_lying(clips), clips.height, clips.width))
        makers["upright_height"] = lambda: pa.array(np.where(_lying(clips), clips.width, clips.height))
        makers["seconds"] = lambda: pa.array(clips.seconds)
        makers["fps"] = lambda: _mean_fps(clips)
        self._makers = makers
        self._lock = threading.Lock()
        self._made: dict[str, pa.Array] = {}
        self._arrays: dict[str, npt.NDArray[Any] | None] = {}
        self._read_fields = fields or (lambda: Fields(meta_columns(clips.meta, clips.key)))
        self._fields: Fields | None = None

    def __len__(self) -> int:
        """How many clips there are."""
        return len(self._clips)

    @property
    def built_in(self) -> tuple[str, ...]:
        """The columns that do not come from the clips' metadata."""
        return tuple(self._makers)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns. Reads the metadata, so raises DatasetError if they are damaged."""
        return (*self._makers, *(META + name if name in self._makers else name for name in self.fields().names))

    def fields(self) -> Fields:
        """The fields of the metadata, by their own names.

        Raises:
            DatasetError: the metadata of a clip are damaged.
        """
        with self._lock:
            if self._fields is None:
                self._fields = self._read_fields()
            return self._fields

    def get(self, name: str) -> pa.Array:
        """A column, one value per clip, null where there is none.

        Args:
            name: of a column of packing's or a field of the metadata; ``meta.<field>`` is always the field.

        Raises:
            InputError: there is no such column.
            DatasetError: it needs the metadata, and those of a clip are damaged, or have other types in one shard or
                dataset than in another.
        """
        if name in self._makers:
            if name not in self._made:
                self._made[name] = self._makers[name]()
            return self._made[name]
        fields = self.fields()
        for field in (name, name.removeprefix(META)):
            if field in fields.names:
                return fields.get(field)
        raise InputError(f"there is no column {name!r}: {self.hint(name)}")

    def field(self, name: str) -> pa.Array:
        """A field of the metadata, also where a column of packing's has the same name; otherwise as `get`."""
        fields = self.fields()
        if name not in fields.names:
            raise InputError(f"the clips' metadata have no field {name!r}: {self.hint(name)}")
        return fields.get(name)

    def hint(self, name: str) -> str:
        """Which columns there are, and which was perhaps meant."""
        names = self.names
        close = difflib.get_close_matches(name, names, 1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return f"{meant}the columns are {', '.join(names[:_NAMES_SHOWN])}{more}"

    def table(self, names: Sequence[str]) -> pa.Table:
        """Columns as a table, one row per clip; errors as from `get`."""
        return pa.table({name: self.get(name) for name in names})

    def batch(self, name: str, rows: npt.ArrayLike) -> npt.NDArray[Any] | list[Any]:
        """A column's values for some clips; see `column_for_batch`."""
        if name not in self._arrays:
            self._arrays[name] = _array(self.get(name))
        array = self._arrays[name]
        rows = np.asarray(rows, dtype=np.int64)
        if array is not None:
            return np.asarray(array[rows])
        column = self.get(name)
        values: list[Any] = column.take(pa.array(rows)).to_pylist()
        if pa.types.is_large_string(column.type):
            return ["" if value is None else value for value in values]
        return values


def table(dataset: ClipSource, names: Sequence[str] | None = None) -> pa.Table:
    """Columns of all clips, one row per clip in the order of row numbers, null where a clip has no value.

    Args:
        dataset: one dataset or several joined.
        names: which columns, in this order; default: all. docs/selecting.md lists them. The metadata are read only
            if a column needs them.

    Raises:
        InputError: there is no such column.
        DatasetError: the metadata of a clip are damaged.
    """
    if isinstance(names, str):
        raise InputError(f"names must be a list of column names, it is {names!r}: write [{names!r}]")
    return dataset.columns.table(dataset.columns.names if names is None else names)


def column_for_batch(dataset: ClipSource, name: str, rows: npt.ArrayLike) -> npt.NDArray[Any] | list[Any]:
    """A column's values for the clips of a batch. What comes depends on the column alone, not on the rows.

    Args:
        dataset: one dataset or several joined.
        name: the column.
        rows: int [batch], row numbers.

    Returns:
        For numbers an array [batch]: int64, or float64 if they have fractions or any clip of the dataset has none:
        NaN then says so. For truth values likewise bool, or float64 of 1, 0 and NaN. For text a list of str, empty
        where there is none. For all else (lists, columns without any value) a list of Python objects.

    Raises:
        InputError: there is no such column.
        DatasetError: the metadata of a clip are damaged.
    """
    return dataset.columns.batch(name, rows)


def is_number(column: pa.Array) -> bool:
    """Whether a column holds whole numbers or floats."""
    return bool(pa.types.is_integer(column.type) or pa.types.is_floating(column.type))


def _array(column: pa.Array) -> npt.NDArray[Any] | None:
    """The column as NumPy has it; None if it has no such form."""
    kind = column.type
    if not is_number(column) and not pa.types.is_boolean(kind):
        return None
    if column.null_count:
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    array = column.to_numpy(zero_copy_only=False)
    return np.asarray(array, dtype=np.int64) if pa.types.is_integer(kind) else np.asarray(array)


def _texts_of(column: Categories) -> Callable[[], pa.Array]:
    return lambda: pa.array(column.names, type=pa.large_string()).take(pa.array(column.codes))


def _numbers_of(column: npt.NDArray[Any]) -> Callable[[], pa.Array]:
    return lambda: pa.array(column)


def _lying(clips: ClipTable) -> Bool:
    return np.asarray(clips.rotation % 180 != 0)


def _mean_fps(clips: ClipTable) -> pa.Array:
    seconds = clips.seconds
    with np.errstate(divide="ignore"):
        return pa.array(clips.frames / seconds, mask=seconds <= 0)


def _class_texts(clips: ClipTable, classes: Sequence[str]) -> pa.Array:
    check_labels(clips, classes)
    return pa.array(classes, type=pa.large_string()).take(pa.array(clips.label, mask=clips.label < 0))


def check_labels(clips: ClipTable, classes: Sequence[str]) -> Int64:
    """The labels, int64 [clips], each -1 or the number of one of the classes. Raises DatasetError if one is not."""
    if len(clips) and clips.label.max() >= len(classes):
        row = int(np.argmax(clips.label))
        raise DatasetError(
            f"clip {clips.key[row]!r} has label {clips.label[row]}, but the dataset has {len(classes)} classes: "
            "pack it again"
        )
    return clips.label
