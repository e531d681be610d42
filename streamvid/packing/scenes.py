"""Where the content of a video changes abruptly, as PySceneDetect's content detector finds it.

PySceneDetect is given frames that are decoded here, with their own times: so frame numbers mean the same as everywhere
in streamvid, in videos of any frame rate, and behind any edit list.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import av
import numpy as np

from streamvid.arrays import UInt8
from streamvid.errors import InputError
from streamvid.packing.options import PackOptions, Scenes
from streamvid.video.stored_clip import StoredClip

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_WIDTH: Final = 256
"""Frames are compared at about this width, as PySceneDetect does by default."""


def need_scenedetect() -> None:
    """Make sure that PySceneDetect is there.

    Raises:
        InputError: it is not.
    """
    try:
        import scenedetect  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"finding scenes needs PySceneDetect, which cannot be imported ({error}): pip install 'streamvid[scenes]'"
        ) from error


def scene_versions(treatment: PackOptions) -> dict[str, str]:
    """The versions of the libraries that decide where scenes begin, if scenes are looked for."""
    if not isinstance(treatment.cutting, Scenes):
        return {}
    import cv2
    import scenedetect

    return {"scenedetect": scenedetect.__version__, "opencv": cv2.__version__}


def scene_starts(clip: StoredClip, rule: Scenes) -> list[int]:
    """The numbers of the frames at which a new scene begins, rising, without frame 0.

    Args:
        clip: the whole video.
        rule: what counts as a scene.

    Raises:
        FFmpegError: the video does not decode.
    """
    from scenedetect.common import FrameTimecode, Timecode
    from scenedetect.detectors import ContentDetector

    base = Fraction(*clip.time_base)
    frames = len(clip.index.visible)
    # Only what is printed makes use of the rate: differences are taken between exact times.
    rate = max(Fraction(1), frames / (clip.duration * base))
    detector = ContentDetector(min_scene_len=float(rule.shortest))
    found: list[Any] = []
    time = FrameTimecode(Timecode(0, base), rate)
    for pts, frame in _shown_frames(clip):
        time = FrameTimecode(Timecode(pts, base), rate)
        found += detector.process_frame(time, _small(frame, clip))
    found += detector.post_process(time)
    starts = np.searchsorted(clip.index.frame_pts, sorted({one.pts for one in found}))
    return [int(number) for number in starts if number > 0]


def _shown_frames(clip: StoredClip) -> Iterator[tuple[int, VideoFrame]]:
    """Each visible frame with its pts in the index."""
    visible = set(clip.index.frame_pts.tolist())
    shift: int | None = None
    with closing(av.open(os.fspath(clip.mp4), "r", options={"ignore_editlist": "1"})) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1  # there is a worker process for every core
        for packet in container.demux(stream):
            if shift is None and packet.pts is not None:
                shift = packet.pts - int(clip.index.pts[0])
            for frame in packet.decode():
                if frame.pts is not None and shift is not None and frame.pts - shift in visible:
                    yield frame.pts - shift, frame


def _small(frame: VideoFrame, clip: StoredClip) -> UInt8:
    scale = min(1.0, _WIDTH / clip.width)
    width, height = max(1, round(clip.width * scale)), max(1, round(clip.height * scale))
    picture = frame.reformat(width=width, height=height, format="bgr24", interpolation="AREA").to_ndarray()
    return picture.astype(np.uint8, copy=False)
