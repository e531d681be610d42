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
from streamvid.video.stored_clip import StoredClip

ENGINES: Final = 7
STOCK_BATCH: Final = 64
"""Stock DALI is asked for no more at once; larger batches are extrapolated: twice the time for twice as many."""
_TRIED: Final = 14
"""Clips by which the better number of threads is found."""


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
        """For a batch, or as much of it as is decoded at once; and DALI's list of those frames, on the GPU."""
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


def finished(decoder: GpuDecoder, work: Sequence[Sequence[EncodedSlice]]) -> list[float]:
    """When each batch was ready, in seconds; one batch ahead, as the loaders do it."""
    started = time.perf_counter()
    begun: list[Callable[[], list[Any]]] = []
    times = []
    for batch in [*work, None]:
        if batch is not None:
            begun.append(decoder.submit(batch))
        if len(begun) > 1 or (batch is None and begun):
            begun.pop(0).result()
            times.append(time.perf_counter() - started)
    return times


def our_seconds(decoder: GpuDecoder, work: Sequence[Sequence[EncodedSlice]]) -> float:
    """Seconds per batch."""
    return finished(decoder, work)[-1] / len(work)


class Limit:
    """Decoders that stay open, one per engine, fed as fast as they take it."""

    def __init__(self, clip: StoredClip) -> None:
        import PyNvVideoCodec as nvc  # noqa: N813

        codec = {"h264": nvc.cudaVideoCodec.H264, "hevc": nvc.cudaVideoCodec.HEVC}[clip.codec]
        self._packet = nvc.PacketData
        self._pool = ThreadPoolExecutor(ENGINES)
        self._decoders = [
            nvc.CreateDecoder(gpuid=0, codec=codec, usedevicememory=True, maxwidth=clip.width, maxheight=clip.height)
            for _ in range(ENGINES)
        ]

    def seconds(self, work: Sequence[EncodedSlice]) -> float:
        """For all packets of the slices, cut into as many streams of as many packets as there are engines."""
        packets: list[bytes] = []
        starts: list[int] = []
        for part in work:
            settings = parameter_sets(part.codec, part.stsd)
            mine = to_annex_b(part.data, part.sizes, settings.length_size)
            starts.append(len(packets))
            packets += [settings.sets + mine[0], *mine[1:]]
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


class Memory:
    """The most that the GPU has less than at the start, sampled while it is open."""

    def __enter__(self) -> Memory:
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
