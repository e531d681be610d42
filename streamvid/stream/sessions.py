"""Hardware decoders that stay open: PyNvVideoCodec's, one for each engine of the chip, fed with packets.

DALI opens a hardware decoder for every stream of a batch where it does not find one in its cache, and waits for the
last stream of a batch before it begins the next. Here decoders live as long as the run, and batches follow one
another in each engine's queue. Colours are made as DALI makes them: `streamvid.stream.nv12`.
"""

from __future__ import annotations

import importlib.util
import logging
import queue
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streamvid.errors import VideoError
from streamvid.stream import nv12
from streamvid.video.annexb import CODECS, begins_anew, parameters, to_annex_b
from streamvid.video.slice import EncodedSlice

NVDEC_ENGINES: Final = 7
"""Of an H200, where the driver does not say."""
MAX_KINDS: Final = 4
"""Kinds of streams that an engine keeps decoders open for: each takes the memory of some 10 to 20 frames."""
_STAGED: Final = 32
"""Frames that are converted at once: enough to be worth a kernel's start, few enough to need little memory."""

log = logging.getLogger(__name__)

Kind = tuple[str, int, int, bytes]
"""Codec, width, height and parameter sets: what one decoder decodes. Streams that keep other numbers of pictures come
out wrong from a decoder that was opened for fewer."""


def open_sessions(device_id: int) -> Sessions | None:
    """Decoders that stay open, if PyNvVideoCodec and Triton are installed and work on this machine; else None."""
    if any(importlib.util.find_spec(name) is None for name in ("PyNvVideoCodec", "triton")):
        return None
    try:
        import PyNvVideoCodec as nvc  # noqa: N813
        import torch

        caps = nvc.GetDecoderCaps(gpuid=device_id, codec=nvc.cudaVideoCodec.H264)
        # Triton compiles its kernels with the C compiler of the machine, if there is one.
        frame = torch.zeros((1, 3, 2), dtype=torch.uint8, device=f"cuda:{device_id}")
        with torch.cuda.device(device_id):
            nv12.to_rgb(frame, frame.new_empty((1, 2, 2, 3)), full_range=False)
            torch.cuda.synchronize()
    except Exception as error:
        log.warning("DALI decodes, as PyNvVideoCodec does not work here: %s", " ".join(str(error).split())[:300])
        return None
    return Sessions(device_id=device_id, engines=caps.get("num_decoder_engines") or NVDEC_ENGINES)


def takes(codec: str, stsd: bytes, width: int, height: int) -> bool:
    """Whether a clip is one for these decoders: H.264 or HEVC with 8 bits and even sides.

    Args:
        codec, stsd: as in docs/format.md.
        width, height: of decoded frames, in pixels.
    """
    if codec not in CODECS or width % 2 or height % 2:
        return False
    try:
        return parameters(codec, stsd).bits == 8
    except ValueError:
        return False


@dataclass(frozen=True)
class _Run:
    """Packets of a slice, from an IDR picture to the next, or to the end: what one engine can decode by itself.

    Attributes:
        part: the slice.
        out: uint8 tensor [frames, height, width, 3] on the GPU, to be written: all wanted frames of the slice.
        packets: in decode order, with the parameter sets before the first.
        anew: the first is an IDR picture.
        ranks: of each packet, as in `EncodedSlice`.
    """

    part: EncodedSlice
    out: Any
    packets: list[bytes]
    anew: bool
    ranks: list[int]


@dataclass(frozen=True)
class _Job:
    """Runs of one kind for one engine; `done` is given None, or what went wrong."""

    runs: Sequence[_Run]
    done: Future[None]

    @property
    def packets(self) -> int:
        """How many it takes to decode."""
        return sum(len(run.packets) for run in self.runs)


