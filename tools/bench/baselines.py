"""Other libraries' ways to single frames of long videos as small tensors, each used as its documentation says.

A way is opened for one video and asked for frames of several clips by number; it returns uint8
[clips, frames, 3, 224, 224], or the same with colours last. What is not installed, or does not run on this machine,
raises when it is opened or when it is first run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from tools.bench.timing import FrameNumbers, Way

SIDE: Final = 224
BATCH: Final = 64
"""Clips that DALI takes at once."""
ENGINES: Final = 7
"""NVDEC engines of an H200."""
CORES: Final = len(os.sched_getaffinity(0))


def shrink(frames: Any) -> Any:
    """uint8 [frames, 3, height, width] tensor → [frames, 3, 224, 224], as fast as PyTorch can."""
    import torch

    if frames.is_cuda:
        small = torch.nn.functional.interpolate(frames.half(), (SIDE, SIDE), mode="bilinear", antialias=True)
        return small.round().clamp(0, 255).to(torch.uint8)
    return torch.nn.functional.interpolate(frames, (SIDE, SIDE), mode="bilinear", antialias=True)


def _graph(device: str, most: int) -> Any:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=most, num_threads=CORES, device_id=None if device == "cpu" else 0, prefetch_queue_depth=1)
    def pipeline() -> Any:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        wanted = fn.external_source(name="wanted", dtype=types.INT32, ndim=1)
        frames = fn.decoders.video(encoded, frames=wanted, device="cpu" if device == "cpu" else "mixed")
        return fn.resize(frames, size=(SIDE, SIDE))

    made = pipeline()
    made.build()
    return made


def dali_whole_file(video: Path, device: str) -> Way:
    """The whole file into `fn.decoders.video`, for each clip."""
    data = np.fromfile(video, dtype=np.uint8)
    pipelines: dict[int, Any] = {}

    def some(clips: FrameNumbers) -> Any:
        if len(clips) not in pipelines:
            pipelines[len(clips)] = _graph(device, len(clips))
        pipe = pipelines[len(clips)]
        pipe.feed_input("encoded", [data] * len(clips))
        pipe.feed_input("wanted", [np.array(numbers, dtype=np.int32) for numbers in clips])
        (out,) = pipe.run()
        return out.as_cpu().as_array()

    def run(clips: FrameNumbers) -> Any:
        return [some(clips[start : start + BATCH]) for start in range(0, len(clips), BATCH)]

    return Way(run, few=min(CORES, 2) if device == "cpu" else ENGINES)


def _in_threads(decoders: Sequence[Any], frames_of: Callable[[Any, list[int]], Any]) -> Way:
    """Decoders that are kept open, each in a thread, and what gives frames of one by their numbers."""
    pool = ThreadPoolExecutor(len(decoders))
    idle: SimpleQueue[Any] = SimpleQueue()
    for decoder in decoders:
        idle.put(decoder)

    def one(numbers: Sequence[int]) -> Any:
        decoder = idle.get()
        try:
            return shrink(frames_of(decoder, list(numbers)))
        finally:
            idle.put(decoder)

    def run(clips: FrameNumbers) -> Any:
        import torch

        out = torch.stack(list(pool.map(one, clips)))
        if out.is_cuda:
            torch.cuda.synchronize()
        return out

    return Way(run, few=len(decoders))


def pynvvideocodec(video: Path, device: str) -> Way:
    """PyNvVideoCodec's SimpleDecoder, one in each of seven threads, kept open."""
    if device == "cpu":
        raise RuntimeError("PyNvVideoCodec needs a GPU")
    import PyNvVideoCodec as nvc  # noqa: N813
    import torch

    options = {"gpu_id": 0, "use_device_memory": True, "output_color_type": nvc.OutputColorType.RGBP}

    def frames_of(decoder: Any, numbers: list[int]) -> Any:
        frames = decoder.get_batch_frames_by_index(numbers)
        return torch.stack([torch.utils.dlpack.from_dlpack(frame) for frame in frames])

    return _in_threads([nvc.SimpleDecoder(str(video), **options) for _ in range(ENGINES)], frames_of)


def torchcodec(video: Path, *, mappings: bool = False) -> Way:
    """torchcodec, exact; a decoder in each of as many threads as there are cores.

    Args:
        mappings: with frame mappings made beforehand, so that opening needs no scan.
    """
    import json

    from torchcodec.decoders import VideoDecoder

    options: dict[str, Any] = {"num_ffmpeg_threads": 1}
    if mappings:
        options["custom_frame_mappings"] = json.dumps({"frames": _mappings(video)})
    else:
        options["seek_mode"] = "exact"
    with ThreadPoolExecutor(CORES) as pool:
        decoders = list(pool.map(lambda _: VideoDecoder(str(video), **options), range(CORES)))
    return _in_threads(decoders, lambda decoder, numbers: decoder.get_frames_at(numbers).data)


def _mappings(video: Path) -> list[dict[str, Any]]:
    """The output of `ffprobe -show_frames`, as torchcodec takes it: in presentation order, with key frames."""
    import av

    with closing(av.open(str(video))) as container:
        packets = [(p.pts, p.duration, p.is_keyframe) for p in container.demux(video=0) if p.size]
    return [
        {"pts": pts, "duration": duration, "key_frame": int(key)}
        for pts, duration, key in sorted(packets, key=lambda packet: packet[0] or 0)
    ]


def pyav_seeks(video: Path, device: str) -> Way:
    """PyAV: seek to the key frame before each frame, decode up to it; a container in each of as many threads as
    there are cores."""
    import av
    import torch

    containers = [av.open(str(video)) for _ in range(CORES)]
    for container in containers:
        container.streams.video[0].codec_context.thread_count = 1

    def frames_of(container: Any, numbers: list[int]) -> Any:
        stream = container.streams.video[0]
        start, step = stream.start_time or 0, 1 / (stream.average_rate * stream.time_base)
        pictures: list[Any] = []
        frames: Iterator[Any] = iter(())
        at = None
        for pts in [start + round(number * step) for number in numbers]:
            # On from where it is, if the next key frame is not nearer than the frame itself.
            if at is None or pts - at > 250 * step:
                container.seek(pts, stream=stream)
                frames = container.decode(stream)
            for frame in frames:
                at = frame.pts
                if frame.pts >= pts:
                    pictures.append(frame.to_ndarray(format="rgb24"))
                    break
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)

    return _in_threads(containers, frames_of)


BASELINES: Final[dict[str, Callable[[Path, str], Way]]] = {
    "PyNvVideoCodec SimpleDecoder": pynvvideocodec,
    "whole file, fn.decoders.video": dali_whole_file,
    "torchcodec, exact": lambda video, device: torchcodec(video),
    "torchcodec, frame mappings": lambda video, device: torchcodec(video, mappings=True),
    "PyAV seeks": pyav_seeks,
}
"""By name, in the order of the table."""
