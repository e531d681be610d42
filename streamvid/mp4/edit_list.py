"""Edit lists of MP4 and MOV files (ISO/IEC 14496-12, 8.6.6): reading the part of a track that is displayed, and
shortening it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from streamvid.mp4.boxes import MAX_HEAD_BYTES, children, find_box, find_track, read_moov, read_timescale

_NO_END: Final = 1 << 62
_RATE_1: Final = (1, 0)
"""media_rate_integer and media_rate_fraction of 1.0."""


@dataclass(frozen=True)
class Edit:
    """The part of a track that an edit list shows.

    Attributes:
        begin, end: ticks of the track; frames with begin <= pts < end are shown.
    """

    begin: int
    end: int


def read_edit(source: Path, track: int) -> Edit | None:
    """The part of a track that its edit list shows, if it is a single part.

    Args:
        track: the track's number (`track_ID`).

    Returns:
        None if the file is no MP4 or cannot be parsed; if the track has no edit list, or one for which
        `parse_edit_list` returns None; and for an edit of length 0 in a file without fragments, or of another length in
        a file with fragments.

    Raises:
        OSError: the file cannot be opened.
    """
    moov = read_moov(source)
    try:
        return _edit_of_track(moov, track)
    except (struct.error, IndexError, KeyError):
        return None


def parse_edit_list(moov: bytes, start: int, end: int, *, movie_scale: int, scale: int) -> Edit | None:
    """The part of a track that an `elst` box shows.

    Args:
        moov: the payload of the `moov` box.
        start, end: position of the payload of the `elst` box in it.
        movie_scale, scale: ticks per second of the movie and of the track.

    Returns:
        None for several parts, and for a part with another media rate than 1. An edit of length 0 has equal `begin` and
        `end`.

    Raises:
        struct.error, IndexError: the box is too short.
    """
    layout = struct.Struct(">Qqhh" if moov[start] == 1 else ">Iihh")
    (count,) = struct.unpack_from(">I", moov, start + 4)
    if not 0 < count <= 2 or start + 8 + count * layout.size != end or not movie_scale:
        return None
    edits = [layout.unpack_from(moov, start + 8 + n * layout.size) for n in range(count)]
    # An empty edit (media_time -1) may come first: it delays the track.
    if any(edit[2:] != _RATE_1 for edit in edits) or any(edit[1] != -1 for edit in edits[:-1]):
        return None
    length, begin = edits[-1][:2]
    if begin < 0:
        return None
    # segment_duration is in ticks of the movie; rounded to the nearest tick, like FFmpeg.
    return Edit(begin, begin + (2 * length * scale + movie_scale) // (2 * movie_scale))


def limit_edit(file: BinaryIO, seconds: float) -> bool:
    """Shorten the last entry of a file's only edit list, in place. Returns False if there is none.

    Args:
        file: an MP4 with `moov` before `mdat`, open for reading and writing.
    """
    data = file.read(MAX_HEAD_BYTES)
    elst, mvhd = find_box(data, b"elst"), find_box(data, b"mvhd")
    if elst is None or mvhd is None:
        return False
    start, _ = elst
    (count,) = struct.unpack_from(">I", data, start + 4)
    wide = data[start] == 1
    file.seek(start + 8 + (count - 1) * (20 if wide else 12))
    file.write(struct.pack(">Q" if wide else ">I", round(seconds * read_timescale(data, mvhd[0]))))
    return True


def _edit_of_track(moov: bytes, track: int) -> Edit | None:
    top = children(moov, 0, len(moov))
    # Where there is none, FFmpeg counts seconds (mov_read_mvhd and mov_read_mdhd in libavformat/mov.c).
    movie_scale = read_timescale(moov, top[b"mvhd"][0]) or 1
    trak = find_track(moov, track)
    elst = children(moov, *trak[b"edts"])[b"elst"]
    mdhd, _ = children(moov, *trak[b"mdia"])[b"mdhd"]
    edit = parse_edit_list(moov, *elst, movie_scale=movie_scale, scale=read_timescale(moov, mdhd) or 1)
    is_open = edit is not None and edit.end == edit.begin
    if edit is None or is_open != (b"mvex" in top):
        # In a fragmented file, an edit of length 0 reaches to the end, and other lengths may not include the fragments.
        # In other files an edit of length 0 shows nothing.
        return None
    return replace(edit, end=_NO_END) if is_open else edit