class Sessions:
    """Decodes slices in as many threads as the chip has engines, each with decoders of its own that stay open.

    Args:
        device_id: the GPU's number.
        engines: decoding engines of the chip.
    """

    def __init__(self, *, device_id: int, engines: int) -> None:
        import torch

        self._device_id = device_id
        self._stream = torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]
        self._engines = [_Waiting() for _ in range(engines)]
        self._threads = [
            threading.Thread(target=_work, args=(device_id, waiting), name=f"streamvid-nvdec-{number}", daemon=True)
            for number, waiting in enumerate(self._engines)
        ]
        for thread in self._threads:
            thread.start()
        # Nobody is made to call `close`: threads must not keep decoders open that nobody can use any more.
        self._end = weakref.finalize(self, _end, self._engines)

    def submit(self, slices: Sequence[EncodedSlice]) -> Callable[[], list[Any]]:
        """Begin to decode a batch.

        Returns:
            a function that waits for the frames: per slice a uint8 tensor [frames, height, width, 3] on the GPU;
            those of one kind are parts of the same memory, which must not be let go before what reads it is done.
            It raises VideoError if a slice does not decode to its frames.
        """
        import torch

        frames: list[Any] = [None] * len(slices)
        kinds: dict[Kind, list[int]] = {}
        for number, part in enumerate(slices):
            kinds.setdefault(_kind(part), []).append(number)
        for (_, width, height, _), numbers in kinds.items():
            counts = [len(slices[n].frames) for n in numbers]
            # Of a stream of its own: memory that was in use on another stream would have to be waited for.
            with torch.cuda.stream(self._stream):
                whole = torch.empty((sum(counts), height, width, 3), dtype=torch.uint8, device=self._stream.device)
            for n, tensor in zip(numbers, torch.split(whole, counts), strict=True):
                frames[n] = tensor
        # All are looked at before the first is begun: of a batch with a bad slice nothing is.
        runs = [[run for n in numbers for run in _runs(slices[n], frames[n])] for numbers in kinds.values()]
        pending = [future for of_kind in runs for future in self._give(of_kind)]

        def wait() -> list[Any]:
            for future in pending:
                future.result()
            return frames

        return wait

    def _give(self, runs: Sequence[_Run]) -> list[Future[None]]:
        """Share runs of one kind among the engines: the longest first, each to where least waits (Graham 1969)."""
        shares: list[list[_Run]] = [[] for _ in self._engines]
        loads = [waiting.packets for waiting in self._engines]
        for run in sorted(runs, key=lambda run: -len(run.packets)):
            engine = loads.index(min(loads))
            loads[engine] += len(run.packets)
            shares[engine].append(run)
        return [waiting.put(share) for waiting, share in zip(self._engines, shares, strict=True) if share]

    def close(self) -> None:
        """End the threads and close the decoders, after what is in work."""
        self._end()
        for thread in self._threads:
            thread.join()


class _Waiting:
    """What waits for one engine."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.packets = 0

    def put(self, runs: Sequence[_Run]) -> Future[None]:
        """Add a job; the future ends with it."""
        job = _Job(runs, Future())
        with self._lock:
            self.packets += job.packets
        self._jobs.put(job)
        return job.done

    def end(self) -> None:
        """No more will come."""
        self._jobs.put(None)

    def take(self) -> _Job | None:
        """The next job, None after the last."""
        return self._jobs.get()

    def finished(self, job: _Job) -> None:
        """Count it no longer."""
        with self._lock:
            self.packets -= job.packets


def _end(engines: Sequence[_Waiting]) -> None:
    for waiting in engines:
        waiting.end()


def _work(device_id: int, waiting: _Waiting) -> None:
    """An engine's thread."""
    import torch

    engine: _Engine | None = None
    while (job := waiting.take()) is not None:
        try:
            if engine is None:
                engine = _Engine(device_id, torch.cuda.Stream(device_id))  # type: ignore[no-untyped-call]
            engine.decode(job.runs)
            job.done.set_result(None)
        except Exception as error:
            # A decoder that failed may hold frames of the failed job.
            engine = None
            job.done.set_exception(error if isinstance(error, VideoError) else _sentence(error, job.runs))
        finally:
            waiting.finished(job)
            # Until the next comes, its frames must not be kept.
            del job


class _Engine:
    """One engine's decoders, by kind, used by one thread."""

    def __init__(self, device_id: int, stream: Any) -> None:
        self._device_id, self._stream = device_id, stream
        self._decoders: OrderedDict[Kind, Any] = OrderedDict()

    def decode(self, runs: Sequence[_Run]) -> None:
        """Decode runs of one kind, one after the other, as one stream."""
        import torch

        part = runs[0].part
        with torch.cuda.device(self._device_id), torch.cuda.stream(self._stream):
            collector = _Collector(runs)
            decoder = self._decoder(_kind(part))
            for number, run in enumerate(runs):
                if number and not run.anew:
                    # A CRA picture behind another run is not taken for a beginning, and its pictures get mixed up.
                    collector.take(decoder.Decode(_packet(b"", 0)))
                for packet, rank in zip(run.packets, run.ranks, strict=True):
                    collector.take(decoder.Decode(_packet(packet, number << 32 | rank)))
            collector.take(decoder.Decode(_packet(b"", 0)))
            collector.finish()
            self._stream.synchronize()

    def _decoder(self, kind: Kind) -> Any:
        if kind in self._decoders:
            self._decoders.move_to_end(kind)
        else:
            while len(self._decoders) >= MAX_KINDS:
                self._decoders.popitem(last=False)
            try:
                self._decoders[kind] = self._open(kind)
            except Exception:
                if not self._decoders:
                    raise
                # The driver has no room for another: the others make some.
                self._decoders.clear()
                self._decoders[kind] = self._open(kind)
        return self._decoders[kind]

    def _open(self, kind: Kind) -> Any:
        import PyNvVideoCodec as nvc  # noqa: N813

        codec, width, height, _ = kind
        return nvc.CreateDecoder(
            gpuid=self._device_id,
            codec={"h264": nvc.cudaVideoCodec.H264, "hevc": nvc.cudaVideoCodec.HEVC}[codec],
            cudastream=self._stream.cuda_stream,
            usedevicememory=True,
            maxwidth=width,
            maxheight=height,
        )


