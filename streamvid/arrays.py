"""NumPy array types by dtype, whose shapes are in the docstrings of functions and classes, and distinct rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bool = npt.NDArray[np.bool_]
UInt8 = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def unique_rows(*columns: npt.NDArray[Any]) -> tuple[Int64, Int64]:
    """The distinct rows of a table, as `np.unique` with axis=0 finds them, in linear time: by hashing.

    Args:
        columns: the table's columns, each [rows]: the first of any integers, the others of 0 to 2^32 - 1.

    Returns:
        The first row of each distinct one, int64 [distinct], sorted by the columns' values; and for every row the
        number of its distinct one, int64 [rows].
    """
    which: Int64 | None = None
    columns = tuple(column for column in columns if len(column) and column.min() != column.max()) or columns[:1]
    for column in columns:
        # Numbered anew after each column, so that the next one fits into the lower 32 bits.
        combined = column if which is None else which << 32 | column
        encoded: Any = pa.array(combined).dictionary_encode()
        which = encoded.indices.to_numpy().astype(np.int64)
    assert which is not None
    first = np.empty(int(which.max(initial=-1)) + 1, dtype=np.int64)
    first[which[::-1]] = np.arange(len(which) - 1, -1, -1)
    order = np.lexsort([column[first] for column in reversed(columns)])
    numbers = np.empty_like(order)
    numbers[order] = np.arange(len(order))
    return first[order], numbers[which]
