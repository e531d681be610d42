"""How videos are cut and transcoded when they are packed. Frozen values: worker processes and Ray tasks get copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, get_args

from streamvid.checks import boolean, decimal, is_integer, is_real, one_of, shown, suggesting
from streamvid.errors import InputError
from streamvid.video.gpu_support import Purpose
from streamvid.video.stored_clip import StoredClip
from streamvid.video.transcode import TranscodeOptions

CutUnit = Literal["seconds", "frames"]
"""Unit of cut positions: seconds since the first displayed frame, or frame numbers from 0."""
TailPolicy = Literal["keep", "drop", "merge"]
DecodeLevel = Literal["none", "first", "all"]
DECODE_LEVELS: Final[tuple[DecodeLevel, ...]] = ("none", "first", "all")


@suggesting
@dataclass(frozen=True)
class FixedLength:
    """Cut videos into consecutive clips of one length.

    Attributes:
        length: length of a clip, in `unit`.
        unit: "seconds" or "frames".
        tail: for a last clip shorter than `length`: "keep" it, "drop" it, or "merge" it into the previous clip.

    Raises:
        InputError: `unit` or `tail` has another value, or `length` is not possible.
    """

    length: float
    unit: CutUnit = "seconds"
    tail: TailPolicy = "keep"

    def __post_init__(self) -> None:
        one_of(self.unit, get_args(CutUnit), "FixedLength(unit)")
        one_of(self.tail, get_args(TailPolicy), "FixedLength(tail)")


@suggesting
@dataclass(frozen=True)
class Scenes:
    """Cut videos at the scene changes that PySceneDetect's content detector finds.

    Attributes:
        min_length: the shortest scene, in seconds (PySceneDetect's `min_scene_len`).
    """

    min_length: float = 0.6


@dataclass(frozen=True)
class Cut:
    """A row of a cut list: one clip to cut out of a video, with the frames displayed in [start, end).

    Attributes:
        start, end: in `unit`; an `end` of None is the end of the video.
        unit: "seconds", or "frames" with whole numbers.
        label: the clip's label in the list; None: its video's label.
        rows: the number of the row; see `streamvid.packing.metadata`.
        frames: the number of frames that the clip must have; otherwise it is rejected. None: any number.
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
        compatible_with: the decoders with which clips must be compatible. "gpu": transcode only clips that a GPU does
            not decode; "gpu-no-av1": also AV1; "any": transcode nothing.
        cutting: the rule by which videos are cut into clips; None: one clip per video, or the rows of a cut list.
        exact_cuts: re-encode videos that are not cut at key frames, with key frames where clips begin, so that no clip
            stores non-displayed packets. False: copy packets, and the non-displayed packets on which they depend.
        transcode: transcode all clips with these options; None: only incompatible ones, at their size and rate.
        fps: frames per second of image sequences without a file of timestamps, and of raw streams without a rate in
            their header; a float stands for its decimal notation.
        track: number of the video track to pack in every file, counted from 0 without cover pictures; None: FFmpeg's
            choice.
        decode: the frames that must decode for a clip to be accepted: "none"; "first": the first 64 and the middle 64,
            from which a window at the start or in the centre is made; "all". Transcoded videos are always decoded as a
            whole.
        in_place: index videos in place, an MP4 or MOV by its "tables", or by looking at all "packets"; None: pack them.

    Raises:
        InputError: an option is invalid.
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
        one_of(self.compatible_with, get_args(Purpose), "PackOptions(compatible_with)")
        boolean(self.exact_cuts, "PackOptions(exact_cuts)")
        for name, kind in (("cutting", FixedLength | Scenes | None), ("transcode", TranscodeOptions | None)):
            if not isinstance(given := getattr(self, name), kind):
                example = (
                    "FixedLength(10) or Scenes() (a cut list is given as cuts=)"
                    if name == "cutting"
                    else "TranscodeOptions(codec='hevc')"
                )
                raise InputError(f"PackOptions({name}) must be {example}; it is {shown(given)}")
        if not isinstance(self.decode, str) or self.decode not in DECODE_LEVELS:
            raise InputError(f"cannot decode {self.decode!r} before packing: choose from {', '.join(DECODE_LEVELS)}")
        if self.track is not None and not (is_integer(self.track) and self.track >= 0):
            raise InputError(f"a video track of number {self.track!r}: give 0 for the first, 1 for the second, …")
        if self.in_place is not None:
            one_of(self.in_place, ("tables", "packets"), "PackOptions(in_place)")
        if self.fps is None:
            return
        if not is_real(self.fps) or not 0 < self.fps <= 1000:
            raise InputError(f"fps must be a number above 0, and at most 1000; it is {shown(self.fps)}")
        object.__setattr__(self, "fps", decimal(self.fps))


Place = Mapping[str, int | str | None]
"""The columns of a row with the location of a clip's bytes, by name."""


@dataclass(frozen=True)
class PreparedClip:
    """A clip made from a source, ready to be written to a shard.

    Attributes:
        clip: the MP4 and its frame index.
        suffix: appended to the source's key: "" for a whole video, ``_000012`` for a cut.
        rows: numbers of its rows in lists: its video's, then its cut's.
        span: metadata columns with its position in the video; empty for a whole video.
        label: of its cut, or of its video.
        key, source: its key and its video's name; "": the source's own.
        place: the columns of its location, if it is in place; None: derived from the source.
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
    """A cut that gives no clip, although other cuts of the video may: a row of a cut list without frames in the video,
    or with damaged frames.

    Attributes:
        reason: the reason in words, with the cut's position.
    """

    reason: str