class _Collector:
    """Puts decoded frames where they belong: each comes with the time of its packet, which says which it is."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        self._runs = runs
        self._places: dict[int, tuple[int, int]] = {}
        for number, run in enumerate(runs):
            rows = {rank: row for row, rank in enumerate(run.part.frames.tolist())}
            self._places |= {number << 32 | rank: (number, rows[rank]) for rank in run.ranks if rank in rows}
        self._staged: list[tuple[int, int]] = []
        self._stage: Any = None

    def take(self, frames: Sequence[Any]) -> None:
        """Frames that a decoder has handed out; it uses their memory again."""
        import torch
        from torch.utils.dlpack import from_dlpack

        for frame in frames:
            place = self._places.pop(frame.getPTS(), None)
            if place is None:
                continue
            picture = from_dlpack(frame)
            part = self._runs[place[0]].part
            wanted = (part.height * 3 // 2, part.width)
            if tuple(picture.shape) != wanted or picture.dtype != torch.uint8:
                raise VideoError(
                    f"clip {part.name} decodes to pictures of {picture.dtype} {list(picture.shape)}, "
                    f"its dataset says {list(wanted)}: pack it again"
                )
            if self._stage is None:
                self._stage = torch.empty((_STAGED, *wanted), dtype=torch.uint8, device=picture.device)
            # Frames that lie one behind the other in the result are converted together.
            if self._staged and (self._staged[-1][0], self._staged[-1][1] + 1) != place:
                self._convert()
            self._stage[len(self._staged)].copy_(picture, non_blocking=True)
            self._staged.append(place)
            if len(self._staged) == _STAGED:
                self._convert()

    def _convert(self) -> None:
        if self._staged:
            number, row = self._staged[0]
            count = len(self._staged)
            run = self._runs[number]
            out = run.out[row : row + count]
            nv12.to_rgb(self._stage[:count], out, full_range=run.part.full_range)
            self._staged.clear()

    def finish(self) -> None:
        """Convert the rest. Raises VideoError if a frame is missing."""
        self._convert()
        if self._places:
            names = sorted({self._runs[number].part.name for number, _ in self._places.values()})
            raise VideoError(
                f"{len(self._places)} frames of the clips {', '.join(names[:8])} do not decode: "
                "check them with `streamvid verify --decode`"
            )


def _kind(part: EncodedSlice) -> Kind:
    return part.codec, part.width, part.height, parameters(part.codec, part.stsd).sets


def _runs(part: EncodedSlice, out: Any) -> list[_Run]:
    """Cut a slice where it begins anew, so that a few long slices keep all engines busy.

    Raises:
        VideoError: its packets are no NAL units, or a wanted frame is none of theirs.
    """
    try:
        settings = parameters(part.codec, part.stsd)
        packets = to_annex_b(part.data, part.sizes, settings.length_size)
    except ValueError as error:
        raise VideoError(f"clip {part.name} is damaged ({error}): check it with `streamvid verify`") from error
    ranks = part.ranks.tolist()
    lost = set(part.frames.tolist()) - set(ranks)
    if lost:
        raise VideoError(
            f"clip {part.name} has no packet for {len(lost)} of its frames: check it with `streamvid verify`"
        )
    anew = [begins_anew(packet, part.codec) for packet in packets]
    cuts = [n for n in range(len(packets)) if n == 0 or anew[n]]
    runs = []
    for start, end in zip(cuts, [*cuts[1:], len(packets)], strict=True):
        first = settings.sets + packets[start]
        runs.append(_Run(part, out, [first, *packets[start + 1 : end]], anew[start], ranks[start:end]))
    return runs


def _packet(data: bytes, time: int) -> Any:
    """What PyNvVideoCodec decodes; without data it is the end of what belongs together."""
    import PyNvVideoCodec as nvc  # noqa: N813

    packet = nvc.PacketData()
    if data:
        # PyNvVideoCodec copies what it is pointed to before `Decode` returns; `data` lives that long.
        packet.bsl_data = np.frombuffer(data, dtype=np.uint8).ctypes.data
    packet.bsl = len(data)
    packet.pts = time
    return packet


def _sentence(error: Exception, runs: Sequence[_Run]) -> VideoError:
    names = ", ".join(sorted({run.part.name for run in runs})[:8])
    made = VideoError(f"NVDEC could not decode some of the clips {names}, …: {' '.join(str(error).split())[:300]}")
    made.__cause__ = error
    return made
