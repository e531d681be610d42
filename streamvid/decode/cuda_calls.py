"""Calls of the CUDA driver, through ctypes, that only queue work on a stream, and keep the GIL."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class CudaCalls:
    """Copies and waits on a stream.

    The calls keep the GIL (PyDLL), because with many threads getting it back takes hundreds of times as long as a call.
    PyTorch's calls release it, and take more Python time: a copy through DLPack ten times as much.

    Args:
        stream: the current CUDA stream of the calling thread.
    """

    def __init__(self, stream: int) -> None:
        driver = ctypes.PyDLL("libcuda.so.1")
        self._stream, pointer = ctypes.c_void_p(stream), ctypes.c_void_p
        number, address, size = ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t

        def function(symbol: str, *types: type[ctypes._SimpleCData[Any]]) -> Callable[..., int]:
            found = getattr(driver, symbol)
            found.argtypes, found.restype = types, ctypes.c_int
            return found  # type: ignore[no-any-return]

        self._on_device = function("cuMemcpyDtoDAsync_v2", address, address, size, pointer)
        self._to_device = function("cuMemcpyHtoDAsync_v2", address, address, size, pointer)
        self._wait = function("cuStreamWaitEvent", pointer, pointer, number)
        self._query = function("cuEventQuery", pointer)

    def on_device(self, destination: int, source: int, size: int) -> None:
        """Copy `size` bytes from one device address to another."""
        self._check("copy a frame", self._on_device(destination, source, size, self._stream))

    def to_device(self, destination: int, source: int, size: int) -> None:
        """Copy `size` bytes from an address in pinned host memory to a device address."""
        self._check("copy a frame", self._to_device(destination, source, size, self._stream))

    def wait(self, event: torch.cuda.Event) -> None:
        """Make the stream wait for a recorded event."""
        self._check("wait for an event", self._wait(self._stream, event.cuda_event, 0))

    def reached(self, event: torch.cuda.Event) -> bool:
        """Whether the work before a recorded event is done. Also False if the driver reports an error, which PyTorch's
        `synchronize` raises."""
        return not self._query(event.cuda_event)

    def _check(self, what: str, status: int) -> None:
        if status:
            raise RuntimeError(f"the CUDA driver cannot {what}: error {status}")
