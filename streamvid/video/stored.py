"""What one video becomes: the value that packing a file yields and a shard is written from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from streamvid.video.index import FrameIndex


@dataclass(frozen=True)
class StoredClip:
    """One clip, ready to be put into a shard. The columns are those of docs/format.md.

    Attributes:
        mp4: a local file with the clip's bytes, one video track, moov first.
        index: its packets.
        codec, profile, pix_fmt, color_space, color_range, traits: as docs/format.md names them.
        width, height: decoded frames, in pixels, before rotation.
        rotation: degrees clockwise that stand the frames upright: 0, 90, 180 or 270.
        time_base: seconds per tick, as (numerator, denominator).
        duration: ticks from the first visible frame to the end of the last.
        stsd: the sample description box, whole.
    """

    mp4: Path
    index: FrameIndex
    codec: str
    profile: str
    pix_fmt: str
    color_space: str
    color_range: str
    traits: str
    width: int
    height: int
    rotation: int
    time_base: tuple[int, int]
    duration: int
    stsd: bytes
