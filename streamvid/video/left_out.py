"""Finds the content of a video file that is not packed: other tracks, the missing end of a file that is cut off, and
what nobody can know to be missing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from streamvid.mp4.boxes import children, iter_file_boxes, read_moov
from streamvid.mp4.sample_entry import read_entries
from streamvid.video.gaps import END_STATED, find_extent
from streamvid.video.mapped import mapped
from streamvid.video.probe import VideoFile
from streamvid.video.recordings import is_numbered
from streamvid.video.stored_clip import AUDIO, CUT_OFF, JOINED, OTHER_TRACKS, UNNUMBERED
from streamvid.video.tracks import video_streams

_MEDIA: Final = (b"mdat", b"moof", b"moov")
"""Boxes with pictures and tables of them: behind the last there may be anything."""
_MAX_CHUNKS: Final = 1 << 12
_ZEROS: Final = 1 << 16
"""Bytes of zeros at the end of a file that was not downloaded to its end, or not written."""
_HEADERS: Final[Mapping[str, bytes]] = {
    "flv": rb"FLV\x01[\x00-\x07]\x00\x00\x00\x09\x00\x00\x00\x00",  # and the size of no tag
    "asf": rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c",
    "apng": rb"\x89PNG\r\n\x1a\n",
    "ivf": rb"DKIF\x00\x00\x20\x00",
}
"""By FFmpeg's demuxer: how a file begins, of those behind which it reads no other."""


def left_out(source: VideoFile) -> tuple[str, ...]:
    """The content of a file that is not packed: `AUDIO`, `OTHER_TRACKS`, `CUT_OFF`, `JOINED`; and `UNNUMBERED`.

    Raises:
        OSError: the file cannot be read.
        ValueError: as in `streamvid.video.tracks.video_stream` and `streamvid.video.gaps.find_extent`; or there are
            frames of several codecs in its track.
    """
    with source.open() as (container, stream):
        codes = read_entries(read_moov(source.path), stream.id) if container.format.name.startswith("mov") else {}
        if len(codes) > 1 and _count_packets(source) < stream.frames:
            names = " and ".join(name.decode("latin-1") for name in codes)
            raise ValueError(
                f"its track has frames of {names}, of which FFmpeg reads those of one alone: split it there"
            )
        audio, several = bool(container.streams.audio), len(video_streams(container)) > 1
        name = container.format.name.split(",")[0]
        joined = _is_joined(source.path, name)
        codec = stream.codec_context.codec.canonical_name if stream.codec_context else ""
        cut_off = _is_cut_off(source.path, name, codec) or (source.cut_off and not joined)
        unnumbered = name == "mpegts" and not is_numbered(source.path, stream.id, codec)
    found = {AUDIO: audio, OTHER_TRACKS: several, CUT_OFF: cut_off, JOINED: joined, UNNUMBERED: unnumbered}
    return tuple(remark for remark, applies in found.items() if applies)


def _count_packets(source: VideoFile) -> int:
    with source.open(apply_edits=False) as (container, stream):
        return sum(packet.size > 0 for packet in container.demux(stream))


def _is_joined(path: Path, container: str) -> bool:
    """Whether a file of FFmpeg's demuxer `container` has another one behind it, which FFmpeg does not read. Of MP4s it
    reads fragments behind another moov."""
    if container in _HEADERS:
        return re.search(_HEADERS[container], mapped(path).data[1:]) is not None
    moov = b""
    if container == "mov":
        with path.open("rb") as file:
            kinds = [kind for kind, _, _ in islice(iter_file_boxes(file, path.stat().st_size), _MAX_CHUNKS)]
        moov = read_moov(path) if min(kinds.count(b"ftyp"), kinds.count(b"moov")) > 1 else b""
    return bool(moov) and b"mvex" not in children(moov, 0, len(moov))


def _is_cut_off(path: Path, container: str, codec: str) -> bool:
    """Whether a file of FFmpeg's demuxer `container` is shorter than its headers say, or ends with many zeros, which
    are no black picture. Raises as `find_extent`."""
    length = path.stat().st_size
    with path.open("rb") as file:
        boxes = iter_file_boxes(file, length) if container == "mov" else ()
        if any(kind in _MEDIA and end > length for kind, _, end in boxes):
            return True
        if container == "avi" and _riff_end(file) > length:
            return True
        if container not in END_STATED and codec != "rawvideo" and length > _ZEROS:
            file.seek(-_ZEROS, os.SEEK_END)
            if not any(file.read()):
                return True
    return find_extent(path, container).end > length


def _riff_end(file: BinaryIO) -> int:
    """The end of the last RIFF chunk of an AVI, which has one for each GB, unless it does not say, as if live."""
    at = 0
    for _ in range(_MAX_CHUNKS):
        file.seek(at)
        head = file.read(8)
        if head[:4] != b"RIFF" or head[4:] == b"\xff" * 4:
            break
        at += 8 + int.from_bytes(head[4:], "little")
    return at
