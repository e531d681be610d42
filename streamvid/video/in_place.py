"""Indexes a video in place: makes the frame index that packing would make, with positions in the video's own file.

The packets that packing would copy are searched in the file, byte by byte. So an indexed file decodes to exactly the
frames of a packed clip, and containers that split, join or rewrite packets are noticed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.errors import VideoError
from streamvid.video.probe import VideoFile
from streamvid.video.recordings import track_packets
from streamvid.video.remux import as_video_error, remux_with_ffmpeg, try_ingest
from streamvid.video.stored_clip import StoredClip

_HEADER_BYTES: Final = 64
"""A container's header of a packet: behind where FFmpeg says that the packet lies, before its bytes."""
_DELIMITER: Final = 2
"""Bytes of AV1's temporal delimiter, with which browsers' recordings and IVF begin each packet, and no MP4 does."""
CANNOT: Final = "so it cannot be indexed in place: pack it (--copy-others)"
_WHY: Final = {
    "mpegts": "a transport stream cuts its packets into pieces of 184 bytes",
    "mpeg": "a program stream cuts its packets into packs",
    "ogg": "Ogg cuts its packets into pages",
    "asf": "ASF cuts its packets into pieces",
}


def index_where_it_lies(source: VideoFile, folder: Path) -> StoredClip:
    """The clip that packing would store, with positions in the source file.

    Args:
        source: a local file.
        folder: folder for a temporary copy, if FFmpeg must read the file.

    Raises:
        VideoError: the video cannot be packed by copying, or the file does not contain its packets as a clip stores
            them.
    """
    clip = try_ingest(source.path, cut_only=True) if not source.track else None
    if clip is not None:
        return clip
    folder.mkdir(parents=True, exist_ok=True)
    clip = remux_with_ffmpeg(source, folder, cut_only=True)
    with as_video_error():
        offset = _find_packets(source, clip)
    clip.mp4.unlink()
    return replace(clip, mp4=source.path, index=replace(clip.index, offset=offset))


def _find_packets(source: VideoFile, clip: StoredClip) -> Int64:
    """int64 [packets]: positions in the source of the packets of a remuxed clip.

    Raises:
        VideoError: a packet is not contiguous in the source, or shares its position with others.
    """
    found: list[int] = []
    with (
        source.open(apply_edits=False) as (container, stream),
        source.path.open("rb") as file,
        clip.mp4.open("rb") as copied,
    ):
        kind = container.format.name.split(",")[0]
        places = ((packet.pos, packet.size) for packet in track_packets(container, stream) if packet.size)
        last = None
        surplus = (0, _DELIMITER if clip.codec == "av1" else 0)
        for offset, size in zip(clip.index.offset.tolist(), clip.index.size.tolist(), strict=True):
            copied.seek(offset)
            wanted = copied.read(size)
            for place, length in places:
                if place is not None and place == last:
                    raise VideoError(f"several of its frames share a block (lacing), {CANNOT}")
                last = place
                at = _position(file, place, wanted) if place is not None and length - size in surplus else -1
                if at >= 0:
                    found.append(at)
                    break
            else:
                why = _WHY.get(kind, f"its packets do not lie in the {kind} file as a clip stores them")
                raise VideoError(f"{why}, {CANNOT}")
    return np.array(found, dtype=np.int64)


def _position(file: BinaryIO, place: int, wanted: bytes) -> int:
    """The position of a packet's bytes in a file, at the expected position or a little after it; -1 if they are not
    there."""
    file.seek(place)
    at = file.read(len(wanted) + _HEADER_BYTES).find(wanted)
    return place + at if at >= 0 else -1
