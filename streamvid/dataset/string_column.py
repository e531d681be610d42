"""Columns of strings in Arrow memory. Python strings are made on access, because a million of them take seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamvid.storage.range_reader import RangeReader

UInt64 = npt.NDArray[np.uint64]
T = TypeVar("T", str, bytes)

_CHUNK: Final = 8192
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio, as in Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4)."""


class LazyTexts(Protocol):
    """Columns of strings that are read on demand: see `streamvid.dataset.row_texts.RowTexts`."""

    def __len__(self) -> int: ...
    def value(self, name: str, row: int) -> str | bytes: ...
    def column(self, name: str) -> pa.ChunkedArray: ...
    def prepared(self, rows: Sequence[int], reader: RangeReader) -> AbstractContextManager[None]: ...


class ArrowColumn(Sequence[T]):
    """Strings in an Arrow array. Equal to any sequence of the same strings; picklable.

    Args:
        array: large_string (valid UTF-8) or large_binary, without nulls in rows that are read; or columns of them.
        name: name of the column among `LazyTexts`.
    """

    def __init__(self, array: pa.Array | pa.ChunkedArray | LazyTexts, name: str = "") -> None:
        self._array, self._name = pa.chunked_array([array]) if isinstance(array, pa.Array) else array, name

    @property
    def array(self) -> pa.ChunkedArray:
        """All strings."""
        return self._array if isinstance(self._array, pa.ChunkedArray) else self._array.column(self._name)

    def prepared(self, rows: Sequence[int], reader: RangeReader) -> AbstractContextManager[None]:
        """Read the strings of these rows: see `streamvid.dataset.row_texts.RowTexts.prepared`."""
        return nullcontext() if isinstance(self._array, pa.ChunkedArray) else self._array.prepared(rows, reader)

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, i: int) -> T: ...
    @overload
    def __getitem__(self, i: slice) -> list[T]: ...
    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return self.array[i].to_pylist()
        if isinstance(self._array, pa.ChunkedArray):
            return self._array[int(i)].as_py()
        return self._array.value(self._name, int(i))

    def __iter__(self) -> Iterator[T]:
        array = self.array
        for first in range(0, len(array), _CHUNK):
            yield from array.slice(first, _CHUNK).to_pylist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ArrowColumn):
            return bool(self.array.equals(other.array))
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(self[i]) for i in range(min(3, len(self))))
        return f"{type(self).__name__}([{shown}{', …' if len(self) > 3 else ''}])"


class StringColumn(ArrowColumn[str]):
    """Strings."""


class BinaryColumn(ArrowColumn[bytes]):
    """Byte strings."""


def hashes(array: pa.Array) -> UInt64:
    """uint64 [strings]: a hash of each string of a large_string array without nulls; equal strings have equal ones."""
    first, last = array.offset, array.offset + len(array) + 1
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[first:last]
    start, sizes = ends[:-1], np.diff(ends)
    # Eight bytes at a time are read as a number; bytes after a string's end are masked.
    padded = np.concatenate([np.frombuffer(data or b"", dtype=np.uint8), np.zeros(8, dtype=np.uint8)])
    words = np.ndarray((len(padded) - 7,), dtype=np.uint64, buffer=padded, strides=(1,))
    # Not the size itself: the first bytes of a short string may equal it.
    result = (sizes.astype(np.uint64) + np.uint64(1)) * _MULTIPLIER
    for done in range(0, int(sizes.max(initial=0)), 8):
        left = np.clip(sizes - done, 0, 8).astype(np.uint64)
        mask = np.where(
            left == 8, ~np.uint64(0), (np.uint64(1) << (left * np.uint64(8)) % np.uint64(64)) - np.uint64(1)
        )
        result = (result ^ (words[np.minimum(start + done, len(words) - 1)] & mask)) * _MULTIPLIER
        result ^= result >> np.uint64(29)
    return result


def repeated(column: StringColumn, hashed: UInt64 | None = None) -> list[str]:
    """The strings that a column has more than once.

    Args:
        column: the strings.
        hashed: uint64 [strings], their `hashes` if known. Sorting hashes takes a fifth of the time, and a tenth of the
            memory, of counting strings.
    """
    if hashed is None:
        hashed = np.concatenate([np.empty(0, np.uint64), *map(hashes, column.array.chunks)])
    ordered = np.sort(hashed)
    several = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(several):
        return []
    counted = Counter(column[row] for row in np.flatnonzero(np.isin(hashed, several)).tolist())
    return [text for text, count in counted.items() if count > 1]
