"""Hardware decoders that stay open: PyNvVideoCodec's, one for each engine of the chip, fed with packets.

DALI opens a hardware decoder for every stream of a batch where it does not find one in its cache, and waits for the
last stream of a batch before it begins the next. Here decoders live as long as the run, engines take what waits
(`streamvid.decode.job_queue`), and cores of the CPU that are free help them (`streamvid.decode.cpu_assist`). Colours
are made as DALI makes them: `streamvid.color.nv12`.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

from streamvid.color import nv12
from streamvid.decode.cpu_assist import CpuAssistWorker
from streamvid.decode.decode_job import split_at_idr
from streamvid.decode.job_queue import DecodeQueue
from streamvid.decode.nvdec_worker import NvdecWorker
from streamvid.video.packet_selection import EncodedSlice

NVDEC_ENGINES: Final = 7
"""Of an H200, where the driver does not say."""
_MOST_SECONDS: Final = 10.0
"""That a thread is waited for to end."""
_DECODERS_SHARE: Final = 32
"""All decoders that are open take one part in so many of the GPU's memory at most."""

log = logging.getLogger(__name__)


def open_session_pool(device_id: int, *, threads: int = 0) -> NvdecSessionPool | None:
    """Decoders that stay open, if PyNvVideoCodec and Triton are installed and work on this machine; else None.

    Args:
        device_id: the GPU's number.
        threads: cores that may be used. Each engine needs part of one, and so does the caller; those beyond decode,
            too.
    """
    if any(importlib.util.find_spec(name) is None for name in ("PyNvVideoCodec", "triton")):
        return None
    try:
        import PyNvVideoCodec as nvc  # noqa: N813
        import torch

        caps = nvc.GetDecoderCaps(gpuid=device_id, codec=nvc.cudaVideoCodec.H264)
        # Triton compiles its kernels with the C compiler of the machine, if there is one.
        frame = torch.zeros((1, 3, 2), dtype=torch.uint8, device=f"cuda:{device_id}")
        with torch.cuda.device(device_id):
            place = torch.zeros(1, dtype=torch.int64, device=frame.device)
            nv12.to_rgb(frame, frame.new_empty((1, 2, 2, 3)), place, count=1, full_range=False)
            torch.cuda.synchronize()
        engines = caps.get("num_decoder_engines") or NVDEC_ENGINES
        return NvdecSessionPool(device_id=device_id, engines=engines, spare_cores=max(0, threads - engines - 1))
    except Exception as error:
        log.warning("DALI decodes, as PyNvVideoCodec does not work here: %s", " ".join(str(error).split())[:300])
        return None


class NvdecSessionPool:
    """Decodes slices in as many threads as the chip has engines, each with decoders of its own that stay open.

    Args:
        device_id: the GPU's number.
        engines: decoding engines of the chip.
        spare_cores: threads that decode on the CPU when engines have more to do than they can.
    """

    def __init__(self, *, device_id: int, engines: int, spare_cores: int = 0) -> None:
        import torch

        # Not the current stream: memory that was in use on another stream would have to be waited for.
        self._stream = torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]
        self._waiting = DecodeQueue(engines=engines)
        memory = torch.cuda.get_device_properties(device_id).total_memory
        room = memory // _DECODERS_SHARE // max(1, engines)
        workers: list[tuple[str, NvdecWorker | CpuAssistWorker]] = [
            *((f"nvdec-{n}", NvdecWorker(device_id, self._waiting, room=room)) for n in range(engines)),
            *((f"spare-{n}", CpuAssistWorker(device_id, self._waiting)) for n in range(spare_cores)),
        ]
        self._threads = [
            threading.Thread(target=worker.work, name=f"streamvid-{name}", daemon=True) for name, worker in workers
        ]
        for thread in self._threads:
            thread.start()
        # Nobody is made to call `close`: threads must not keep decoders open that nobody can use any more. When Python
        # ends, they must be gone: one that comes back from the driver then takes the process down.
        self._end = weakref.finalize(self, _end, self._waiting, self._threads)

    def submit(self, slices: Sequence[EncodedSlice]) -> Callable[[], list[Any]]:
        """Begin to decode a batch.

        Args:
            slices: of clips that `streamvid.decode.decode_job.is_supported` takes.

        Returns:
            a function that waits for the frames: per slice a uint8 tensor [frames, height, width, 3] on the GPU;
            those of one size are parts of the same memory, which must not be let go before what reads it is done.
            It raises VideoError if a slice does not decode to its frames.

        Raises:
            VideoError: a slice is damaged; then nothing of the batch is begun.
        """
        import torch

        frames: list[Any] = [None] * len(slices)
        places: list[tuple[Any, int]] = [(None, 0)] * len(slices)
        sizes: dict[tuple[int, int], list[int]] = {}
        for number, part in enumerate(slices):
            sizes.setdefault((part.width, part.height), []).append(number)
        for (width, height), numbers in sizes.items():
            counts = [len(slices[n].frames) for n in numbers]
            with torch.cuda.stream(self._stream):
                whole = torch.empty((sum(counts), height, width, 3), dtype=torch.uint8, device=self._stream.device)
            starts = [0, *accumulate(counts)]
            for n, tensor, start in zip(numbers, torch.split(whole, counts), starts, strict=False):
                frames[n], places[n] = tensor, (whole, start)
        runs = split_at_idr(slices, places)
        self._waiting.put(runs)
        batch = runs[0].batch if runs else None

        def wait() -> list[Any]:
            if batch is not None:
                batch.wait()
            return frames

        return wait

    def close(self) -> None:
        """End the threads and close the decoders, after what is in work."""
        self._end()
        for thread in self._threads:
            thread.join()


def _end(waiting: DecodeQueue, threads: Sequence[threading.Thread]) -> None:
    waiting.end()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_MOST_SECONDS)
