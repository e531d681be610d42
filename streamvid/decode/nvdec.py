"""Persistent decode sessions, fed with packets by a worker thread, or two, for each NVDEC engine of the chip.

DALI opens a decoder for every stream whose size is not in its decoder cache, and waits for the last stream of a batch
before it starts the next batch. Here sessions stay open for the whole run, engines take jobs from a queue
(`streamvid.decode.job_queue`) across batches, and idle CPU cores assist (`streamvid.decode.cpu_assist`). A kernel reads
the surfaces and writes pixels directly to their destinations (`streamvid.decode.surface_target`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np

from streamvid.color.surfaces import Kernel, Window, clip_params
from streamvid.color.tags import Color, ColorOption
from streamvid.decode.base import Pending
from streamvid.decode.cpu_assist import CpuAssistWorker
from streamvid.decode.cuda_calls import CudaCalls
from streamvid.decode.deadline import Pace
from streamvid.decode.decode_job import JobGroup
from streamvid.decode.engine_threads import EngineThreads, Worker
from streamvid.decode.gop_jobs import split_at_idr
from streamvid.decode.job_queue import DecodeQueue
from streamvid.decode.nvdec_library import Caps, NvdecLibrary, native_library
from streamvid.decode.nvdec_worker import NvdecWorker
from streamvid.decode.session_key import SessionKey, surface_form
from streamvid.decode.surface_queue import FirstLaunches, SurfaceQueue, loader_stream
from streamvid.decode.surface_target import SurfaceTarget, Writes, full_size, make_targets
from streamvid.errors import InputError, VideoError
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    import torch

NVDEC_ENGINES: Final = 7
"""Engines of an H100 or H200, for drivers that do not say."""
_NVDEC_LIBRARY: Final = "libnvcuvid.so.1"
_QUEUED: Final = 16
"""Slices whose jobs are queued together: idle engines do not wait until a whole batch is split."""
_MEMORY_SHARE: Final = 32
"""All sessions together take at most 1/32 of the GPU's memory."""

log = logging.getLogger(__name__)


def load_nvdec() -> None:
    """Load the driver's NVDEC library, which PyNvVideoCodec and DALI use.

    Raises:
        InputError: the library is missing, as in containers without the driver capability `video`.
    """
    try:
        ctypes.CDLL(_NVDEC_LIBRARY)
    except OSError as error:
        raise InputError(
            f"NVDEC cannot be used, as the driver's {_NVDEC_LIBRARY} cannot be loaded ({error}): in a container set "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video, on a machine install the driver's libnvidia-decode, or "
            "give device='cpu'"
        ) from None


def missing_packages() -> list[str]:
    """Names of the packages that decode sessions need and that are not installed."""
    needed = ("triton",) if native_library() is not None else ("PyNvVideoCodec", "triton")
    return [name for name in needed if importlib.util.find_spec(name) is None]


@cache
def decoder_caps(device_id: int, codec: str) -> Caps:
    """NVDEC's capabilities for a codec at 8 bits and 4:2:0. The driver is asked once per codec: a second query by
    PyNvVideoCodec, made while a session hung, has crashed.

    Raises:
        Exception: the driver's query failed, or PyNvVideoCodec does not load.
    """
    if (library := native_library()) is not None:
        return library.caps(device_id, codec)
    import PyNvVideoCodec as nvc  # noqa: N813

    said = nvc.GetDecoderCaps(gpuid=device_id, codec=getattr(nvc.cudaVideoCodec, codec.upper()))
    sizes = [said[f"{side}_{end}"] for end in ("min", "max") for side in ("width", "height")]
    return Caps(bool(said["supported"]), said.get("num_decoder_engines") or 0, *sizes)


