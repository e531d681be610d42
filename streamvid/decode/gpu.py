"""Decoding on a GPU: each slice goes to a persistent NVDEC session, to DALI's video or image decoder, or to the CPU."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from streamvid.arrays import UInt8
from streamvid.bitstream.packets import packets_in
from streamvid.bitstream.session_fault import has_headers, needs_packets, packets_fault, session_fault
from streamvid.color.dali_rgb import recoloured
from streamvid.color.render import PlaneFormat
from streamvid.color.tags import ColorOption
from streamvid.decode.base import FrameSink, GpuFrames, Pending
from streamvid.decode.cpu import CpuDecoder, InThreadDecoder
from streamvid.decode.dali import DaliDecoder, check_packets
from streamvid.decode.dali_cache_guard import SHARED_GUARD
from streamvid.decode.deadline import Pace
from streamvid.decode.deadline_threads import DeadlineThreads
from streamvid.decode.images import ImageBatches, pipelines_for
from streamvid.decode.isolated import IsolatedDecoder
from streamvid.decode.lost_gpu import raise_if_lost
from streamvid.decode.nvdec import NVDEC_ENGINES, open_session_pool
from streamvid.decode.session_key import stream_bit_depth, stream_headers, surface_form
from streamvid.decode.surface_target import SurfaceTarget
from streamvid.errors import VideoError
from streamvid.video.gpu_support import Route, Support, support
from streamvid.video.packet_selection import EncodedSlice
from streamvid.workers import START_S

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

Made = TypeVar("Made")
Tool = TypeVar("Tool")


class PictureSink(Protocol):
    """Takes the frames of a batch from all decoders, and writes them to their destinations on the GPU. The pool's CUDA
    stream is the current one in all calls."""

    def targets(self, numbers: Sequence[int], forms: Sequence[PlaneFormat]) -> list[SurfaceTarget]:
        """The targets of the slices that decode sessions decode.

        Args:
            numbers: the slices' numbers in the batch.
            forms: the planes of their surfaces.
        """

    def sinks(self, numbers: Sequence[int]) -> Sequence[FrameSink]:
        """Frame sinks for the slices that the CPU decodes, by their numbers in the batch."""

    def upload(self) -> None:
        """Copy the frames in the sinks to the GPU; returns when they are there."""

    def put_rgb(self, made: Mapping[int, GpuFrames]) -> None:
        """Take the frames of slices that DALI decodes, with their colours corrected, by the slices' numbers."""


_PIX_FMTS: Final = {8: "yuv420p", 10: "yuv420p10le", 12: "yuv420p12le"}
_DITHER_BLOCK: Final = 4
"""NVDEC dithers 10 bits to 8 in blocks of 4×4 samples of the coded size. `streamvid.color.nv12_kernel` does the same
only for frames whose sides are multiples of this, as it has no samples beyond the frame."""


@lru_cache(maxsize=4096)
def decode_support(codec: str, stsd: bytes, width: int, height: int, *, native: bool) -> Support:
    """The clip's row in the table of `streamvid.video.gpu_support`, and so its route.

    The sample description gives the bit depth, and the faults of decode sessions with this stream. The preflight check
    has seen to chroma (4:2:0) and to the table's other conditions.

    Args:
        codec, stsd: as in docs/format.md.
        width, height: of decoded frames, in pixels.
        native: whether decode sessions are those of the native module.
    """
    try:
        pix_fmt = _PIX_FMTS.get(stream_bit_depth(codec, stsd), "unknown")
        headers = stream_headers(codec, stsd)
        has = has_headers(codec, headers)
        reason = session_fault(codec, headers, width, height, native=native) if has else "it has no headers"
    except ValueError:  # a damaged row must not pass
        return Support(Route.CPU, "its sample description is damaged")
    row = support(codec, pix_fmt, width, height)
    if codec == "vp9" and native and (width % 2 or height % 2):
        reason = "the native module decodes some VP9 of odd sizes wrongly"
    return Support(Route.CPU, reason) if reason and row.route is Route.NVDEC else row


