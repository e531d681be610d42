"""NumPy array types by dtype, whose shapes are in the docstrings of functions and classes, and distinct rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.ma
import numpy.typing as npt
import pyarrow as pa

# NumPy loads numpy.ma when it is first asked for. If two threads ask at once, one can end in a RecursionError:
# https://github.com/python/cpython/issues/149728. So it is loaded here, before there are threads.

Bool = npt.NDArray[np.bool_]
UInt8 = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
_BLOCK: Final = 1 << 20


def unique_rows(*columns: npt.NDArray[Any]) -> tuple[Int64, Int32]:
    """The distinct rows of a table, as `np.unique` with axis=0 finds them, in linear time: by hashing.

    Args:
        columns: the table's columns, each [rows]: the first of any integers, the others of 0 to 2^32 - 1.

    Returns:
        The first row of each distinct one, int64 [distinct], sorted by the columns' values; and for every row the
        number of its distinct one, int32 [rows].
    """
    which: Int32 | None = None
    columns = tuple(column for column in columns if len(column) and column.min() != column.max()) or columns[:1]
    for column in columns:
        # Numbered anew after each column, so that the next one fits into the lower 32 bits.
        combined = column if which is None else which.astype(np.int64) << 32 | column
        encoded: Any = pa.array(combined).dictionary_encode()
        which = encoded.indices.to_numpy()
    assert which is not None
    first = np.empty(int(which.max(initial=-1)) + 1, dtype=np.int64)
    for end in range(len(which), 0, -_BLOCK):
        start = max(0, end - _BLOCK)
        first[which[start:end][::-1]] = np.arange(end - 1, start - 1, -1)
    order = np.lexsort([column[first] for column in reversed(columns)])
    numbers = np.empty(len(order), dtype=np.int32)
    numbers[order] = np.arange(len(order))
    return first[order], numbers[which]
