"""Other ways to get single frames of long videos as small tensors, each as its own documentation has it used.

A way is opened for one video and asked for frame numbers of several clips; it returns uint8 [clips, frames, 3, 224,
224] or the same with colours last. What is not installed, or does not run on this machine, raises when it is opened or
when it is first run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from tools.bench.timing import APART, FRAMES, Numbers, Way

SIDE: Final = 224
BATCH: Final = 64
"""Clips that DALI takes at once."""
ENGINES: Final = 7
"""Of an H200's NVDEC."""
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

    def some(clips: Numbers) -> Any:
        if len(clips) not in pipelines:
            pipelines[len(clips)] = _graph(device, len(clips))
        pipe = pipelines[len(clips)]
        pipe.feed_input("encoded", [data] * len(clips))
        pipe.feed_input("wanted", [np.array(numbers, dtype=np.int32) for numbers in clips])
        (out,) = pipe.run()
        return out.as_cpu().as_array()

    def run(clips: Numbers) -> Any:
        return [some(clips[start : start + BATCH]) for start in range(0, len(clips), BATCH)]

    return Way(run, few=min(CORES, 2) if device == "cpu" else ENGINES)


def dali_reader(video: Path, device: str) -> Way:
    """`fn.readers.video`, which picks places itself: as many random clips of as many frames, a second apart."""
    from nvidia.dali import fn, pipeline_def

    if device == "cpu":
        raise RuntimeError("fn.readers.video needs a GPU")
    at_once = 4

    @pipeline_def(batch_size=at_once, num_threads=CORES, device_id=0, prefetch_queue_depth=1)
    def pipeline() -> Any:
        # `initial_fill` is how many clips are decoded ahead to choose from; places are shuffled with 1 as well.
        frames = fn.readers.video(
            device="gpu", filenames=[str(video)], sequence_length=FRAMES, stride=APART, step=37, random_shuffle=True,
            initial_fill=1, name="reader",
        )  # fmt: skip
        return fn.resize(frames, size=(SIDE, SIDE))

    pipe = pipeline()
    pipe.build()

    def run(clips: Numbers) -> Any:
        out = []
        for _ in range(0, len(clips), at_once):
            (frames,) = pipe.run()
            out.append(frames.as_cpu().as_array())
        return out

    return Way(run, few=at_once)


def pynvvideocodec(video: Path, device: str) -> Way:
    """PyNvVideoCodec's SimpleDecoder, one in each of seven threads, kept open."""
    if device == "cpu":
        raise RuntimeError("PyNvVideoCodec needs a GPU")
    import PyNvVideoCodec as nvc  # noqa: N813
    import torch

    idle: SimpleQueue[Any] = SimpleQueue()
    for _ in range(ENGINES):
        idle.put(
            nvc.SimpleDecoder(str(video), gpu_id=0, use_device_memory=True, output_color_type=nvc.OutputColorType.RGBP)
        )
    pool = ThreadPoolExecutor(ENGINES)

    def one(numbers: Sequence[int]) -> Any:
        decoder = idle.get()
        try:
            frames = decoder.get_batch_frames_by_index(list(numbers))
            return shrink(torch.stack([torch.from_dlpack(frame) for frame in frames]))
        finally:
            idle.put(decoder)

    def run(clips: Numbers) -> Any:
        out = torch.stack(list(pool.map(one, clips)))
        torch.cuda.synchronize()
        return out

    return Way(run, few=ENGINES)


