"""How videos are cut and transcoded when they are packed. Frozen values: worker processes and Ray tasks get copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from streamvid.checks import decimal, is_real, suggesting
from streamvid.errors import InputError
from streamvid.video.gpu_support import Purpose
from streamvid.video.stored_clip import StoredClip
from streamvid.video.transcode import TranscodeOptions

CutUnit = Literal["seconds", "frames"]
"""Unit of cut positions: seconds after the first displayed frame, or frame numbers from 0."""
TailPolicy = Literal["keep", "drop", "merge"]
DecodeLevel = Literal["none", "first", "all"]
DECODE_LEVELS: Final[tuple[DecodeLevel, ...]] = ("none", "first", "all")


@suggesting
@dataclass(frozen=True)
class FixedLength:
    """Cut videos into consecutive clips of one length.

    Attributes:
        length: of a clip.
        unit: of the length.
        tail: the policy for a last clip shorter than `length`: "keep" it, "drop" it, or "merge" it into the clip
            before.
    """

    length: float
    unit: CutUnit = "seconds"
    tail: TailPolicy = "keep"


@suggesting
@dataclass(frozen=True)
class Scenes:
    """Cut videos at the scene changes that PySceneDetect's content detector finds.

    Attributes:
        min_length: seconds; the shortest scene (PySceneDetect's `min_scene_len`).
    """

    min_length: float = 0.6


@dataclass(frozen=True)
class Cut:
    """A row of a cut list: one clip to cut out of a video, with the frames displayed in [start, end).

    Attributes:
        start, end: in `unit`; an `end` of None is the end of the video.
        unit: of both. Frame numbers are whole.
        label: of the clip, as the list has it; None: the clip gets its video's label.
        rows: the number of the row; see `streamvid.packing.metadata`.
        frames: that it must hold, or it is rejected; None: any number.
    """

    start: float
    end: float | None
    unit: CutUnit = "seconds"
    label: int | str | None = None
    rows: tuple[int, ...] = ()
    frames: int | None = None


@suggesting
@dataclass(frozen=True)
class PackOptions:
    """How every video is cut and transcoded. Together with the sources these options decide every byte of a dataset.

    Attributes:
        compatible_with: the decoders that clips must be compatible with. "gpu": transcode what NVDEC behind DALI does
            not decode, and nothing else; "gpu-no-av1": transcode AV1 as well; "any": transcode nothing.
        cutting: the rule by which videos are cut into clips; None: one clip per video, or the rows of a cut list.
        exact_cuts: re-encode videos that are not cut at key frames, with key frames where clips begin, so that no clip
            stores non-displayed packets. False: copy packets, along with the non-displayed ones that they depend on.
        transcode: transcode all clips with these options; None: only the incompatible ones, at their size and rate.
        fps: frames per second of image sequences without a file of timestamps, and of raw streams without a rate in
            their header; a float is taken as it is written.
        track: the number of the video track to pack, of every file, counted from 0, cover pictures aside; None: the one
            that FFmpeg takes.
        decode: the frames of a clip that must decode, as a loader decodes them, for the clip to be accepted: "none";
            "first": the first 64 and the 64 in the middle, which a window at the start or in the centre is made of;
            "all". What is transcoded is decoded as a whole in any case.
        in_place: leave videos where they lie, and store what is known of them: "tables" takes that of an MP4 or MOV
            from its tables, "packets" looks at each packet; None: pack them.

    Raises:
        InputError: a rate that is none, or no such level of decoding.
    """

    compatible_with: Purpose = "gpu"
    cutting: FixedLength | Scenes | None = None
    exact_cuts: bool = False
    transcode: TranscodeOptions | None = None
    fps: Fraction | None = None
    track: int | None = None
    decode: DecodeLevel = "first"
    in_place: Literal["tables", "packets"] | None = None

    def __post_init__(self) -> None:
        if self.decode not in DECODE_LEVELS:
            raise InputError(f"cannot decode {self.decode!r} before packing: choose from {', '.join(DECODE_LEVELS)}")
        if self.fps is None:
            return
        if not is_real(self.fps) or not 0 < self.fps <= 1000:
            raise InputError(f"fps must be a number above 0, and at most 1000; it is {self.fps!r}")
        object.__setattr__(self, "fps", decimal(self.fps))


Place = Mapping[str, int | str | None]
"""The columns of a row that say where a clip's bytes are, by name."""


@dataclass(frozen=True)
class PreparedClip:
    """A clip made from a source, ready to be written to a shard.

    Attributes:
        clip: the MP4 and its frame index.
        suffix: appended to the source's key: "" for a whole video, ``_000012`` for a cut.
        rows: of lists: of its video, then of its cut.
        span: metadata columns that say where it was cut out; empty for a whole video.
        label: of its cut, or of its video.
        key, source: its key and its video's name; "": the source's own.
        place: columns of a row that say where it stays, if that is not known of the source.
    """

    clip: StoredClip
    suffix: str
    rows: tuple[int, ...]
    span: Mapping[str, float | int]
    label: int | str | None = None
    key: str = ""
    source: str = ""
    place: Place | None = None


@dataclass(frozen=True)
class RejectedCut:
    """A cut of a video that is no clip, while other cuts of the same video are: a row of a cut list without frames in
    its video, or a damaged part.

    Attributes:
        reason: names the cut and says why.
    """

    reason: str
