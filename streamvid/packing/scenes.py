"""Scene detection by PySceneDetect's content detector.

The frames are decoded here and passed to the detector with their own timestamps, so that frame numbers are those of
the frame index, also for variable frame rates and edit lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.errors import InputError
from streamvid.packing.options import PackOptions, Scenes
from streamvid.video.probe import VideoFile
from streamvid.video.stored_clip import StoredClip

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_WIDTH: Final = 256
"""Pixels; frames are downscaled to about this width before they are compared, as PySceneDetect does by default."""


def need_scenedetect() -> None:
    """Raise InputError if PySceneDetect is not installed."""
    try:
        import scenedetect  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"finding scenes needs PySceneDetect, which cannot be imported ({error}): pip install 'streamvid[scenes]'"
        ) from error


def scene_versions(options: PackOptions) -> dict[str, str]:
    """Versions of the libraries that scene detection depends on; empty if the options do not cut at scenes."""
    if not isinstance(options.cutting, Scenes):
        return {}
    import cv2
    import scenedetect

    return {"scenedetect": scenedetect.__version__, "opencv": cv2.__version__}


def scene_starts(clip: StoredClip, rule: Scenes) -> list[int]:
    """Numbers of the frames at which a new scene begins, ascending, without frame 0.

    Args:
        clip: the whole video, in a file.

    Raises:
        FFmpegError: the video does not decode.
    """
    from scenedetect.common import FrameTimecode, Timecode
    from scenedetect.detectors import ContentDetector

    base = Fraction(*clip.time_base)
    frames = len(clip.index.visible)
    # FrameTimecode needs a frame rate, but only to print; the detector compares exact times.
    rate = max(Fraction(1), frames / (clip.duration * base))
    detector = ContentDetector(min_scene_len=float(rule.min_length))
    found: list[Any] = []
    time = FrameTimecode(Timecode(0, base), rate)
    for pts, frame in _shown_frames(clip):
        time = FrameTimecode(Timecode(pts, base), rate)
        found += detector.process_frame(time, _small(frame, clip))
    found += detector.post_process(time)
    starts = np.searchsorted(clip.index.frame_pts, sorted({one.pts for one in found}))
    return [int(number) for number in starts if number > 0]


def _shown_frames(clip: StoredClip) -> Iterator[tuple[int, VideoFrame]]:
    """The displayed frames, each with its pts as in the frame index."""
    visible = set(clip.index.frame_pts.tolist())
    shift: int | None = None
    with VideoFile(clip.mp4).open(apply_edits=False) as (container, stream):
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
