"""Gaps in Matroska, WebM and Ogg files, as of a download that was not finished, or of a lost sector of a disk. FFmpeg's
demuxers look for the next whole part behind one, and leave out the frames before it without a word."""

from __future__ import annotations

import math
import re
import zlib
from pathlib import Path
from typing import Final

from streamvid.video.mapped import mapped

_EBML: Final = b"\x1a\x45\xdf\xa3"
_SEGMENT: Final = 0x18538067
_CLUSTER: Final = 0x1F43B675
_ID_BYTES: Final = 4
_FIRST: Final = 2
_LAST: Final = 4
"""Flags of an Ogg page: its stream begins (`_FIRST`), and ends (RFC 3533, 6)."""
_PAGE_HEADER: Final = 27
_NUT: Final = b"nut/multimedia container\0"
_MIRRORED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def stated_end(source: Path, container: str) -> float:
    """Where a file says that it ends, in bytes; 0 if it does not say. If its length is less, it is cut off.

    Args:
        container: FFmpeg's demuxer. Matroska and Ogg say so.

    Raises:
        ValueError: the file has a gap, or is several Ogg or NUT files, of which FFmpeg decodes the first alone.
    """
    if container == "nut" and (second := re.search(_NUT, mapped(source).data[1:])):
        raise _joined("NUT", second.start() + 1)
    if container == "matroska":
        return _matroska_end(mapped(source).data)
    return _ogg_end(mapped(source).data) if container == "ogg" else 0


def _damaged(at: int) -> ValueError:
    return ValueError(
        f"it is damaged at byte {at}, and frames there are lost: copy or download it again, or keep the others "
        "(ffmpeg -i … -c copy new.mkv)"
    )


def _joined(kind: str, at: int) -> ValueError:
    return ValueError(
        f"it is several {kind} files that were joined byte by byte, of which FFmpeg decodes the first alone: split it "
        f"(the second begins at byte {at}), or join the files by ffmpeg -f concat"
    )


def _matroska_end(data: memoryview) -> float:
    """`stated_end` of Matroska and WebM: elements that follow each other (RFC 8794, 4 to 6; RFC 9559, 5.1)."""
    at, segment_end, cluster_end = 0, math.inf, math.inf
    while at < len(data):
        if at >= segment_end:
            if bytes(data[at : at + _ID_BYTES]) != _EBML:  # no other file
                break
            segment_end = math.inf
        start = at + 9 - data[at].bit_length()  # the leading zeros of the first byte count those that follow
        begin = start + 9 - data[start].bit_length() if start < len(data) else start
        if start - at > _ID_BYTES or begin - start > 8:
            raise _damaged(at)
        if not start < begin <= len(data):
            return begin + 1
        kind, unknown = int.from_bytes(data[at:start], "big"), (1 << 7 * (begin - start)) - 1
        size = int.from_bytes(data[start:begin], "big") & unknown
        end = math.inf if size == unknown else begin + size  # live recordings do not state it
        cluster_end = math.inf if at >= cluster_end else cluster_end
        if kind == _SEGMENT:
            at, segment_end = begin, end
        elif kind == _CLUSTER:
            at, cluster_end = begin, end
        elif end > cluster_end or end == math.inf:
            raise _damaged(at)
        else:
            at = int(end)
    return max(at, segment_end) if segment_end < math.inf else at


def _ogg_end(data: memoryview) -> int:
    """`stated_end` of Ogg: pages that follow each other, each with a checksum (RFC 3533, 6)."""
    at, flags, begun = 0, 0, False
    while at + _PAGE_HEADER <= len(data):
        if bytes(data[at : at + 4]) != b"OggS":
            if flags & _LAST:
                break
            raise _damaged(at)
        flags, begin = data[at + 5], at + _PAGE_HEADER + data[at + 26]
        end = begin + sum(data[at + _PAGE_HEADER : begin])
        if end > len(data):
            return end
        if begun and flags & _FIRST:
            raise _joined("Ogg", at)
        if _page_crc(data[at:end]) != int.from_bytes(data[at + 22 : at + 26], "little"):
            raise _damaged(at)
        at, begun = end, begun or not flags & _FIRST
    return at


def _page_crc(page: memoryview) -> int:
    """The checksum of an Ogg page: zlib's polynomial, but from the highest bit of each byte on, and from 0."""
    mirrored = (bytes(page[:22]) + bytes(4) + bytes(page[26:])).translate(_MIRRORED)
    return int(f"{zlib.crc32(mirrored, 0xFFFFFFFF) ^ 0xFFFFFFFF:032b}"[::-1], 2)
