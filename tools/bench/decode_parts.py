"""What `tools.bench.decode` measures: stock DALI, streamvid's decoder, the chip's limit, and memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from streamvid.bitstream.annexb import parameter_sets
from streamvid.bitstream.nal import to_annex_b
from streamvid.decode.dali import DaliDecoder
from streamvid.decode.gpu import GpuDecoder
from streamvid.video.packet_selection import EncodedSlice

ENGINES: Final = 7
STOCK_BATCH: Final = 64
"""The most that stock DALI decodes at once; for larger batches its time is extrapolated in proportion."""
_TRIED: Final = 14
"""Clips that are decoded to find the better number of threads."""


class Stock:
    """`fn.decoders.video` with one stream per sample, with the better of two numbers of threads."""

    def __init__(self, work: Sequence[EncodedSlice]) -> None:
        best = None
        for threads in (ENGINES, 16):
            decoder = DaliDecoder(device_id=0, threads=threads, max_batch=STOCK_BATCH)
            decoder.run(work[:ENGINES])
            taken = _seconds(lambda decoder=decoder: decoder.run(work[:_TRIED]))  # type: ignore[misc]
            if best is None or taken < best[0]:
                best = taken, threads, decoder
        assert best is not None
        _, self.threads, self._decoder = best

    def seconds(self, work: Sequence[EncodedSlice]) -> tuple[float, Any]:
        """Seconds for a batch, extrapolated beyond `STOCK_BATCH`; and DALI's list of the frames decoded, on the GPU."""
        few = work[:STOCK_BATCH]
        started = time.perf_counter()
        out = self._decoder.run(few)
        return (time.perf_counter() - started) * len(work) / len(few), out


def equal(ours: Sequence[Any], stock: Any) -> bool:
    """Whether PyTorch's tensors hold the same, bit for bit, as DALI's list; on the GPU, as there are gigabytes."""
    import torch
    from torch.utils.dlpack import from_dlpack

    return len(ours) == len(stock) and all(torch.equal(mine, from_dlpack(stock[n])) for n, mine in enumerate(ours))


def _seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def seconds_per_batch(decoder: GpuDecoder, work: Sequence[Sequence[EncodedSlice]]) -> float:
    """Decode the batches, the next submitted before one is waited for, as the loaders do it."""
    started = time.perf_counter()
    pending = decoder.submit(work[0])
    for batch in work[1:]:
        following = decoder.submit(batch)
        pending.result()
        pending = following
    pending.result()
    return (time.perf_counter() - started) / len(work)


class Limit:
    """Persistent decode sessions, one per NVDEC engine, fed as fast as they take packets."""

    def __init__(self, *, codec: str, width: int, height: int) -> None:
        import PyNvVideoCodec as nvc  # noqa: N813

        number = {"h264": nvc.cudaVideoCodec.H264, "hevc": nvc.cudaVideoCodec.HEVC}[codec]
        self._packet = nvc.PacketData
        self._pool = ThreadPoolExecutor(ENGINES)
        self._decoders = [
            nvc.CreateDecoder(gpuid=0, codec=number, usedevicememory=True, maxwidth=width, maxheight=height)
            for _ in range(ENGINES)
        ]

    def seconds(self, work: Sequence[EncodedSlice]) -> float:
        """For all packets of the slices, as one stream per engine of about as many packets each."""
        packets: list[bytes] = []
        starts: list[int] = []
        for part in work:
            settings = parameter_sets(part.codec, part.stsd)
            mine = to_annex_b(part.data, part.sizes, settings.length_size)
            starts.append(len(packets))
            packets += [settings.annex_b + mine[0], *mine[1:]]
        cuts = [
            starts[min(int(np.searchsorted(starts, n * len(packets) // ENGINES)), len(starts) - 1)]
            for n in range(1, ENGINES)
        ]
        shares = [packets[a:b] for a, b in zip([0, *cuts], [*cuts, len(packets)], strict=True)]

        def run(decoder: Any, share: list[bytes]) -> None:
            for data in share:
                decoder.Decode(self._made(data))
            decoder.Decode(self._made(b""))

        started = time.perf_counter()
        list(self._pool.map(run, self._decoders, shares))
        return time.perf_counter() - started

    def _made(self, data: bytes) -> Any:
        packet = self._packet()
        if data:
            packet.bsl_data = np.frombuffer(data, dtype=np.uint8).ctypes.data
        packet.bsl = len(data)
        return packet


class MemoryWatch:
    """`taken`: the most that the GPU had less free than at the start, in bytes, sampled every 5 ms."""

    def __enter__(self) -> MemoryWatch:
        import torch

        torch.cuda.empty_cache()
        self._free = least = torch.cuda.mem_get_info()[0]
        self.taken = 0
        self._stop = threading.Event()

        def watch() -> None:
            nonlocal least
            while not self._stop.wait(0.005):
                least = min(least, torch.cuda.mem_get_info()[0])
                self.taken = self._free - least

        self._thread = threading.Thread(target=watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
