"""A column of strings in Arrow memory. Python strings are made on access, as making a million of them takes seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, overload

import pyarrow as pa

_CHUNK: Final = 8192


class StringColumn(Sequence[str]):
    """Strings in one Arrow array. Equal to any sequence of the same strings; may be pickled.

    Args:
        array: large_string, without nulls, valid UTF-8.
    """

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [str(text) for text in self.array[i].to_pylist()]
        return str(self.array[int(i)].as_py())

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self.array), _CHUNK):
            yield from self.array.slice(first, _CHUNK).to_pylist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringColumn):
            return bool(self.array.equals(other.array))
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(text) for text in self[:3])
        return f"StringColumn([{shown}{', …' if len(self) > 3 else ''}])"
