"""Converts decoded surfaces to pixels: one thread's queue of kernel launches on its CUDA stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from streamvid.arrays import Int32, Int64
from streamvid.color import surfaces
from streamvid.color.surfaces import ROW, Kernel
from streamvid.decode.cuda_calls import CudaCalls
from streamvid.decode.surface_target import SurfaceTarget

if TYPE_CHECKING:
    import torch

_ROWS: Final = 128
"""Most pictures per launch."""
_DITHERED: Final = 32
"""Most pictures per launch if the kernel dithers: it needs scratch memory for all the surfaces in 8 bits."""
_TABLES: Final = 16
"""Launches queued on the GPU before the thread waits for the first."""
_PRIORITY: Final = -5
"""The highest that CUDA has; PyTorch takes its own highest for it."""


def loader_stream(device_id: int) -> torch.cuda.Stream:
    """A CUDA stream of higher priority than the model's.

    A decode session waits for small kernels and copies of single pictures. At the model's priority, each would wait
    until all blocks of the model's earlier kernels have started, and so would the NVDEC engines.
    """
    import torch

    return torch.cuda.Stream(device_id, priority=_PRIORITY)  # type: ignore[no-untyped-call]


Take = Callable[[int, Int32, Int64], None]
"""Takes wanted decoded frames of a job: its number, their rows among the slice's frames, int32 [frames], and their
surfaces, int64 [frames, 3]: device address, pitch in samples, and bytes from luma to chroma. Surfaces stay valid for
work that is on the CUDA stream up to the next launch."""


class FirstLaunches:
    """Serialises the first launch of each kernel, at which Triton compiles it. Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._seen = threading.Lock(), set[Kernel]()

    def launch(
        self, kernel: Kernel, table: torch.Tensor, count: int, size: tuple[int, int], scratch: torch.Tensor | None
    ) -> None:
        """See `streamvid.color.surfaces.launch`."""
        if kernel in self._seen:
            surfaces.launch(kernel, table, count, size, scratch)
            return
        with self._lock:
            surfaces.launch(kernel, table, count, size, scratch)
            self._seen.add(kernel)


class SurfaceQueue:
    """Collects surfaces and makes their pictures with few launches. Not thread-safe.

    Args:
        stream: the thread's current CUDA stream. `launch` reads the surfaces in the order of this stream.
        first: the pool's `FirstLaunches`.
    """

    def __init__(self, stream: torch.cuda.Stream, first: FirstLaunches) -> None:
        import torch

        self._stream, self._first = stream, first
        stream.synchronize()  # has PyTorch make the device's context this thread's: the driver's calls do not
        self.calls = CudaCalls(stream.cuda_stream)
        self._pinned: deque[_PinnedTable] = deque()
        self._table = torch.empty((_ROWS, ROW), dtype=torch.int64, device=stream.device)
        self._scratch: torch.Tensor | None = None
        # By kernel: surfaces, their pictures and parameters; and the largest height and width of the pictures.
        self._rows: dict[Kernel, list[tuple[Int64, Int64, int]]] = {}
        self._sizes: dict[Kernel, tuple[int, int]] = {}
        self._targets: list[SurfaceTarget] = []
        self._ready: torch.cuda.Event | None = None
        # Targets to which queued kernels still write: their memory must not be freed before.
        self._writing: deque[tuple[torch.cuda.Event, list[SurfaceTarget]]] = deque()

    def add(self, target: SurfaceTarget, rows: Int32, found: Int64) -> None:
        """Add surfaces to the next launch, with all pictures that are made of them.

        Args:
            target: the slice's target.
            rows: int32 [frames], the frames' indices in the slice.
            found: int64 [frames, 3], the surfaces as in `Take`: NV12 or P016. Only the target's window has to be valid.
        """
        if target not in self._targets:
            # All targets of a batch share an event, so one wait is enough.
            if target.ready is not self._ready:
                self.calls.wait(target.ready)
                self._ready = target.ready
            self._targets.append(target)
        for kernel, (height, width), params, pixels in target.writes:
            some = self._rows.setdefault(kernel, [])
            for column in pixels.T:  # more than one only if a frame is shown several times
                some.append((found, column[rows], params))
            highest, widest = self._sizes.get(kernel, (0, 0))
            self._sizes[kernel] = max(height, highest), max(width, widest)

    def launch(self) -> torch.cuda.Event:
        """Queue the kernels for all added surfaces.

        Returns:
            the CUDA event after which their pictures are written.
        """
        import torch

        rows, sizes, self._rows, self._sizes = self._rows, self._sizes, {}, {}
        written = None
        for kernel, some in rows.items():
            most = _DITHERED if kernel.as_dali and kernel.wide else _ROWS
            table = np.empty((sum(len(pixels) for _, pixels, _ in some), ROW), dtype=np.int64)
            start = 0
            for found, pixels, params in some:
                part = table[start : start + len(pixels)]
                part[:, :3], part[:, 3], part[:, 4] = found, pixels, params
                start += len(pixels)
            if np.count_nonzero(table[:, 3]) < len(table):
                table = table[table[:, 3] != 0]
            for start in range(0, len(table), most):
                written = self._launch(kernel, table[start : start + most], sizes[kernel])
        if written is None:
            written = torch.cuda.Event()  # type: ignore[no-untyped-call]
            written.record(self._stream)
        self._writing.append((written, self._targets))
        self._targets = []
        while self._writing and self.calls.reached(self._writing[0][0]):
            self._writing.popleft()
        return written

    def clear(self) -> None:
        """Drop the surfaces that were added and not launched."""
        self._rows.clear()
        self._sizes.clear()
        self._targets = []

    def synchronize(self) -> None:
        """Wait for all launched kernels."""
        self._stream.synchronize()
        self._writing.clear()

    def _launch(self, kernel: Kernel, rows: Int64, size: tuple[int, int]) -> torch.cuda.Event:
        import torch

        if len(self._pinned) < _TABLES and not (self._pinned and self._is_free(self._pinned[0])):
            self._pinned.appendleft(_PinnedTable())
        pinned, count = self._pinned[0], len(rows)
        if pinned.reusable is not None and not self._is_free(pinned):
            pinned.reusable.synchronize()
        pinned.rows[:count] = rows
        self.calls.to_device(self._table.data_ptr(), pinned.address, 8 * ROW * count)
        scratch = None
        if kernel.as_dali and kernel.wide:
            need = size[0] * size[1] * 3 // 2
            if self._scratch is None or self._scratch.shape[1] < need:
                self._scratch = torch.empty((_DITHERED, need), dtype=torch.uint8, device=self._stream.device)
            scratch = self._scratch
        self._first.launch(kernel, self._table, count, size, scratch)
        written = pinned.reusable = torch.cuda.Event()  # type: ignore[no-untyped-call]
        written.record(self._stream)
        self._pinned.rotate(-1)
        return written

    def _is_free(self, pinned: _PinnedTable) -> bool:
        return pinned.reusable is None or self.calls.reached(pinned.reusable)


class _PinnedTable:
    """Pinned host memory from which the GPU copies the table of a launch.

    Attributes:
        rows: int64 [_ROWS, ROW].
        address: of `rows` in host memory.
        reusable: CUDA event after which `rows` may be overwritten; None before the first use.
    """

    def __init__(self) -> None:
        import torch

        self._memory = torch.empty((_ROWS, ROW), dtype=torch.int64, device="cpu", pin_memory=True)
        self.rows, self.address = self._memory.numpy(), self._memory.data_ptr()
        self.reusable: torch.cuda.Event | None = None
