"""A single image as a clip of one frame: the bytes of its file are the only packet, unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.bitstream.image import CODECS, classify, read_header
from streamvid.checksum import crc32c
from streamvid.mp4.sample_entry import visual_sample_description
from streamvid.mp4.writer import clip_header
from streamvid.video.clip_index import build_clip
from streamvid.video.packet_times import PacketTimes
from streamvid.video.probe import FrameFormat
from streamvid.video.stored_clip import StoredClip, UnwrittenMp4

EXTENSIONS: Final[Mapping[str, str]] = {
    "jpeg": "jpg", "png": "png", "webp": "webp", "tiff": "tif", "bmp": "bmp", "jpeg2000": "jp2",
}  # fmt: skip
"""Codecs of images → how their files are named."""
_RATE: Final = 25
"""An image is shown for a 25th of a second, as in FFmpeg."""


def image_clip(file: Path, data: bytes, signature: tuple[int, int] | None = None) -> StoredClip:
    """The clip of an image.

    Args:
        data: the bytes of its file.
        signature: `streamvid.video.stored_clip.file_signature` of the file, to store the clip as an MP4; None: the
            index has positions in the file.

    Raises:
        ValueError: as in `streamvid.bitstream.image.read_header`.
    """
    header = read_header(data)
    width, height = header.width, header.height
    stsd = visual_sample_description(CODECS[header.codec], b"", width=width, height=height)
    start, size, key = np.zeros(1, np.int64), np.array([len(data)]), np.ones(1, np.bool_)
    head, sha256, unwritten = b"", "", None
    if signature is not None:
        head = clip_header(
            stsd, pts=start, sizes=size, sync=key, shown=(0, 1), width=width, height=height, rotation=header.rotation,
            timescale=_RATE,
        )  # fmt: skip
        sha256 = hashlib.sha256(head + data).hexdigest()
        unwritten = UnwrittenMp4(head, start, size, signature)
    clip = build_clip(
        file,
        header.codec,
        "",
        FrameFormat(width, height, header.pix_fmt, "gbr", "unknown", "pc", header.rotation),
        stsd=stsd,
        kinds=[classify(memoryview(data))],
        times=PacketTimes(start, size, key, ~key, 1, (1, _RATE)),
        last_frame=1,
        offset=start + len(head),
        crcs=[crc32c(data)],
    )
    return replace(clip, color_space="gbr", sha256=sha256, unwritten=unwritten)
