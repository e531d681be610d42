"""Slices → frames, FHWC uint8 RGB, on the GPU's decoder or on the CPU. docs/decoding.md says how colours are made.

Both decoders take the same slices and choose the same frames. They know nothing of datasets, ranks or transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from streamvid.errors import VideoError
from streamvid.stream.fuse import fuse, group
from streamvid.stream.nvdec import shared_guard
from streamvid.stream.runs import takes
from streamvid.stream.sessions import open_sessions
from streamvid.video import mp4
from streamvid.video.slice import EncodedSlice

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Frames = npt.NDArray[np.uint8]

DALI_CPU_CODECS: Final = ("vp8", "vp9", "mjpeg")
"""What DALI's CPU decoder knows; PyAV decodes the rest, and slices with packets that decode to no frame: DALI counts
packets."""

CPU_ONLY: Final = ("mjpeg",)
"""What `GpuDecoder` leaves to PyAV: intra pictures that no GPU decoder behind DALI knows."""

NVDEC_STREAMS: Final = 7
"""The engines of an H200. More streams gain next to nothing at 720p, and lose at 1080p: docs/performance.md."""


class Decoder(Protocol):
    """Decodes batches of slices."""

    def submit(self, slices: Sequence[EncodedSlice]) -> Callable[[], list[Any]]:
        """Begin to decode a batch, as far as this decoder works on its own; the function that comes back gives what
        `decode` would. Batches come in the order in which they were submitted."""

    def decode(self, slices: Sequence[EncodedSlice]) -> list[Any]:
        """The wanted frames of each slice, uint8 [frames, height, width, 3], on the decoder's device.

        A list: of NumPy arrays, or of PyTorch tensors on the GPU.

        Raises:
            VideoError: a slice does not decode to its frames.
        """

    def close(self) -> None:
        """Free threads and device memory."""


class CpuDecoder:
    """DALI's CPU decoder for the codecs that it knows, PyAV in threads for the rest, one clip per thread.

    Args:
        threads: clips decoded at once.
        max_batch: slices per batch at most.
    """

    def __init__(self, *, threads: int, max_batch: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="streamvid-decode")
        self._threads, self._max_batch = threads, max_batch
        self._dali: DaliDecoder | None = None

    def submit(self, slices: Sequence[EncodedSlice]) -> Callable[[], list[Frames]]:
        return partial(self.decode, slices)

    def decode(self, slices: Sequence[EncodedSlice]) -> list[Frames]:
        by_dali = [n for n, part in enumerate(slices) if part.codec in DALI_CPU_CODECS and part.plain]
        by_pyav = sorted(set(range(len(slices))) - set(by_dali))
        pending = {n: self._pool.submit(decode_with_pyav, slices[n]) for n in by_pyav}
        frames: dict[int, Frames] = {}
        if by_dali:
            if self._dali is None:
                self._dali = DaliDecoder(device_id=None, threads=self._threads, max_batch=self._max_batch)
            chosen = [slices[n] for n in by_dali]
            decoded = self._dali.run(chosen)
            for place, (n, part) in enumerate(zip(by_dali, chosen, strict=True)):
                frames[n] = _checked(np.asarray(decoded.at(place)), part)
        frames.update({n: future.result() for n, future in pending.items()})
        return [frames[n] for n in range(len(slices))]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._dali = None


class GpuDecoder:
    """NVDEC: by decoders that stay open (`streamvid.stream.sessions`) where PyNvVideoCodec is installed and takes the
    clip, by DALI's `fn.decoders.video` else.

    For DALI slices that go together are fused into as many streams as are decoded at once; clips that it would mix up
    with others, and Motion JPEG, go to the CPU: see `streamvid.stream.fuse` and `streamvid.stream.nvdec`.

    Args:
        device_id: the GPU's number.
        threads: CPU threads.
        max_batch: slices per batch at most.
        streams: streams per batch in DALI, if slices share sample descriptions; by default one per engine of an H200,
            and at most one per thread.
        sessions: False leaves all to DALI.
    """

    def __init__(
        self, *, device_id: int, threads: int, max_batch: int, streams: int = NVDEC_STREAMS, sessions: bool = True
    ) -> None:
        self._sessions = open_sessions(device_id, threads=threads) if sessions else None
        self._dali: DaliDecoder | None = None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="streamvid-decode")
        self._device_id, self._threads, self._max_batch = device_id, threads, max_batch
        self._streams = min(streams, threads)

    def leaves_to_dali(self, codec: str, stsd: bytes, width: int, height: int) -> bool:
        """Whether such a clip goes to DALI, and so by its cache; arguments as of `streamvid.stream.sessions.takes`."""
        return codec not in CPU_ONLY and not (self._sessions is not None and takes(codec, stsd, width, height))

    def decode(self, slices: Sequence[EncodedSlice]) -> list[Any]:
        """Per slice a PyTorch tensor on the GPU; several may be parts of the same memory."""
        return self.submit(slices)()

    def submit(self, slices: Sequence[EncodedSlice]) -> Callable[[], list[Any]]:
        """See `Decoder`. The engines of decoders that stay open go on to the next batch without a pause."""
        guard = shared_guard()
        in_sessions: list[int] = []
        by_dali: list[int] = []
        on_cpu: list[int] = []
        for number, part in enumerate(slices):
            if not self.leaves_to_dali(part.codec, part.stsd, part.width, part.height):
                (on_cpu if part.codec in CPU_ONLY else in_sessions).append(number)
            elif guard.admit(self._device_id, part.codec, part.width, part.height):
                by_dali.append(number)
            else:
                on_cpu.append(number)
        open_frames = (
            self._sessions.submit([slices[n] for n in in_sessions])
            if self._sessions is not None and in_sessions
            else None
        )
        elsewhere = {n: self._pool.submit(decode_with_pyav, slices[n]) for n in on_cpu}

        def wait() -> list[Any]:
            import torch

            frames: dict[int, Any] = {}
            if by_dali:
                frames.update(zip(by_dali, self._on_gpu([slices[n] for n in by_dali]), strict=True))
            for n, future in elsewhere.items():
                frames[n] = torch.from_numpy(future.result()).to(f"cuda:{self._device_id}")
            if elsewhere:
                torch.cuda.synchronize(self._device_id)
            if open_frames is not None:
                frames.update(zip(in_sessions, open_frames(), strict=True))
            return [frames[n] for n in range(len(slices))]

        return wait

    def _on_gpu(self, slices: Sequence[EncodedSlice]) -> list[Any]:
        """By DALI."""
        from torch.utils.dlpack import from_dlpack

        if self._dali is None:
            self._dali = DaliDecoder(device_id=self._device_id, threads=self._threads, max_batch=self._max_batch)
        streams = group(slices, self._streams)
        fused = [fuse([slices[n] for n in numbers]) for numbers in streams]
        decoded = self._dali.run(fused)
        frames: dict[int, Any] = {}
        for place, (numbers, part) in enumerate(zip(streams, fused, strict=True)):
            tensor = from_dlpack(decoded[place])
            _check_shape(tuple(tensor.shape), part)
            ends = np.cumsum([len(slices[n].frames) for n in numbers]).tolist()
            for n, end in zip(numbers, ends, strict=True):
                frames[n] = tensor[end - len(slices[n].frames) : end]
        return [frames[n] for n in range(len(slices))]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._dali = None
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None


class DaliDecoder:
    """A DALI pipeline that decodes what it is fed, on one device."""

    def __init__(self, *, device_id: int | None, threads: int, max_batch: int) -> None:
        from nvidia.dali import fn, pipeline_def, types

        @pipeline_def(batch_size=max_batch, num_threads=threads, device_id=device_id, prefetch_queue_depth=1)
        def graph() -> Any:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            frames = fn.external_source(name="frames", dtype=types.INT32, ndim=1)
            return fn.decoders.video(encoded, frames=frames, device="cpu" if device_id is None else "mixed")

        self._pipe = graph()
        self._pipe.build()

    def run(self, slices: Sequence[EncodedSlice]) -> Any:
        try:
            self._pipe.feed_input("encoded", [part.to_mp4() for part in slices])
            self._pipe.feed_input("frames", [part.frames.astype(np.int32) for part in slices])
            (decoded,) = self._pipe.run()
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            names = ", ".join(sorted({part.name for part in slices})[:8])
            raise VideoError(f"DALI could not decode a batch with the clips {names}, …: {reason}") from error
        return decoded


def _checked(frames: Frames, part: EncodedSlice) -> Frames:
    _check_shape(frames.shape, part)
    return frames


def _check_shape(shape: tuple[int, ...], part: EncodedSlice) -> None:
    wanted = (len(part.frames), part.height, part.width, 3)
    if shape != wanted:
        raise VideoError(
            f"clip {part.name} decodes to frames of shape {list(shape)}, its dataset says {list(wanted)}: pack it again"
        )


def decode_with_pyav(part: EncodedSlice) -> Frames:
    """Decode one slice on the CPU, in the calling thread, without holding the GIL while FFmpeg works.

    Returns:
        uint8 [frames, height, width, 3], RGB.

    Raises:
        VideoError: the slice does not decode to its frames.
    """
    import av

    rows = {int(rank): row for row, rank in enumerate(part.frames)}
    convert = RgbConverter(full_range=part.full_range)
    out = np.empty((len(rows), part.height, part.width, 3), dtype=np.uint8)
    try:
        name, extradata = _decoder_settings(part)
        context = av.CodecContext.create(name, "r")
        assert isinstance(context, av.VideoCodecContext)
        context.extradata = extradata
        context.thread_count = 1
        ends = np.cumsum(part.sizes).tolist()
        start = 0
        for rank, end in zip(part.ranks.tolist(), ends, strict=True):
            # Allocated by FFmpeg, with the zeroed padding behind the data that its decoders read into.
            # av.Packet(bytes) has none: decoders then read past the end, and MPEG-4 frames come out wrong.
            packet = av.Packet(end - start)
            packet.update(part.data[start:end].tobytes())
            packet.pts = rank
            start = end
            for frame in context.decode(packet):
                _store(frame, part, rows, convert, out)
            if not rows:
                return out
        for frame in context.decode(None):
            _store(frame, part, rows, convert, out)
    except av.error.FFmpegError as error:
        raise VideoError(f"clip {part.name} cannot be decoded: {error.strerror}") from error
    if rows:
        raise VideoError(
            f"clip {part.name} does not decode to the frames that its index names: "
            "check it with `streamvid verify --decode`"
        )
    return out


def _decoder_settings(part: EncodedSlice) -> tuple[str, bytes]:
    """FFmpeg's name of the decoder, and its extradata.

    FFmpeg itself takes them out of the sample description, from an MP4 without packets.
    """
    import io

    import av

    head = mp4.header(part.stsd, np.empty(0, dtype=np.int64), width=part.width, height=part.height)
    with av.open(io.BytesIO(head), format="mp4") as container:
        context = container.streams.video[0].codec_context
        return context.codec.name, context.extradata or b""


def _store(frame: VideoFrame, part: EncodedSlice, rows: dict[int, int], convert: RgbConverter, out: Frames) -> None:
    """Convert a frame into its row, if it is wanted."""
    row = rows.pop(frame.pts, None) if frame.pts is not None else None
    if row is None:
        return
    if frame.is_corrupt:
        raise VideoError(f"clip {part.name} is damaged: check it with `streamvid verify --decode`")
    if (frame.width, frame.height) != (part.width, part.height):
        _check_shape((len(part.frames), frame.height, frame.width, 3), part)
    out[row] = convert(frame)


class RgbConverter:
    """Frames of one stream → RGB, as docs/decoding.md defines it: the BT.601 matrix, chroma at the centre, bilinear.

    That is how DALI's GPU decoder converts, whatever a stream's tags say, so that both devices agree.

    Args:
        full_range: luma from 0 to 255 rather than 16 to 235 (8 bit).
    """

    def __init__(self, *, full_range: bool) -> None:
        from av.video.reformatter import ColorRange, Interpolation, VideoReformatter

        self._range = ColorRange.JPEG if full_range else ColorRange.MPEG
        # What DALI's CPU decoder asks of swscale: the same pixels, bit for bit, whoever decodes.
        self._interpolation = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
        self._reformatter = VideoReformatter()
        self._graphs: dict[tuple[int, int, str], Any] = {}

    def __call__(self, frame: VideoFrame) -> Frames:
        """uint8 [height, width, 3]."""
        from av.video.reformatter import Colorspace

        planar = self._reformatter.reformat(
            self._centred(frame),
            # swscale's planar output is twice as fast and the same, but off by one here and there if a side is odd.
            format="rgb24" if frame.width % 2 or frame.height % 2 else "gbrp",
            src_colorspace=Colorspace.ITU601,
            src_color_range=self._range,
            interpolation=self._interpolation,
            threads=1,
        )
        return np.asarray(planar.to_ndarray())

    def _centred(self, frame: VideoFrame) -> VideoFrame:
        """The same frame, tagged with chroma at the centre; swscale follows the tag, and PyAV has no other way to
        set it."""
        import av.filter

        key = (frame.width, frame.height, frame.format.name)
        graph = self._graphs.get(key)
        if graph is None:
            graph = av.filter.Graph()
            source = graph.add_buffer(
                width=key[0], height=key[1], format=frame.format, time_base=Fraction(1, mp4.TIMESCALE)
            )
            tag, sink = graph.add("setparams", "chroma_location=center"), graph.add("buffersink")
            source.link_to(tag)
            tag.link_to(sink)
            graph.configure()
            self._graphs[key] = graph
        graph.push(frame)
        centred = graph.pull()
        assert isinstance(centred, av.VideoFrame)
        return centred


def to_rgb(frame: VideoFrame, *, full_range: bool) -> Frames:
    """One frame by `RgbConverter`: uint8 [height, width, 3]."""
    return RgbConverter(full_range=full_range)(frame)
