"""Slices that share a sample description, one after the other as one stream.

A hardware decoder pays for every stream that it opens, not only for frames. Slices begin with a picture that needs
nothing before it, so where parameter sets and size are the same, a decoder can go from one to the next without being
opened anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from streamvid.decode.dali_cache_guard import opens_anew
from streamvid.video.packet_selection import EncodedSlice

_PARAMETERS_IN_BAND: Final = (b"avc3", b"hev1")
"""Sample entries whose parameter sets may lie among the packets, where equal descriptions tell nothing."""
_BIT_RATE: Final = b"btrt"
"""A box of the sample description that says nothing of how to decode (ISO/IEC 14496-12, 8.5.2.2), and that FFmpeg
writes a different one of for every file."""
_BIT_RATE_BYTES: Final = 20
_BLOCKS_PER_OPENING: Final = 350_000
"""Macroblocks that one engine of an H200 decodes while DALI opens a decoder: about 3.5 million a second, and 0.1 s."""


def group(slices: Sequence[EncodedSlice], streams: int) -> list[list[int]]:
    """Put slices into about as many streams as asked for, of as many packets each as can be.

    Args:
        slices: of one batch.
        streams: how many streams are decoded at once. There are more if the slices have more sample descriptions.

    Returns:
        the numbers of the slices in each stream; every slice is in one.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, part in enumerate(slices):
        key: tuple[object, ...] = (
            part.codec, _without_bit_rate(part.stsd), part.width, part.height, part.full_range,
        )  # fmt: skip
        if part.stsd[20:24] in _PARAMETERS_IN_BAND:
            key += (part.name,)
        alike.setdefault(key, []).append(number)
    packets = np.array([len(part.sizes) for part in slices])
    share = max(1.0, packets.sum() / streams)
    groups: list[list[int]] = []
    for numbers in alike.values():
        load = float(packets[numbers].sum())
        count = min(len(numbers), max(1, round(load / share)), _most_streams(slices[numbers[0]], load))
        bins: list[list[int]] = [[] for _ in range(count)]
        loads = [0] * count
        # The longest first, each to where least is yet (Graham 1969).
        for number in sorted(numbers, key=lambda n: -int(packets[n])):
            lightest = loads.index(min(loads))
            bins[lightest].append(number)
            loads[lightest] += int(packets[number])
        groups += [sorted(one) for one in bins]
    return groups


def _without_bit_rate(stsd: bytes) -> bytes:
    """A sample description to compare others with; not a valid one any more."""
    at = stsd.find(_BIT_RATE) - 4
    return stsd[:at] + stsd[at + _BIT_RATE_BYTES :] if at > 0 else stsd


def _most_streams(part: EncodedSlice, packets: float) -> int:
    """How many streams are worth their opening, if a decoder is opened for each.

    Decoders are opened one after another, streams are decoded side by side: n streams take about n * opening + work
    / n, the least where both are equal.
    """
    if not opens_anew(part.codec, part.width, part.height):
        return int(packets) or 1
    blocks = packets * -(-part.width // 16) * -(-part.height // 16)
    return max(1, round(math.sqrt(blocks / _BLOCKS_PER_OPENING)))


def fuse(slices: Sequence[EncodedSlice]) -> EncodedSlice:
    """One slice out of several that share a sample description: all packets and wanted frames, in their order."""
    if len(slices) == 1:
        return slices[0]
    first = slices[0]
    bases = np.cumsum([0, *(len(part.sizes) for part in slices[:-1])])
    return EncodedSlice(
        name=", ".join(dict.fromkeys(part.name for part in slices)),
        codec=first.codec,
        stsd=first.stsd,
        width=first.width,
        height=first.height,
        full_range=first.full_range,
        data=np.concatenate([part.data for part in slices]),
        sizes=np.concatenate([part.sizes for part in slices]),
        display_order=np.concatenate([part.display_order + base for part, base in zip(slices, bases, strict=True)]),
        frames=np.concatenate([part.frames + base for part, base in zip(slices, bases, strict=True)]),
    )