class GpuDecoder:
    """Decodes images with DALI (`streamvid.decode.images`), and videos with NVDEC: by persistent decode sessions
    (`streamvid.decode.nvdec`) where they work and support the clip, by DALI's `fn.decoders.video` otherwise.

    For DALI, slices with the same parameter sets are joined into one stream per engine of an H200, and at most one per
    thread. More streams gain next to nothing at 720p, and lose at 1080p. The CPU decodes clips whose size DALI's
    decoder cache would mix up with another (`streamvid.decode.dali_cache_guard`), clips that sessions could not decode,
    and clips that the table or `submit`'s caller assigns to it.

    Args:
        device_id: the GPU's number.
        threads: CPU threads.
        max_batch: most slices per batch.
        sessions: whether to open decode sessions; False: DALI decodes instead.
        isolate: whether the CPU decodes in child processes, images other than JPEGs, too; then no cores assist the
            engines.

    Attributes:
        sessions: the decode sessions; None if DALI decodes instead.
    """

    def __init__(
        self,
        *,
        device_id: int,
        threads: int,
        max_batch: int,
        sessions: bool = True,
        isolate: bool = False,
    ) -> None:
        self.sessions = open_session_pool(device_id, threads=0 if isolate else threads) if sessions else None
        dali = partial(DaliDecoder, device_id=device_id, threads=threads, max_batch=max_batch)
        self._dali = DeadlineThreads(1, name="streamvid-decode-dali", tool=partial(_ReopenedDali, dali))
        images = partial(ImageBatches, device_id=device_id, threads=threads, max_batch=max_batch)
        self._images = DeadlineThreads(1, name="streamvid-decode-image", tool=images)
        self._pace = Pace()
        self._open: set[tuple[object, bool]] = set()
        """Threads of DALI, each with a pipeline that they have open (`streamvid.decode.images.pipelines_for`)."""
        self._cpu = CpuDecoder(threads=threads, decoder=IsolatedDecoder if isolate else InThreadDecoder)
        self._isolates, self._device_id, self._streams = isolate, device_id, min(NVDEC_ENGINES, threads)
        self._told: set[str] = set()
        """Faults of packets of which the log has told."""

    @property
    def native(self) -> bool:
        """Whether decode sessions are those of the native module."""
        return self.sessions is not None and self.sessions.native

    def route(self, row: Support) -> Route:
        """The route for a row of the table in this process, which may lack decode sessions."""
        if row.route is not Route.NVDEC or self.sessions is not None:
            return row.route
        return Route.CPU if row.dali else Route.DALI

    def submit(
        self, slices: Sequence[EncodedSlice], on_cpu: Sequence[bool] = (), *, color: ColorOption = "bt601"
    ) -> Pending[list[torch.Tensor]]:
        """Begin to decode a batch, as `CpuDecoder.submit`.

        Sessions, images and the CPU begin immediately; DALI decodes videos when the result is requested. The tensors of
        several slices may share memory. After any error, the result raises GpuLostError if this process has lost the
        GPU.

        Args:
            slices: the slices of the batch.
            on_cpu: for each slice, whether the CPU decodes it regardless of `decode_support`; default: none.
            color: the option of a transform. DALI's frames, which are always BT.601, are corrected
                (`streamvid.color.dali_rgb`).
        """
        in_sessions, by_dali, by_cpu, images = self._divided(slices, on_cpu, as_dali=color == "bt601")
        session_frames = (
            self.sessions.submit([slices[n] for n in in_sessions], color=color)
            if self.sessions is not None and in_sessions
            else None
        )
        cpu_frames = self._cpu.submit([slices[n] for n in by_cpu], color=color)

        image_frames = self._submit_images([slices[n] for n in images])

        def gather() -> list[torch.Tensor]:
            frames: dict[int, torch.Tensor] = {}
            try:
                frames.update(zip(images, (image.tensor() for image in image_frames()), strict=True))
                for n, made in zip(by_dali, self._decode_by_dali([slices[n] for n in by_dali]), strict=True):
                    frames[n] = recoloured(made, slices[n].color.chosen(color))
                frames.update(zip(by_cpu, self._to_device(cpu_frames.result()), strict=True))
            finally:
                # After an error, too: memory that the engines still write to must not be freed.
                if session_frames is not None:
                    frames.update(zip(in_sessions, session_frames.result(), strict=True))
            return [frames[n] for n in range(len(slices))]

        def done() -> bool:
            # DALI begins when it is asked for its result.
            on_gpu = session_frames is None or session_frames.done()
            return bool(images or by_dali) or (on_gpu and cpu_frames.done())

        return Pending(partial(self._unless_lost, gather), done)

    def write(
        self,
        slices: Sequence[EncodedSlice],
        pictures: PictureSink,
        on_cpu: Sequence[bool] = (),
        *,
        color: ColorOption,
    ) -> Pending[None]:
        """Begin to decode a batch into `pictures`; only with `sessions`. Otherwise as `submit`."""
        import torch

        assert self.sessions is not None
        stream = self.sessions.stream
        in_sessions, by_dali, by_cpu, images = self._divided(slices, on_cpu)
        with torch.cuda.stream(stream):
            targets = pictures.targets(in_sessions, [surface_form(slices[n]) for n in in_sessions])
            sinks = pictures.sinks(by_cpu)
        on_gpu = self.sessions.write([slices[n] for n in in_sessions], targets)
        on_cores = self._cpu.write([slices[n] for n in by_cpu], sinks)
        image_frames = self._submit_images([slices[n] for n in images])

        def gather() -> None:
            try:
                made = dict(zip(images, image_frames(), strict=True))
                videos = self._decode_by_dali([slices[n] for n in by_dali])
                on_cores.result()
                with torch.cuda.stream(stream):
                    if made or videos:
                        stream.wait_stream(torch.cuda.default_stream(stream.device))  # on which DALI writes its frames
                    for n, frames in zip(by_dali, videos, strict=True):
                        made[n] = GpuFrames.of(recoloured(frames, slices[n].color.chosen(color)))
                    pictures.put_rgb(made)
                    pictures.upload()
                    stream.synchronize()  # before `made` is freed
            finally:
                # After an error, too: memory to which the engines still write must not be freed.
                on_gpu.result()

        def done() -> bool:
            # DALI begins when it is asked for its result.
            return bool(images or by_dali) or (on_gpu.done() and on_cores.done())

        return Pending(partial(self._unless_lost, gather), done)

    def _divided(
        self, slices: Sequence[EncodedSlice], on_cpu: Sequence[bool], *, as_dali: bool = False
    ) -> tuple[list[int], list[int], list[int], list[int]]:
        """The numbers of the slices that sessions, DALI and the CPU decode, and of the images.

        Args:
            slices, on_cpu: as in `submit`.
            as_dali: pixels have to equal those of DALI's decoder, which the kernels do not reproduce at every size.
        """
        divided: dict[Route, list[int]] = {route: [] for route in Route}
        for number, encoded in enumerate(slices):
            codec, width, height = encoded.codec, encoded.width, encoded.height
            row = decode_support(codec, encoded.stsd, width, height, native=self.native)
            route = self.route(row)
            if (
                not encoded.in_order
                or (number < len(on_cpu) and on_cpu[number])
                or (route is Route.NVDEC and self.sessions is not None and self.sessions.refuses(encoded))
                or (route is Route.IMAGE and self._isolates and codec != "jpeg")
            ):
                route = Route.CPU
            if route in (Route.NVDEC, Route.DALI) and (fault := _packets_fault(encoded, native=self.native)):
                route = Route.CPU
                if fault not in self._told:
                    self._told.add(fault)
                    log.info("a slice of clip %s, and others like it, are decoded by cores: %s", encoded.name, fault)
            if as_dali and route is Route.NVDEC and not _made_as_dali(surface_form(encoded)):
                route = Route.CPU if row.dali else Route.DALI
            if route is Route.DALI and not SHARED_GUARD.admit(self._device_id, codec, width, height):
                route = Route.CPU
            divided[route].append(number)
        return divided[Route.NVDEC], divided[Route.DALI], divided[Route.CPU], divided[Route.IMAGE]

    def _unless_lost(self, gather: Callable[[], Made]) -> Made:
        try:
            return gather()
        except Exception as error:
            raise_if_lost(self._device_id, error)
            raise

    def decode(self, slices: Sequence[EncodedSlice]) -> list[torch.Tensor]:
        """The wanted frames of each slice, uint8 [frames, height, width, 3] on the GPU.

        Raises:
            VideoError: a slice does not decode to its frames.
        """
        return self.submit(slices).result()

    def close(self) -> None:
        """Free threads and device memory."""
        self._cpu.close()
        self._dali.close()
        self._images.close()
        if self.sessions is not None:
            self.sessions.close()
            self.sessions = None

    def _decode_by_dali(self, slices: Sequence[EncodedSlice]) -> list[torch.Tensor]:
        if not slices:
            return []
        check_packets(slices)
        return self._submit(self._dali, lambda dali: dali.decode(slices, streams=self._streams), slices)()

    def _submit_images(self, slices: Sequence[EncodedSlice]) -> Callable[[], list[GpuFrames]]:
        if not slices:
            return list
        return self._submit(self._images, lambda images: images.decode(slices), slices, pipelines_for(slices))

    def _submit(
        self,
        threads: DeadlineThreads[Tool],
        decode: Callable[[Tool], Made],
        slices: Sequence[EncodedSlice],
        pipelines: Collection[bool] = (False,),
    ) -> Callable[[], Made]:
        """Begin to decode slices in a thread with a deadline, which is longer if one of these pipelines is to be
        opened, for the first time or after an error.

        Returns:
            a function that waits for the frames.
        """
        found: list[Made] = []
        needed = {(threads, pipeline) for pipeline in pipelines}

        def timed(tool: Tool) -> None:
            began, before = perf_counter(), {key for key in self._open if key[0] is threads}
            self._open -= before
            found.append(decode(tool))
            self._open |= before | needed
            if needed <= before:
                self._pace.add_all(slices, perf_counter() - began)

        def limits() -> tuple[float, float]:
            return self._pace.deadline_of_all(slices) + (0 if needed <= self._open else START_S), math.inf

        future = threads.submit(timed, limits=limits, overdue=partial(_overdue, slices))

        def result() -> Made:
            future.result()
            return found[0]

        return result

    def _to_device(self, frames: Sequence[UInt8]) -> list[torch.Tensor]:
        if not frames:
            return []
        import torch

        copies = [torch.from_numpy(frame).to(f"cuda:{self._device_id}") for frame in frames]
        torch.cuda.synchronize(self._device_id)
        return copies


