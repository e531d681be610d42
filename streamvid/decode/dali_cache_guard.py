"""What is known of NVDEC behind DALI, and a guard against DALI's decoder cache.

DALI keeps hardware decoders in a cache, one for the whole process, under the height that they *deliver*, and looks
them up by the height that the stream is *coded* in, a multiple of 16 (DALI 2.4, frames_decoder_gpu.cc, NVDECCache).
A 1080-high stream is coded with 1088 rows. So once a stream that is really 1088 high has been decoded, a 1080-high
one gets its decoder, and frames stretched by 8 rows. Measured here on an H200 for H.264, HEVC, VP8 and MPEG-4, never
for VP9, and for heights
alone: docs/dali-notes.md.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

_CODED_IN_BLOCKS: Final = ("h264", "hevc", "vp8", "mpeg4")
_BLOCK: Final = 16

Family = tuple[str, int, int]
"""Codec, width, coded height: streams of one family can get each other's decoders."""


def family(codec: str, width: int, height: int) -> Family | None:
    """Which streams' decoders DALI may hand to a stream of this size; None if no others'.

    Args:
        codec: as in docs/format.md.
        width, height: of decoded frames, in pixels.
    """
    if codec not in _CODED_IN_BLOCKS:
        return None
    return codec, width, -(-height // _BLOCK) * _BLOCK


def opens_anew(codec: str, width: int, height: int) -> bool:
    """Whether DALI opens a hardware decoder for every stream of this size, as it never finds one in its cache."""
    kind = family(codec, width, height)
    return kind is not None and height != kind[2]


class DecoderCacheGuard:
    """Lets into DALI, of every family, either streams as high as they are coded or lower ones, never both.

    DALI's cache lives as long as the process and is shared by all its pipelines, so one guard must see all that is
    decoded: `shared_guard`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cropped: dict[tuple[int, Family], bool] = {}

    def admit(self, device_id: int, codec: str, width: int, height: int) -> bool:
        """Whether DALI decodes such a stream rightly in this process; the first of a family decides for the others."""
        kind = family(codec, width, height)
        if kind is None:
            return True
        cropped = height != kind[2]
        with self._lock:
            return self._cropped.setdefault((device_id, kind), cropped) == cropped

    def prefer(self, device_id: int, counts: Mapping[tuple[str, int, int], int]) -> None:
        """Let the more frequent kind in, of every family that nothing has been decoded of yet.

        Args:
            device_id: the GPU.
            counts: how many clips there are of each codec, width and height.
        """
        votes: dict[Family, int] = {}
        for (codec, width, height), count in counts.items():
            kind = family(codec, width, height)
            if kind is not None:
                votes[kind] = votes.get(kind, 0) + (count if height != kind[2] else -count)
        with self._lock:
            for kind, vote in votes.items():
                self._cropped.setdefault((device_id, kind), vote > 0)


_SHARED: Final = DecoderCacheGuard()


def shared_guard() -> DecoderCacheGuard:
    """The process' guard: as global as the cache that it guards."""
    return _SHARED
