"""Makes calls that wait for a storage concurrently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

_THREADS: Final = 32


def map_in_threads(function: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    """Call a function that does I/O for each path, in threads. Returns the results in the order of the paths."""
    if not paths:
        return []
    first = function(paths[0])  # before the threads: see `streamvid.storage.filesystem` on the first remote call
    with ThreadPoolExecutor(min(_THREADS, len(paths))) as threads:
        return [first, *threads.map(function, paths[1:])]
