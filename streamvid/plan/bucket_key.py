"""Bucket keys: a small integer for each decoder configuration (size, codec, pixel format, parameter sets) of a dataset.

A hardware decoder is opened for one such configuration. The whole sample description (stsd) cannot be the key, because
most muxers write each file's bit rate into it (`btrt`), so that hardly two are equal.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64, unique_rows
from streamvid.bitstream.annexb import parameter_sets
from streamvid.dataset.clip_table import ClipTable
from streamvid.mp4.sample_entry import BIT_RATE_BOX, codec_configuration

BucketKeys = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

_CODEC_OF: Final = ((b"avcC", "h264"), (b"hvcC", "hevc"))
_BLOCK: Final = 1 << 16
"""Sample descriptions that are compared at a time, for memory."""


def bucket_keys(clips: ClipTable, rows: Int64 | None = None) -> BucketKeys:
    """The bucket key of every clip.

    Keys number the configurations in the order of area, width, codec, pixel format and parameter sets. Similar clips
    have keys close to each other, and the order of two clips' keys is the same in any dataset that holds both.

    Args:
        rows: int64, the selected clips; default: all.

    Returns:
        uint16 or uint32 [clips], numbers from 0 without gaps; 0 for rows that are not selected.
    """
    chosen = np.arange(len(clips)) if rows is None else rows
    sets_of, sets = _parameter_sets(clips, clips.stsd_id[chosen])
    categories = clips.codec.codes[chosen], clips.pix_fmt.codes[chosen]
    example, which = unique_rows(clips.width[chosen], clips.height[chosen], *categories, sets_of)
    keys = []
    for n in example.tolist():
        row = chosen[n]
        width, height = int(clips.width[row]), int(clips.height[row])
        keys.append((width * height, width, clips.codec[row], clips.pix_fmt[row], sets[sets_of[n]]))
    numbers = np.empty(len(keys), dtype=np.uint16 if len(keys) <= 1 << 16 else np.uint32)
    numbers[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
    result = np.zeros(len(clips), dtype=numbers.dtype)
    result[chosen] = numbers[which]
    return result


def _parameter_sets(clips: ClipTable, stsd_id: npt.NDArray[np.int32]) -> tuple[Int64, list[bytes]]:
    """int64 [rows], an index for each row into the list of distinct parameter sets; b"" for clips without any."""
    used = np.unique(stsd_id)
    index_of: dict[bytes, int] = {}
    known: dict[tuple[str, bytes], int] = {}
    indices = np.empty(len(used), dtype=np.int64)
    for start in range(0, len(used), _BLOCK):
        # There may be a sample description for every clip. Those that differ only in the bit rate are parsed once.
        stsds = clips.stsds.array.take(pa.array(used[start : start + _BLOCK])).combine_chunks()
        encoded: Any = pc.replace_substring_regex(stsds, pattern=BIT_RATE_BOX, replacement="").dictionary_encode()
        which = encoded.indices.to_numpy()
        first = np.empty(len(encoded.dictionary), dtype=np.int64)
        first[which[::-1]] = np.arange(len(which) - 1, -1, -1)
        own = []
        for stsd in stsds.take(pa.array(first)).to_pylist():
            codec, box = configuration = _configuration(stsd)
            if configuration not in known:
                sets = b""
                if box:
                    with suppress(ValueError):
                        sets = parameter_sets(codec, stsd).annex_b
                known[configuration] = index_of.setdefault(sets, len(index_of))
            own.append(known[configuration])
        indices[start : start + _BLOCK] = np.array(own, dtype=np.int64)[which]
    return indices[np.searchsorted(used, stsd_id)], list(index_of)


def _configuration(stsd: bytes) -> tuple[str, bytes]:
    """The codec, and the payload of the box that holds the parameter sets; both empty if there is none."""
    for name, codec in _CODEC_OF:
        with suppress(ValueError):
            return codec, codec_configuration(stsd, name)
    return "", b""