class _ReopenedDali:
    """A `DaliDecoder` that is opened at the first call, and again after an error, which leaves it unusable."""

    def __init__(self, make: Callable[[], DaliDecoder]) -> None:
        self._make = make
        self._decoder: DaliDecoder | None = None

    def decode(self, slices: Sequence[EncodedSlice], *, streams: int) -> list[torch.Tensor]:
        """See `DaliDecoder`."""
        decoder, self._decoder = self._decoder or self._make(), None
        frames = decoder.decode(slices, streams=streams)
        self._decoder = decoder
        return frames

    def __enter__(self) -> _ReopenedDali:
        return self

    def __exit__(self, *_: object) -> None:
        self._decoder = None


def _packets_fault(encoded: EncodedSlice, *, native: bool) -> str:
    """Why decode sessions would decode the slice wrongly because of its packets, although its headers are fine; "" if
    they would not."""
    if not needs_packets(encoded.codec, encoded.stsd, native=native):
        return ""
    packets = packets_in(encoded.data, encoded.sizes)
    return packets_fault(encoded.codec, encoded.stsd, packets, encoded.width, encoded.height)


def _made_as_dali(form: PlaneFormat) -> bool:
    """Whether the kernels reproduce the pixels of DALI's decoder from surfaces of this format."""
    step = 2 if form.bits == 8 else _DITHER_BLOCK
    return form.bits <= 10 and form.width % step == 0 and form.height % step == 0


def _overdue(slices: Sequence[EncodedSlice], took: str) -> VideoError:
    clips = ", ".join(dict.fromkeys(encoded.name for encoded in slices))[:300]
    return VideoError(f"DALI has not decoded a batch ({took}), with the clips {clips}")
