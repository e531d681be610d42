"""A video as a clip where it lies: the frame index that packing gives, with positions in the video's own file.

What packing would copy is looked for in the file, byte by byte. So a file that is indexed decodes to the very frames
that it would have as a packed clip, and whatever splits, joins or rewrites packets is found out, in any container.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.errors import VideoError
from streamvid.video.probe import VideoFile
from streamvid.video.remux import as_video_error, remux_with_ffmpeg, try_ingest
from streamvid.video.stored_clip import StoredClip

_HEADER_BYTES: Final = 64
"""A container's header of a packet: behind where FFmpeg says that the packet lies, before its bytes."""
CANNOT: Final = "so that it cannot be read where it lies: pack it (--copy-others)"
_WHY: Final = {
    "mpegts": "a transport stream cuts its packets into pieces of 184 bytes",
    "mpeg": "a program stream cuts its packets into packs",
    "ogg": "Ogg cuts its packets into pages",
    "asf": "ASF cuts its packets into pieces",
}


def index_where_it_lies(source: VideoFile, folder: Path) -> StoredClip:
    """The clip that packing would store, with positions in the source.

    Args:
        source: a local file.
        folder: for a temporary copy, where FFmpeg must read the file.

    Raises:
        VideoError: it cannot be packed by copying, or its packets do not lie in it as a clip stores them.
    """
    clip = try_ingest(source.path, cut_only=True) if not source.track else None
    if clip is not None:
        return clip
    folder.mkdir(parents=True, exist_ok=True)
    clip = remux_with_ffmpeg(source, folder, moov_first=False)
    with as_video_error():
        offset = _find_packets(source, clip)
    clip.mp4.unlink()
    return replace(clip, mp4=source.path, index=replace(clip.index, offset=offset))


def _find_packets(source: VideoFile, clip: StoredClip) -> Int64:
    """int64 [packets]: where the packets of a remuxed clip lie in the source.

    Raises:
        VideoError: one of them does not lie there in one piece, or shares its place with others.
    """
    found: list[int] = []
    with (
        source.open(apply_edits=False) as (container, stream),
        source.path.open("rb") as file,
        clip.mp4.open("rb") as copied,
    ):
        kind = container.format.name.split(",")[0]
        places = ((packet.pos, packet.size) for packet in container.demux(stream) if packet.size)
        last = None
        for offset, size in zip(clip.index.offset.tolist(), clip.index.size.tolist(), strict=True):
            copied.seek(offset)
            wanted = copied.read(size)
            for place, length in places:
                if place is not None and place == last:
                    raise VideoError(f"several of its frames share a block (lacing), {CANNOT}")
                last = place
                at = _position(file, place, wanted) if place is not None and length == size else -1
                if at >= 0:
                    found.append(at)
                    break
            else:
                why = _WHY.get(kind, f"its packets do not lie in the {kind} file as a clip stores them")
                raise VideoError(f"{why}, {CANNOT}")
    return np.array(found, dtype=np.int64)


def _position(file: BinaryIO, place: int, wanted: bytes) -> int:
    """Where a packet's bytes begin in a file, at a place or a little behind it; -1 if they are not there."""
    file.seek(place)
    at = file.read(len(wanted) + _HEADER_BYTES).find(wanted)
    return place + at if at >= 0 else -1
