"""How many decoded pictures a stream makes its decoder keep, as its sequence parameter set says.

A hardware decoder is opened for a number of pictures. One that was opened for fewer than a later stream needs gives
wrong pixels without an error, so what shares a decoder must be known before.

The syntax is in 7.3.2.1.1 and E.1.1 of ITU-T H.264, and in 7.3.2.2 and 7.3.3 of ITU-T H.265.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from streamvid.bitstream import nal
from streamvid.bitstream.annexb import START_CODE
from streamvid.bitstream.bits import Bits

_WITH_CHROMA: Final = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
"""H.264 profiles whose parameter sets say how chroma is kept."""
_EXTENDED_SAR: Final = 255


@dataclass(frozen=True)
class Dpb:
    """What a stream's parameter sets ask of the decoded picture buffer.

    Attributes:
        group: streams of one codec and size with the same text may share a decoder if it was opened for one with as
            many pictures or more.
        pictures: within the group, how many are kept.
    """

    group: str
    pictures: int


@lru_cache(maxsize=4096)
def dpb(codec: str, sets: bytes) -> Dpb:
    """Read the parameter sets.

    Args:
        codec: "h264" or "hevc".
        sets: parameter sets behind start codes, as in `streamvid.bitstream.annexb.Parameters`.

    Returns:
        what they ask. If they cannot be read, or hold several sequences, their group is their own.
    """
    try:
        (unit,) = sequences(codec, sets)
        bits = Bits.of_nal(unit[nal.HEADER_BYTES[codec] :])
        return _h264(bits) if codec == "h264" else _hevc(bits)
    except ValueError:
        return Dpb(f"sets {sets.hex()}", 0)


def sequences(codec: str, sets: bytes) -> list[bytes]:
    """The sequence parameter sets among parameter sets; arguments as of `dpb`."""
    units = [unit for unit in sets.split(START_CODE) if unit]
    return [unit for unit in units if nal.kind(unit[0], codec) == nal.SEQUENCES[codec]]


@dataclass(frozen=True)
class H264Head:
    """The first part of an H.264 sequence parameter set (7.3.2.1.1).

    Attributes:
        profile, constraints, level: as they stand there.
        separate_planes: a slice says which colour it is of.
        frame_num_bits: of frame_num in a slice header.
        order_type: pic_order_cnt_type.
        order_bits: of pic_order_cnt_lsb in a slice header; 0 but for type 0.
    """

    profile: int
    constraints: int
    level: int
    separate_planes: bool
    frame_num_bits: int
    order_type: int
    order_bits: int


def h264_head(bits: Bits) -> H264Head:
    """Read the first part of a sequence parameter set, up to max_num_ref_frames.

    Raises:
        ValueError: it ends early.
    """
    profile, constraints, level = bits.u(8), bits.u(8), bits.u(8)
    bits.ue()
    separate = 0
    if profile in _WITH_CHROMA:
        chroma = bits.ue()
        if chroma == 3:
            separate = bits.u(1)
        bits.ue()
        bits.ue()
        bits.u(1)
        if bits.u(1):
            for number in range(12 if chroma == 3 else 8):
                if bits.u(1):
                    _scaling_list(bits, 16 if number < 6 else 64)
    frame_num_bits = bits.ue() + 4
    order, order_bits = bits.ue(), 0
    if order == 0:
        order_bits = bits.ue() + 4
    elif order == 1:
        bits.u(1)
        bits.se()
        bits.se()
        for _ in range(bits.ue()):
            bits.se()
    return H264Head(profile, constraints, level, bool(separate), frame_num_bits, order, order_bits)


def _h264(bits: Bits) -> Dpb:
    head = h264_head(bits)
    references = bits.ue()
    bits.u(1)
    bits.ue()
    bits.ue()
    if not bits.u(1):
        bits.u(1)
    bits.u(1)
    if bits.u(1):
        for _ in range(4):
            bits.ue()
    kept = _h264_kept(bits) if bits.u(1) else None
    if kept is None:
        # The decoder takes what profile and level allow, or the references: who knows. Only equals are equal.
        return Dpb(f"{head.profile}/{head.constraints}/{head.level}/{references}", 0)
    return Dpb("", max(kept, references))


def _h264_kept(bits: Bits) -> int | None:
    """max_dec_frame_buffering of the VUI, if it is there."""
    if bits.u(1) and bits.u(8) == _EXTENDED_SAR:
        bits.u(32)
    if bits.u(1):
        bits.u(1)
    if bits.u(1):
        bits.u(4)
        if bits.u(1):
            bits.u(24)
    if bits.u(1):
        bits.ue()
        bits.ue()
    if bits.u(1):
        bits.u(65)
    timed = False
    for _ in range(2):
        if bits.u(1):
            _hrd(bits)
            timed = True
    if timed:
        bits.u(1)
    bits.u(1)
    if not bits.u(1):
        return None
    bits.u(1)
    for _ in range(5):
        bits.ue()
    return bits.ue()


def _hrd(bits: Bits) -> None:
    count = bits.ue() + 1
    bits.u(8)
    for _ in range(count):
        bits.ue()
        bits.ue()
        bits.u(1)
    bits.u(20)


def _scaling_list(bits: Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last


@dataclass(frozen=True)
class HevcHead:
    """The first part of an HEVC sequence parameter set (7.3.2.2.1).

    Attributes:
        layers: sub-layers beside the first.
        level: general_level_idc.
        separate_planes: a slice says which colour it is of.
        order_bits: of slice_pic_order_cnt_lsb in a slice header.
    """

    layers: int
    level: int
    separate_planes: bool
    order_bits: int


def hevc_head(bits: Bits) -> HevcHead:
    """Read the first part of a sequence parameter set, up to log2_max_pic_order_cnt_lsb_minus4.

    Raises:
        ValueError: it ends early.
    """
    bits.u(4)
    layers = bits.u(3)
    bits.u(1)
    # Profile, tier and compatibility flags.
    bits.u(88)
    level = bits.u(8)
    present = [(bits.u(1), bits.u(1)) for _ in range(layers)]
    if layers:
        bits.u(2 * (8 - layers))
    for with_profile, with_level in present:
        bits.u(88 * with_profile + 8 * with_level)
    bits.ue()
    separate = bits.u(1) if bits.ue() == 3 else 0
    bits.ue()
    bits.ue()
    if bits.u(1):
        for _ in range(4):
            bits.ue()
    bits.ue()
    bits.ue()
    return HevcHead(layers, level, bool(separate), bits.ue() + 4)


def _hevc(bits: Bits) -> Dpb:
    head = hevc_head(bits)
    every = bits.u(1)
    kept = 0
    for _ in range(head.layers + 1 if every else 1):
        kept = max(kept, bits.ue() + 1)
        bits.ue()
        bits.ue()
    return Dpb(str(head.level), kept)
