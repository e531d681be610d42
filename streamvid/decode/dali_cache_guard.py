"""A guard against DALI's decoder cache, which gives streams decoders that were opened for another height.

DALI keeps NVDEC decoders in a cache, one for the whole process. It stores them under the height that they *deliver* and
looks them up by the height that the stream is *coded* in, a multiple of 16 (DALI 2.4, frames_decoder_gpu.cc,
NVDECCache). A 1080-high stream is coded with 1088 rows. Once a stream that is really 1088 high has been decoded, a
1080-high one gets its decoder, and wrong frames. Measured on an H200 for H.264, HEVC, VP8 and MPEG-4; VP9 and widths
are not concerned (docs/dali-notes.md).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64, unique_rows
from streamvid.dataset.clip_source import ClipSource

_MACROBLOCK_CODECS: Final = ("h264", "hevc", "vp8", "mpeg4")
_MACROBLOCK: Final = 16

CacheKey = tuple[str, int, int]
"""Codec, width, coded height: streams with equal keys can get each other's decoders."""


def cache_key(codec: str, width: int, height: int) -> CacheKey | None:
    """The key by which DALI looks up a decoder; None for codecs whose decoders it does not mix up.

    Args:
        codec: as in docs/format.md.
        width, height: of decoded frames, in pixels.
    """
    if codec not in _MACROBLOCK_CODECS:
        return None
    return codec, width, -(-height // _MACROBLOCK) * _MACROBLOCK


def misses_cache(codec: str, width: int, height: int) -> bool:
    """Whether DALI opens a decoder for every stream of this size, because it never finds one in its cache."""
    key = cache_key(codec, width, height)
    return key is not None and height != key[2]


class DecoderCacheGuard:
    """Admits to DALI, for every cache key, either streams as high as they are coded or lower ones, never both.

    The cache lives as long as the process and is shared by all pipelines, so all decoding must ask one guard:
    `SHARED_GUARD`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._admits_cropped: dict[tuple[int, CacheKey], bool] = {}

    def admit(self, device_id: int, codec: str, width: int, height: int) -> bool:
        """Whether DALI decodes such a stream correctly in this process. The first stream of a key decides for later
        ones."""
        key = cache_key(codec, width, height)
        if key is None:
            return True
        cropped = height != key[2]
        with self._lock:
            return self._admits_cropped.setdefault((device_id, key), cropped) == cropped

    def prefer(self, device_id: int, counts: Mapping[tuple[str, int, int], int]) -> list[tuple[str, int, int]]:
        """For every key that is not decided yet, admit the more frequent heights.

        Args:
            device_id: the GPU.
            counts: number of clips of each codec, width and height.

        Returns:
            the entries of `counts` that are not admitted.
        """
        votes: dict[CacheKey, int] = {}
        for (codec, width, height), count in counts.items():
            key = cache_key(codec, width, height)
            if key is not None:
                votes[key] = votes.get(key, 0) + (count if height != key[2] else -count)
        with self._lock:
            for key, vote in votes.items():
                self._admits_cropped.setdefault((device_id, key), vote > 0)
        return [size for size in counts if not self.admit(device_id, *size)]


SHARED_GUARD: Final = DecoderCacheGuard()
"""The guard of this process: as global as the cache that it guards."""


def mixed_up(dataset: ClipSource, rows: Int64, device_id: int) -> Bool:
    """Find the clips that DALI must not decode, because its cache would give them the decoder of others.

    Among sizes that it mixes up, the more frequent ones are admitted.

    Args:
        dataset: the dataset.
        rows: int64 [clips], the clips that DALI would decode.
        device_id: the GPU.

    Returns:
        bool [clips]: the clips that it must not decode.
    """
    clips = dataset.clips
    first, which = unique_rows(clips.codec.codes[rows], clips.width[rows], clips.height[rows])
    sizes = [(clips.codec[row], int(clips.width[row]), int(clips.height[row])) for row in rows[first].tolist()]
    refused = SHARED_GUARD.prefer(device_id, dict(zip(sizes, np.bincount(which).tolist(), strict=True)))
    return np.asarray(np.array([size in refused for size in sizes], dtype=bool)[which])