def torchcodec(video: Path, *, mappings: bool = False, on_gpu: bool = False) -> Way:
    """torchcodec, exact; a decoder in each of as many threads as there are cores, or engines of the GPU.

    Args:
        mappings: with frame mappings made beforehand, so that opening needs no scan.
        on_gpu: decode there, if this build of torchcodec can.
    """
    import json

    from torchcodec.decoders import VideoDecoder

    options: dict[str, Any] = {"device": "cuda"} if on_gpu else {"num_ffmpeg_threads": 1}
    if mappings:
        options["custom_frame_mappings"] = json.dumps({"frames": _mappings(video)})
    else:
        options["seek_mode"] = "exact"
    count = ENGINES if on_gpu else CORES
    pool = ThreadPoolExecutor(count)
    idle: SimpleQueue[Any] = SimpleQueue()
    for decoder in pool.map(lambda _: VideoDecoder(str(video), **options), range(count)):
        idle.put(decoder)

    def one(numbers: Sequence[int]) -> Any:
        decoder = idle.get()
        try:
            return shrink(decoder.get_frames_at(list(numbers)).data)
        finally:
            idle.put(decoder)

    def run(clips: Numbers) -> Any:
        import torch

        return torch.stack(list(pool.map(one, clips))).cpu()

    return Way(run, few=count)


def torchcodec_on_gpu(video: Path, device: str) -> Way:
    """torchcodec with NVDEC."""
    if device == "cpu":
        raise RuntimeError("needs a GPU")
    return torchcodec(video, on_gpu=True)


def _mappings(video: Path) -> list[dict[str, Any]]:
    """What `ffprobe -show_frames` would print, as torchcodec wants it: in presentation order, with key frames."""
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

    idle: SimpleQueue[Any] = SimpleQueue()
    for _ in range(CORES):
        container = av.open(str(video))
        container.streams.video[0].codec_context.thread_count = 1
        idle.put(container)
    pool = ThreadPoolExecutor(CORES)

    def one(numbers: Sequence[int]) -> Any:
        import torch

        container = idle.get()
        try:
            stream = container.streams.video[0]
            start, step = stream.start_time or 0, 1 / (stream.average_rate * stream.time_base)
            wanted = [start + round(number * step) for number in numbers]
            pictures: list[Any] = []
            frames = iter(())
            at = None
            for pts in wanted:
                # On from where it is, if the next key frame is not nearer than the frame itself.
                if at is None or pts - at > 250 * step:
                    container.seek(pts, stream=stream)
                    frames = container.decode(stream)
                for frame in frames:
                    at = frame.pts
                    if frame.pts >= pts:
                        pictures.append(frame.to_ndarray(format="rgb24"))
                        break
            return shrink(torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2))
        finally:
            idle.put(container)

    def run(clips: Numbers) -> Any:
        import torch

        return torch.stack(list(pool.map(one, clips)))

    return Way(run, few=CORES)


class _OpenCvClips:
    """A dataset for PyTorch's DataLoader: clips by OpenCV."""

    def __init__(self, video: Path, clips: Numbers) -> None:
        self._video, self._clips = str(video), clips

    def __len__(self) -> int:
        return len(self._clips)

    def __getitem__(self, number: int) -> Any:
        import cv2

        cv2.setNumThreads(1)
        capture = cv2.VideoCapture(self._video, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
        pictures = []
        for frame in self._clips[number]:
            capture.set(cv2.CAP_PROP_POS_FRAMES, frame)
            good, picture = capture.read()
            if not good:
                raise RuntimeError(f"OpenCV cannot read frame {frame}")
            pictures.append(cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_AREA)[..., ::-1])
        return np.stack(pictures)


def opencv(video: Path, device: str) -> Way:
    """OpenCV in four workers of a DataLoader."""
    import cv2  # noqa: F401 - to fail here if it is not installed

    workers = 4

    def run(clips: Numbers) -> Any:
        import torch

        loader = torch.utils.data.DataLoader(_OpenCvClips(video, clips), batch_size=1, num_workers=workers)
        return list(loader)

    return Way(run, few=workers)


RIVALS: Final[dict[str, Callable[[Path, str], Way]]] = {
    "PyNvVideoCodec SimpleDecoder": pynvvideocodec,
    "whole file, fn.decoders.video": dali_whole_file,
    "torchcodec, exact": lambda video, device: torchcodec(video),
    "torchcodec, frame mappings": lambda video, device: torchcodec(video, mappings=True),
    "PyAV seeks": pyav_seeks,
    "OpenCV, 4 workers": opencv,
    "torchcodec on the GPU, exact": torchcodec_on_gpu,
    "fn.readers.video": dali_reader,
}
"""By name; those that matter most come first."""