def open_session_pool(device_id: int, *, threads: int = 0) -> NvdecSessionPool | None:
    """A pool of decode sessions of the native module, or of PyNvVideoCodec if the native module was not built; None
    (and one warning) if Triton or the chosen decoder does not work on this machine.

    Args:
        device_id: the GPU's number.
        threads: number of CPU cores that may be used. One per engine and one for the caller stay free; the others
            assist.
    """
    if missing := missing_packages():
        _warn_of_dali(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed")
        return None
    library = native_library()
    try:
        engines = decoder_caps(device_id, "h264").engines or NVDEC_ENGINES
        cores = max(0, threads - engines - 1)
        pool = NvdecSessionPool(device_id=device_id, engines=engines, cpu_workers=cores, library=library)
        # Triton compiles kernels with the machine's C compiler, which may be missing: try one.
        pool.compile(Kernel("uint8", wide=False))
        if library is None:
            _warn_of_python()
        return pool
    except Exception as error:
        what = "PyNvVideoCodec" if library is None else "the native module"
        _warn_of_dali(f"{what} or Triton does not work here ({' '.join(str(error).split())[:300]})")
        return None


@cache
def _warn_of_python() -> None:
    log.warning(
        "the native module of NVDEC was not built, or does not load: PyNvVideoCodec feeds NVDEC in its place, which "
        "takes more CPU and opens a session for each frame size. Install a C compiler, then streamvid again"
    )


@cache
def _warn_of_dali(reason: str) -> None:
    """Log once per process: a loader opens a pool for its preflight check, and another to decode."""
    log.warning(
        "%s: DALI's decoder takes the place of decode sessions, 3 to 48 times slower, with clipped colours. CPU "
        "cores decode the clips that DALI decodes wrongly. `pip install PyNvVideoCodec triton`, and see "
        "`streamvid doctor`",
        reason,
    )


class NvdecSessionPool:
    """Decodes slices on all NVDEC engines, with threads that each own persistent sessions.

    Args:
        device_id: the GPU's number.
        engines: number of NVDEC engines of the chip.
        cpu_workers: number of threads that decode on the CPU while the engines have a backlog.
        library: the native module, for which every two engines share a spare thread: while an engine's thread drains
            its session to reconfigure it for another frame size, the engine decodes for the spare's. None:
            PyNvVideoCodec decodes.

    Attributes:
        native: whether the native module decodes.
        stream: CUDA stream on which output memory is allocated. It is the pool's own, because an allocation would have
            to wait for memory that was freed on another stream.
    """

    def __init__(
        self,
        *,
        device_id: int,
        engines: int,
        cpu_workers: int = 0,
        library: NvdecLibrary | None = None,
    ) -> None:
        import torch

        self._turn = nullcontext if library is None else library.turn
        self.native, self.stream = library is not None, loader_stream(device_id)
        self._calls = CudaCalls(self.stream.cuda_stream)
        self._queue, self._first = DecodeQueue(engines=engines), FirstLaunches()
        memory = torch.cuda.get_device_properties(device_id).total_memory
        spares, pace = 0 if library is None or not engines else max(1, engines // 2), Pace()
        limit = memory // _MEMORY_SHARE // max(1, engines + spares)
        engine = partial(NvdecWorker, device_id, self._queue, pace, self._first, memory_limit=limit, library=library)
        core = partial(CpuAssistWorker, loader_stream(device_id), self._queue, pace, self._first)
        makers: dict[str, Callable[[], Worker]] = {f"nvdec-{n}": engine for n in range(engines)}
        makers |= {f"nvdec-spare-{n}": partial(engine, spare=True) for n in range(spares)}
        makers |= {f"cpu-assist-{n}": core for n in range(cpu_workers)}
        self._threads = EngineThreads(self._queue, makers, pace)
        # Runs without `close`, too: a pool that was garbage-collected frees its sessions, and no thread may outlive the
        # interpreter, because one that returns from the driver after that crashes the process.
        self._finalize = weakref.finalize(self, self._threads.close)

    def compile(self, kernel: Kernel) -> None:
        """Compile a kernel, which takes seconds, before an engine needs it."""
        import torch

        key = SessionKey("", 4, 4, 10 if kernel.wide else 8, "")
        with torch.cuda.device(self.stream.device), torch.cuda.stream(self.stream):
            surface, pixels = (torch.zeros(256, dtype=torch.uint8, device=self.stream.device) for _ in range(2))
            white = Color("bt601", True, (0, 0))
            params = clip_params(key.form, white, start=(0, 0), end=(4, 4), size=(4, 4), strides=(16, 4, 1))
            writes = [[Writes(kernel, (4, 4), 0, np.array([[pixels.data_ptr()]]))]]
            (target,) = make_targets(self.stream, writes, [Window(0, 4, 0, 4)], [params], [surface, pixels])
            queue = SurfaceQueue(self.stream, self._first)
            found = np.array([[surface.data_ptr(), key.width, key.luma_bytes]])
            queue.add(target, np.zeros(1, dtype=np.int32), found)
            queue.launch()
            queue.synchronize()

    def write(self, slices: Sequence[EncodedSlice], targets: Sequence[SurfaceTarget]) -> Pending[None]:
        """Begin to decode a batch.

        Args:
            slices: of clips that `streamvid.decode.gpu.decode_support` routes to NVDEC.
            targets: the destination of each slice's frames.

        Returns:
            the pending batch: `result` waits until all frames are written. It raises VideoError if a slice does not
            decode to its frames or its engine is stuck, and GpuLostError if many engines are stuck.

        Raises:
            VideoError: a slice is damaged; raised after jobs of the batch that were already queued are done.
        """
        group = JobGroup(1, reached=self._calls.reached)  # one job in advance, which is done when all others are queued
        try:
            for at in range(0, len(slices), _QUEUED):
                part = slice(at, at + _QUEUED)
                with self._turn():
                    self._queue.put(split_at_idr(slices[part], targets[part], native=self.native, joined=group))
        except VideoError as error:
            group.fail(error)
            group.wait()  # raises it
        group.finish()
        return Pending(group.wait, group.done)

    def submit(self, slices: Sequence[EncodedSlice], *, color: ColorOption = "bt601") -> Pending[list[torch.Tensor]]:
        """Begin to decode a batch to RGB at full size, as `write`.

        Args:
            slices: as in `write`.
            color: the transform's option.

        Returns:
            the pending frames: for each slice a uint8 tensor [frames, height, width, 3] on the GPU. All are views of
            one allocation, which must not be freed before the work that reads it is done.
        """
        import torch

        with self._turn(), torch.cuda.stream(self.stream):
            frames, targets = full_size(slices, [surface_form(encoded) for encoded in slices], color, self.stream)
        written = self.write(slices, targets)

        def result() -> list[torch.Tensor]:
            written.result()
            return frames

        return Pending(result, written.done)

    def refuses(self, encoded: EncodedSlice) -> bool:
        """Whether the engines could not decode an earlier slice of this clip."""
        return self._queue.refuses(encoded)

    def waiting(self, change: int) -> None:
        """See `streamvid.decode.job_queue.DecodeQueue.waiting`."""
        self._queue.waiting(change)

    def close(self) -> None:
        """Decode the submitted batches, then close the sessions and end the threads."""
        self._finalize.detach()
        self._threads.close(None)
