"""Which clips DALI's video decoder gets right, asked before a run: what it cannot decode must not surface in the middle
of an epoch, and what it decodes wrongly without an error must not surface at all. docs/dali-notes.md has the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.clip_table import Categories
from streamvid.decode.dali_cache_guard import shared_guard
from streamvid.errors import InputError
from streamvid.video.stored_clip import UNORDERED

_CPU_CODECS: Final = ("vp8", "vp9", "mjpeg")
_GPU_PIX_FMTS: Final = ("yuv420p", "yuvj420p", "yuv420p10le")
_NAMED: Final = 3
"""Clips that a message names of each kind."""


def check_decodable(dataset: ClipSource, rows: Int64, *, device_id: int | None) -> None:
    """Refuse clips that DALI's decoder on this device fails on, or decodes wrongly.

    Args:
        dataset: the dataset.
        rows: int64 [clips], the rows that will be used.
        device_id: the GPU's number, or None for the CPU.

    Raises:
        InputError: there are some. Names them, why, and the remedy.
    """
    found = []
    left = np.ones(len(rows), dtype=bool)
    for mask, reason in _on_cpu(dataset, rows) if device_id is None else _on_gpu(dataset, rows, device_id):
        wrong = rows[mask & left]
        left &= ~mask
        if len(wrong):
            codecs = "/".join(sorted({dataset.clips.codec[row] for row in wrong.tolist()}))
            keys = ", ".join(dataset.key(row) for row in wrong[:_NAMED].tolist())
            found.append(f"{len(wrong)} clips of {codecs} such as {keys} ({reason})")
    if found:
        raise InputError(
            f'engine="dali" cannot decode {"; ".join(found)}: give engine="default", leave them out, '
            "or pack them with --codec vp9"
        )


def _on_cpu(dataset: ClipSource, rows: Int64) -> Iterator[tuple[Bool, str]]:
    """bool [clips] of what the CPU decoder fails on, with the reason."""
    codec = dataset.clips.codec
    yield (
        ~_has(codec, rows, lambda name: name in _CPU_CODECS),
        "DALI's CPU decoder knows VP8, VP9 and Motion JPEG alone",
    )
    yield _hidden_in_vp8(dataset, rows)


def _on_gpu(dataset: ClipSource, rows: Int64, device_id: int) -> Iterator[tuple[Bool, str]]:
    """Likewise for the GPU's."""
    clips = dataset.clips
    codec = clips.codec

    def trait(*names: str) -> Bool:
        return _has(clips.traits, rows, lambda traits: not set(names).isdisjoint(traits.split(",")))

    h264 = _has(codec, rows, lambda name: name == "h264")
    yield _has(codec, rows, lambda name: name == "mjpeg"), "DALI decodes Motion JPEG on the CPU alone"
    yield (
        ~_has(clips.pix_fmt, rows, lambda name: name in _GPU_PIX_FMTS),
        "NVDEC behind DALI decodes 4:2:0 alone, with 8 or 10 bits",
    )
    yield (clips.width[rows] % 2 + clips.height[rows] % 2) > 0, "DALI garbles frames with an odd width or height"
    yield trait(UNORDERED), "the display order of their pictures is not known"
    yield (
        trait("lead-in") & _has(codec, rows, lambda name: name in ("h264", "hevc")),
        "they do not begin with a picture that a decoder can start from",
    )
    yield trait("show-existing", "superframes"), "DALI gets frames wrong where VP9 has hidden pictures"
    yield _hidden_in_vp8(dataset, rows)
    intra = (clips.random_access[rows] == clips.packets[rows]) & (clips.packets[rows] > 1)
    yield h264 & intra, "DALI fails on H.264 of I-frames alone"
    yield (
        _mixed_up(dataset, rows, device_id),
        "DALI's decoder cache mixes them up with clips of another height that are coded alike",
    )


def _hidden_in_vp8(dataset: ClipSource, rows: Int64) -> tuple[Bool, str]:
    clips = dataset.clips
    hidden = clips.frames[rows] < clips.packets[rows]
    vp8 = _has(clips.codec, rows, lambda name: name == "vp8")
    return vp8 & hidden, "DALI counts VP8's hidden pictures as frames"


def _mixed_up(dataset: ClipSource, rows: Int64, device_id: int) -> Bool:
    """bool [clips]: those of the less frequent kind, of sizes that DALI's decoder cache mixes up."""
    clips = dataset.clips
    columns = [clips.codec.codes[rows], clips.width[rows], clips.height[rows]]
    kinds, which, counts = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True, return_counts=True)
    sizes = [(clips.codec.names[code], width, height) for code, width, height in kinds.tolist()]
    guard = shared_guard()
    guard.prefer(device_id, dict(zip(sizes, counts.tolist(), strict=True)))
    refused = np.array([not guard.admit(device_id, *size) for size in sizes], dtype=bool)
    return np.asarray(refused[which.reshape(-1)])


def _has(column: Categories, rows: Int64, test: Callable[[str], bool]) -> Bool:
    """bool [clips]: whether the value of each row passes the test."""
    return np.array([test(name) for name in column.names], dtype=bool)[column.codes[rows]]
