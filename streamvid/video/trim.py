"""Cuts clips out of a stored video, frame-exact and without re-encoding, by copying a selection of its packets.

Most cuts begin in the middle of a group of pictures. Then the packets on which their frames depend are stored, too, as
non-displayed packets (the hidden flag); `streamvid.video.packet_selection` selects them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from streamvid.bitstream import packet_info
from streamvid.checksum import crc32c
from streamvid.mp4.writer import clip_header
from streamvid.video.clip_index import LEAD_IN, traits
from streamvid.video.frame_index import HIDDEN, RANDOM_ACCESS, FrameIndex
from streamvid.video.mapped import mapped
from streamvid.video.packet_selection import select_packets
from streamvid.video.picture_damage import checking_classifier
from streamvid.video.stored_clip import StoredClip


def non_displayed_bytes(index: FrameIndex, first: int, end: int) -> int:
    """Bytes of the packets that a clip of the frames [first, end) stores only because its frames depend on them.

    Packets between its frames that are not displayed in the video either, as in VP8 and VP9, do not count.
    """
    packets = select_packets(index, np.arange(first, end)).numbers
    wanted = index.visible[first:end]
    shown_elsewhere = ((index.flags[packets] & HIDDEN) == 0) & ~np.isin(packets, wanted)
    return int(index.size[packets[shown_elsewhere | (packets < wanted.min())]].sum())


def cut_index(index: FrameIndex, first: int, end: int) -> FrameIndex:
    """The frame index of a clip of the frames [first, end), with the offsets of the video: all other packets that it
    needs are hidden, and the first frame has pts 0."""
    packets = select_packets(index, np.arange(first, end)).numbers
    flags = index.flags[packets] | HIDDEN
    flags[np.isin(packets, index.visible[first:end])] &= ~np.int64(HIDDEN)
    origin = index.frame_pts[first]
    crcs = index.crc32c[packets]
    return FrameIndex(index.pts[packets] - origin, index.offset[packets], index.size[packets], flags, crcs)


def trim_clip(whole: StoredClip, first: int, end: int, target: Path) -> StoredClip:
    """Make a clip of the frames [first, end) of a video.

    Args:
        whole: the video; its `mp4` may be any file with the packets at the offsets of its index.
        first, end: frame numbers, first < end.
        target: path of the clip's MP4, which has an edit list, so that players show only its frames.

    Raises:
        IndexError: the video has no such frames.
        ValueError: the clip cannot be an MP4.
    """
    clip = cut_clip(whole, first, end)
    index = clip.index
    num, den = whole.time_base
    if num != 1:
        raise ValueError(f"its time base {num}/{den} is not that of an MP4")
    head = clip_header(
        whole.stsd,
        pts=index.pts,
        sizes=index.size,
        sync=(index.flags & RANDOM_ACCESS) != 0,
        shown=(0, clip.duration),
        width=whole.width,
        height=whole.height,
        rotation=whole.rotation,
        timescale=den,
    )
    with whole.mp4.open("rb") as source, target.open("wb") as file:
        file.write(head)
        _copy(source, file, index)
    offset = len(head) + np.cumsum(index.size) - index.size
    return replace(clip, mp4=target, index=replace(index, offset=offset), sha256="", unwritten=None)


def cut_clip(whole: StoredClip, first: int, end: int, *, readable: bool = True) -> StoredClip:
    """The clip of the frames [first, end) of a video, in the video's own file.

    Args:
        whole, first, end: as in `trim_clip`.
        readable: its packets can be looked at; if not, the clip has those traits that its index tells.

    Raises:
        IndexError: the video has no such frames.
    """
    index = cut_index(whole.index, first, end)
    duration = frame_end_ticks(whole, end - 1) - int(whole.index.frame_pts[first])
    clip = replace(whole, index=index, duration=duration)
    if not whole.traits and index.flags[0] & RANDOM_ACCESS:
        return clip
    return replace(clip, traits=_traits(clip) if readable else LEAD_IN)


def frame_end_ticks(clip: StoredClip, frame: int) -> int:
    """The tick at which a frame's display ends: the next frame's pts, or the end of the clip."""
    times = clip.index.frame_pts
    return int(times[frame + 1]) if frame + 1 < len(times) else int(times[0]) + clip.duration


def _copy(source: BinaryIO, target: BinaryIO, index: FrameIndex) -> None:
    """Copy packets. Raises ValueError if they are not those that were indexed."""
    for at, size, checksum in zip(index.offset.tolist(), index.size.tolist(), index.crc32c.tolist(), strict=True):
        source.seek(at)
        data = source.read(size)
        if crc32c(data) != checksum:
            raise ValueError("the file was changed while it was packed: run this again")
        target.write(data)


def _traits(clip: StoredClip) -> str:
    data = mapped(clip.mp4).data
    places = zip(clip.index.offset.tolist(), clip.index.size.tolist(), strict=True)
    packets = (data[at : at + size] for at, size in places)
    kinds = packet_info.classify(clip.codec, clip.stsd, packets, checking_classifier)
    return traits(clip.codec, kinds, clip.index.pts)
