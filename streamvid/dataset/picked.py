"""`Pick`: one of several values in a list, such as captions, drawn each time that the clip comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Float64, Int64
from streamvid.checks import suggesting
from streamvid.dataset.columns import Columns, is_list, is_number
from streamvid.errors import InputError


@suggesting
@dataclass(frozen=True)
class Pick:
    """A column of batches with one value, drawn by weight, of each list of a column. The draw depends only on seed,
    pass and sample.

    Attributes:
        column: name of a column of lists, and of the batch's column.
        weights: relative frequencies: the name of a column of lists of equally many numbers; or numbers for the first
            value, the second and so on, as many as the longest list has; None: all equal.

    Raises:
        InputError: an option has the wrong type.
    """

    column: str
    weights: str | Sequence[float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise InputError(f"Pick takes the name of a column; it is {self.column!r}")
        if self.weights is not None and not isinstance(self.weights, str):
            try:
                weights = tuple(float(weight) for weight in self.weights)
            except (TypeError, ValueError):
                raise InputError(f"weights of a Pick are a column or numbers; they are {self.weights!r}") from None
            object.__setattr__(self, "weights", weights)

    def check(self, columns: Columns) -> None:
        """Check that the columns hold lists, and that each list has its weights.

        Raises:
            InputError: a column holds no lists, or the weights of a clip do not fit; the message names the clip.
        """
        lists = columns.get(self.column)
        if not is_list(lists):
            raise InputError(f"Pick({self.column!r}): the column holds {lists.type}, no lists")
        lengths = pc.fill_null(pc.list_value_length(lists), 0)
        if isinstance(self.weights, str):
            weights = columns.get(self.weights)
            if not (is_list(weights) and is_number(weights.values)):
                raise InputError(f"Pick: the column {self.weights!r} holds {weights.type}, no lists of numbers")
            wrong = pc.not_equal(pc.fill_null(pc.list_value_length(weights), 0), lengths)
            self._refuse(columns, wrong, "has not as many weights as values")
            numbers = pc.cast(pc.list_flatten(weights), pa.float64())
            bad = pc.invert(pc.fill_null(pc.and_(pc.is_finite(numbers), pc.greater_equal(numbers, 0)), False))
            rows = np.zeros(len(lists), dtype=bool)
            rows[pc.list_parent_indices(weights).filter(bad).to_numpy()] = True
            self._refuse(columns, pa.array(rows), "has a weight that is no number from 0")
        elif self.weights is not None:
            if not all(0 <= weight < float("inf") for weight in self.weights) or not any(self.weights):
                raise InputError(f"weights of a Pick are numbers from 0, not all of them 0; they are {self.weights}")
            wrong = pc.greater(lengths, len(self.weights))
            self._refuse(columns, wrong, f"has more values than the {len(self.weights)} weights")

    def _refuse(self, columns: Columns, wrong: pa.Array, what: str) -> None:
        row = pc.index(wrong, True).as_py()
        if row >= 0:
            raise InputError(f"Pick({self.column!r}): clip {columns.get('key')[row].as_py()!r} {what}")

    def values(self, columns: Columns, rows: Int64, draws: Float64) -> npt.NDArray[Any] | list[Any]:
        """A value for each clip of a batch: for text, a list of str, "" for none; for numbers, float64 [batch], NaN for
        none; otherwise a list.

        Args:
            columns: the columns of the dataset.
            rows: int64 [batch].
            draws: float64 [batch], uniform in [0, 1).
        """
        lists = columns.get(self.column)
        taken = lists.take(pa.array(rows)).to_pylist()
        weights: list[Any] = [self.weights] * len(rows)
        if isinstance(self.weights, str):
            weights = columns.get(self.weights).take(pa.array(rows)).to_pylist()
        found = [_one(*each) for each in zip(taken, weights, draws.tolist(), strict=True)]
        if is_number(lists.values):
            return np.array([np.nan if value is None else value for value in found], dtype=np.float64)
        text = pa.types.is_large_string(lists.type.value_type)
        return ["" if value is None and text else value for value in found]


def _one(values: list[Any] | None, weights: Sequence[float] | None, draw: float) -> Any:
    """One of the values; None if there is none, or all weights are 0."""
    if not values:
        return None
    shares = np.ones(len(values)) if weights is None else np.array(weights[: len(values)], dtype=np.float64)
    ends = np.cumsum(shares)
    if not ends[-1] > 0:
        return None
    return values[min(int(np.searchsorted(ends, draw * ends[-1], side="right")), int(np.flatnonzero(shares)[-1]))]
