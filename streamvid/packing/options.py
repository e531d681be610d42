"""What packing makes of a video besides copying it, and what comes out. Plain values: they travel to workers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from streamvid.video.gpu_support import Purpose
from streamvid.video.stored_clip import StoredClip
from streamvid.video.transcode import TranscodeOptions

Unit = Literal["seconds", "frames"]
"""What cuts are measured in: seconds from the first frame that is shown, or frames, counted from 0."""
Tail = Literal["keep", "drop", "merge"]


@dataclass(frozen=True)
class FixedLength:
    """Cut videos into clips of one length, one after the other.

    Attributes:
        length: of a clip.
        unit: of the length.
        tail: what becomes of the last clip if it is too short: "keep" it as it is, "drop" it, or "merge" it into the
            one before.
    """

    length: float
    unit: Unit = "seconds"
    tail: Tail = "keep"


@dataclass(frozen=True)
class Scenes:
    """Cut videos where their content changes abruptly, as PySceneDetect finds it.

    Attributes:
        shortest: seconds; changes that follow sooner on one another do not end a scene.
    """

    shortest: float = 0.6


@dataclass(frozen=True)
class Cut:
    """One clip to cut out of a video: what is shown from `start` until just before `end`.

    Attributes:
        start, end: both in `unit`; end None: until the video is over.
        unit: of both. Frames are whole numbers.
        label: of the clip, as it was given; None: that of its video.
        meta: a JSON object with the other columns that came with the cut.
    """

    start: float
    end: float | None
    unit: Unit = "seconds"
    label: int | str | None = None
    meta: str = "{}"


@dataclass(frozen=True)
class PackOptions:
    """What is done to every video. Together with the sources it decides every byte of a dataset.

    Attributes:
        suits: "gpu": what NVDEC or DALI cannot take is converted, and only that; "gpu-no-av1": AV1 too; "any": all is
            copied.
        cutting: how videos are cut into clips; None: not at all, or as their sources' `cuts` say.
        exact: where videos are cut, encode them again, with key frames where clips begin, so that no clip stores
            hidden packets; else packets are copied, and those that a clip's frames depend on come along, hidden.
        conversion: what all clips are converted into; None: only what does not suit is, at its own size and rate.
        fps: images per second, for folders of images that have no file of times.
    """

    suits: Purpose = "gpu"
    cutting: FixedLength | Scenes | None = None
    exact: bool = False
    conversion: TranscodeOptions | None = None
    fps: Fraction | None = None


@dataclass(frozen=True)
class Piece:
    """One clip made from a video.

    Attributes:
        clip: the clip itself.
        suffix: what its key has behind its video's key: "" for a whole video.
        meta: a JSON object: the columns of its video and its own.
        label: that of its cut, or of its video.
    """

    clip: StoredClip
    suffix: str
    meta: str
    label: int | str | None = None


@dataclass(frozen=True)
class Refused:
    """A listed cut that no clip can be made of, while others of its video can.

    Attributes:
        reason: which cut, and why.
    """

    reason: str
