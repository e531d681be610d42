"""Encoders and their options: closed GOPs, no non-displayed pictures, and the same bytes in every run."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Final, Literal

Target = Literal["h264", "hevc", "vp9", "av1", "mjpeg"]
TARGETS: Final[tuple[Target, ...]] = ("h264", "hevc", "vp9", "av1", "mjpeg")


@dataclass(frozen=True)
class Encoder:
    """Properties of an encoder.

    Attributes:
        name: FFmpeg's name of the encoder.
        crf: default quality.
        crf_range: the best and the worst quality.
        min_side: the smallest side of frames, in pixels.
        reorder_frames: most frames by which reordering delays presentation; B-frames without a pyramid need one.
        bit_depths: supported bits per sample; deeper video is reduced to the deepest of them.
        most_fps: the highest rate for which it can be opened. Frames are shown at their own times all the same.
    """

    name: str
    crf: int
    crf_range: tuple[int, int]
    min_side: int
    reorder_frames: int
    bit_depths: tuple[int, ...]
    most_fps: int = 1000


ENCODERS: Final[dict[Target, Encoder]] = {
    "h264": Encoder("libx264", 18, (0, 51), 2, 1, (8,)),
    "hevc": Encoder("libx265", 20, (0, 51), 16, 1, (8, 10)),
    "vp9": Encoder("libvpx-vp9", 20, (0, 63), 2, 0, (8,)),
    "av1": Encoder("libsvtav1", 22, (0, 63), 4, 0, (8, 10), 240),
    "mjpeg": Encoder("mjpeg", 2, (1, 31), 2, 0, (8,)),
}


_MIN_CUTREE_WIDTH: Final = 64
"""With CU trees, x265 4.2 writes past the end of its buffers for frames 34 to 48 pixels wide (seen with AVX2)."""


def leave_real_time() -> None:
    """Give the threads of this process the usual scheduling policy again, after an encoder was opened.

    If root runs it, SVT-AV1 gives its own threads, and the thread that opens it, the highest real-time priority
    (SCHED_FIFO), so that no other process gets a core before them.
    """
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread may have ended
            if os.sched_getscheduler(int(thread)) == os.SCHED_FIFO:
                os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))


def encoder_options(codec: Target, *, gop: int, crf: int | None, width: int) -> dict[str, str]:
    """FFmpeg's options for an encoder.

    Args:
        gop: frames from one key frame to the next.
        crf: quality; None for the default.
        width: width of the frames, in pixels.
    """
    quality = ENCODERS[codec].crf if crf is None else crf
    every = {"scenecut": 0, "keyint": gop, "min-keyint": min(gop, 2), "open-gop": 0}
    match codec:
        case "h264":
            # With macroblock trees, clips 96 or 320 pixels wide come out in other bytes from run to run, even with one
            # thread: x264 reads uninitialised memory. Without a pyramid every B-frame is disposable.
            params = {**every, "threads": 1, "lookahead-threads": 1, "mbtree": 0, "b-pyramid": "none"}
            return {
                "preset": "medium",
                "crf": str(quality),
                "forced-idr": "1",
                "a53cc": "0",
                "x264-params": _joined(params),
            }
        case "hevc":
            params = {**every, "log-level": "none", "pools": "none", "frame-threads": 1, "wpp": 0, "b-pyramid": 0}
            if width < _MIN_CUTREE_WIDTH:
                params["cutree"] = 0
            return {"preset": "fast", "crf": str(quality), "forced-idr": "1", "x265-params": _joined(params)}
        case "vp9":
            # Alternate reference frames are not displayed, or displayed by a packet of their own.
            no_alt_ref = {"auto-alt-ref": "0", "lag-in-frames": "0"}
            effort = {"deadline": "good", "cpu-used": "4", "row-mt": "0", "threads": "1"}
            return {"crf": str(quality), "b": "0", "keyint_min": "0", **effort, **no_alt_ref}
        case "av1":
            params = {"lp": 1, "scd": 0, "irefresh-type": 2, "keyint": gop}
            os.environ.setdefault("SVT_LOG", "1")  # errors only: otherwise it prints its settings for every video
            return {"preset": "8", "crf": str(quality), "svtav1-params": _joined(params)}
        case "mjpeg":
            return {"qmin": str(quality), "qmax": str(quality), "huffman": "optimal"}


def _joined(params: dict[str, object]) -> str:
    return ":".join(f"{name}={value}" for name, value in params.items())
