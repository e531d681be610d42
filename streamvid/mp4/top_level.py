"""The top-level boxes of an MP4 or MOV file: its tables, the ranges of its packets, and its fragments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.mp4.boxes import MAX_MOOV_BYTES, OpenFile, iter_file_boxes

_HEADERS_BYTES: Final = 64
"""Of the boxes behind the moov, which are asked for with it."""
_REST_BYTES: Final = 1 << 16
"""Bytes behind the packets that are read at once: the moov of some minutes."""
_MAX_BOXES: Final = 1000
"""Top-level boxes of a file."""
_TOP_LEVEL: Final = frozenset((b"ftyp", b"free", b"skip", b"wide", b"mdat", b"moov"))
_FRAGMENTED: Final = frozenset((b"styp", b"sidx", b"ssix", b"moof", b"mfra", b"emsg", b"prft"))
"""Further boxes of a file in fragments."""
_MAX_FRAGMENTED_BOXES: Final = 100_000
_MAX_MOOF_BYTES: Final = 16 << 20


class NeedsDemuxerError(ValueError):
    """A file that cannot be read by its own tables, because it is damaged or has features that are not supported here;
    the message names the feature. FFmpeg's demuxer decides which of the two it is."""


@dataclass(frozen=True)
class TopLevel:
    """The top-level boxes of a file.

    Attributes:
        moov: the payload of the `moov` box.
        media: int64 [mdats, 2], start and end of the payload of each `mdat`.
        fragments: position and payload of each `moof` box.
    """

    moov: bytes
    media: Int64
    fragments: tuple[tuple[int, bytes], ...] = ()


def read_top_level(file: OpenFile, length: int, *, fragments: bool) -> TopLevel:
    """Read a file's tables.

    Args:
        file: open for reading.
        length: size of the file in bytes.

    Raises:
        NeedsDemuxerError: the file has no tables, or features that are not supported here.
        OSError: it cannot be read.
    """
    moov: bytes | None = None
    media: list[tuple[int, int]] = []
    moofs: list[tuple[int, bytes]] = []
    at = 0
    kinds, most = (_TOP_LEVEL | _FRAGMENTED, _MAX_FRAGMENTED_BOXES) if fragments else (_TOP_LEVEL, _MAX_BOXES)
    for count, (kind, payload, end) in enumerate(iter_file_boxes(file, length)):
        require(count < most, "very many boxes")
        require(kind in kinds and (kind == b"ftyp") == (at == 0), f"a box {kind!r} at {at}")
        require(payload <= end <= length, f"a box {kind!r} that is cut off")
        if kind == b"mdat":
            media.append((payload, end))
            # Read ahead what probably comes next, header included: a fragment as large as the previous one.
            rest = _REST_BYTES if moov is None else len(moofs[-1][1]) + 2 * _HEADERS_BYTES if moofs else 0
            if rest and end < length:
                file.seek(end)
                file.read(min(length - end, rest))
        elif kind in (b"moov", b"moof"):
            most_bytes = MAX_MOOV_BYTES if kind == b"moov" else _MAX_MOOF_BYTES
            require(kind == b"moof" or moov is None, "a second moov")
            require(end - payload <= most_bytes, f"a huge {kind.decode()}")
            file.seek(payload)
            read = file.read(end - payload + _HEADERS_BYTES)[: end - payload]
            require(len(read) == end - payload, f"a {kind.decode()} that is cut off")
            if kind == b"moov":
                moov = read
            else:
                moofs.append((at, read))
        at = end
    require(at == length, "a broken box")
    if moov is None or not media:
        raise NeedsDemuxerError("no moov, or no mdat")
    return TopLevel(moov, np.array(media, dtype=np.int64), tuple(moofs))


def require(condition: bool, what: str) -> None:
    """Refuse the file unless the condition holds; `what` names the unsupported feature."""
    if not condition:
        raise NeedsDemuxerError(what)
