"""CUDA errors that a process cannot survive: after an illegal address, an uncorrectable ECC error or the loss of the
device, each later call of the process fails, whatever it is. It has to end, for its launcher to start it again.

An error in the loop ends it. But destructors may hang then, the program may catch the error, or the loop may wait for
something else, so the process is also ended independently of these.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import logging
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

from streamvid.errors import GpuLostError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_TICK_S: Final = 0.5
"""Seconds between two looks at the GPU."""
_END_S: Final = 8.0
"""Seconds from the look that finds it lost to the end of the process; and one more if C++ hangs behind Python's end."""
_STDERR: Final = 2
_HARMLESS: Final = (0, 4, 600, *range(900, 911))
"""What the driver may answer: success, it is shutting down, not ready, and errors of graphs that are captured."""
_RELAXED: Final = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: what this thread calls spoils no graph that another captures."""

log = logging.getLogger(__name__)


def lost(device_id: int) -> str | None:
    """The error with which this process has lost a GPU; None if it has not. Does not wait for work on the GPU."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        driver, event = _probe(device_id)
    except RuntimeError as error:
        return None if "out of memory" in str(error) else str(error).strip().partition("\n")[0]
    mode = ctypes.c_int(_RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    status = driver.cuEventQuery(ctypes.c_void_p(event.cuda_event))
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if status in _HARMLESS:
        return None
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    return f"{(name.value or b'error').decode()}, {status}"


@cache
def _probe(device_id: int) -> tuple[ctypes.CDLL, torch.cuda.Event]:
    """The driver, and a completed event: querying it shows whether the context still works."""
    import torch

    with torch.cuda.device(device_id):
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.Stream(device_id))  # type: ignore[no-untyped-call]
    return ctypes.CDLL("libcuda.so.1"), event


def raise_if_lost(device_id: int | None, error: BaseException) -> None:
    """After an error, check whether this process has lost the GPU, in which case the process is ended.

    Raises:
        GpuLostError: the GPU is lost.
    """
    if device_id is not None and not isinstance(error, GpuLostError) and (cause := lost(device_id)) is not None:
        _ENDING.begin(device_id, cause)
        raise GpuLostError(f"every CUDA call of this process on GPU {device_id} fails ({cause})") from error


class GpuWatch:
    """Watches the GPU of a loader, from its first batch until it is closed or dropped, and ends the process within 10 s
    when the GPU is lost.

    Args:
        device_id: the GPU's number; None: no GPU is watched.
        where: a bound method, held by a weak reference, that describes the run's position. Called in any thread.
    """

    def __init__(self, device_id: int | None, where: Callable[[], str]) -> None:
        self.device_id, self._where = device_id, weakref.WeakMethod(where)
        self._stop: threading.Event | None = None

    @property
    def place(self) -> str:
        """The run's position, for messages."""
        return "" if (where := self._where()) is None else f"; the run stands {where()}"

    def over(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches, and watch the GPU during the iteration.

        Raises:
            GpuLostError: for any error due to the loss of the GPU, with the run's position.
        """
        return batches if self.device_id is None else self._over(batches, self.device_id)

    def close(self) -> None:
        """Stop watching."""
        if self._stop is not None:
            self._stop.set()
            self._stop = None
            _ENDING.watches.discard(self)

    def _over(self, batches: Iterator[T], device_id: int) -> Iterator[T]:
        if self._stop is None:
            self._stop = threading.Event()
            weakref.finalize(self, self._stop.set).atexit = False
            _ENDING.watches.add(self)
            _ENDING.catch_terminate()
            threading.Thread(
                target=_look, args=(device_id, self._stop), name="streamvid-gpu-watch", daemon=True
            ).start()
        try:
            yield from batches
        except Exception as error:
            cause = str(error) if isinstance(error, GpuLostError) else lost(device_id)
            if cause is None:
                raise
            _ENDING.begin(device_id, cause)
            raise GpuLostError(f"GPU {device_id} is lost to this process, which ends ({cause}){self.place}") from error


def _look(device_id: int, stop: threading.Event) -> None:
    while not stop.wait(_TICK_S):
        if (cause := lost(device_id)) is not None:
            _ENDING.begin(device_id, cause)
            return


class _Ending:
    """The ending of this process, global like the GPU's context, which all loaders share.

    Attributes:
        watches: the watches of all active loaders.
    """

    def __init__(self) -> None:
        self.watches: weakref.WeakSet[GpuWatch] = weakref.WeakSet()
        self._told = threading.Lock()
        self._handler: object = None

    def begin(self, device_id: int, cause: str) -> None:
        """Log that the process ends, and make sure that it does within `_END_S`, even if little of it still works. Only
        the first call has an effect."""
        if not self._told.acquire(blocking=False):
            return
        # In C, without the GIL; after the interpreter's end, by the kernel.
        faulthandler.dump_traceback_later(_END_S, exit=True, file=_STDERR)
        signal.setitimer(signal.ITIMER_REAL, _END_S + 1)
        places = "".join(watch.place for watch in self.watches if watch.device_id == device_id)
        log.critical(
            "GPU %d is lost to this process, which ends (%s)%s: go on from the last state saved",
            device_id, cause, places,
        )  # fmt: skip

    def catch_terminate(self) -> None:
        """Make C++ call `begin` before it aborts, because DALI throws in destructors when the GPU is lost."""
        if self._handler is not None:
            return
        kind = ctypes.CFUNCTYPE(None)
        try:
            set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
        except (OSError, AttributeError):
            return
        set_terminate.restype, set_terminate.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

        def terminate() -> None:
            for device_id in {watch.device_id for watch in self.watches}:
                if device_id is not None and (cause := lost(device_id)) is not None:
                    self.begin(device_id, cause)
            kind(before)()

        self._handler = kind(terminate)
        before = set_terminate(ctypes.cast(self._handler, ctypes.c_void_p))
        # Python code cannot run after the interpreter's end.
        atexit.register(set_terminate, before)


_ENDING: Final = _Ending()
