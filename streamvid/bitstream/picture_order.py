"""In which order a decoder hands out the pictures of H.264 and HEVC: by their picture order counts.

Whoever decodes many packets at a time knows pictures by the order in which they come. That must be the order of the
presentation times of the container, which is free to say something else.

How picture order counts are decoded is in 8.2.1 of ITU-T H.264 and 8.3.1 of ITU-T H.265, the headers that they are in
in 7.3.3 and 7.3.6.1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final

from streamvid.bitstream import nal
from streamvid.bitstream.annexb import START_CODE, parameters
from streamvid.bitstream.bits import Bits
from streamvid.bitstream.dpb import H264Head, HevcHead, h264_head, hevc_head

_HEADER_BYTES: Final = 48
"""What is looked at is over after so many."""
_SEQUENCE_BITS: Final = 40
_HEVC_NOT_COUNTED: Final = nal.HEVC_SUB_LAYER_NON_REFERENCE.union(nal.HEVC_RADL_OR_RASL)
_MIDDLE: Final = 1 << (_SEQUENCE_BITS - 1)


class PictureOrder(ABC):
    """Reads the packets of one track, in decode order."""

    def __init__(self, codec: str, stsd: bytes) -> None:
        self._sequence = 0
        # Of the last picture that others may refer to: what later ones are counted from.
        self._before = 0
        with suppress(ValueError):
            for unit in parameters(codec, stsd).sets.split(START_CODE)[1:]:
                self._learn(unit)

    def look(self, units: list[memoryview]) -> int | None:
        """The place of the next packet's picture: of two pictures, the one with the lower number comes out first.

        Args:
            units: the packet's NAL units, without their lengths.

        Returns:
            None if it cannot be told, or it does not come out.
        """
        try:
            count = self._count(units)
        except ValueError:
            return None
        return None if count is None else (self._sequence << _SEQUENCE_BITS) + _MIDDLE + count

    @abstractmethod
    def _learn(self, unit: bytes | memoryview) -> None:
        """Take in a NAL unit, if it is a parameter set; ValueError if it ends early."""

    @abstractmethod
    def _count(self, units: list[memoryview]) -> int | None:
        """The picture order count; None if it is not known."""

    def _whole(self, low: int, bits: int) -> int:
        """A picture order count from its lowest bits: the one that is nearest to that before."""
        size = 1 << bits
        high = self._before - self._before % size
        if low < self._before % size and self._before % size - low >= size // 2:
            high += size
        elif low > self._before % size and low - self._before % size > size // 2:
            high -= size
        return high + low


class H264Order(PictureOrder):
    """Of H.264.

    Args:
        stsd: the track's sample description box.
    """

    def __init__(self, stsd: bytes) -> None:
        # What the sequence parameter sets say, and whether all pictures are whole frames.
        self._heads: set[tuple[H264Head, bool]] = set()
        self._number = 0
        super().__init__("h264", stsd)

    def _learn(self, unit: bytes | memoryview) -> None:
        if unit[0] & 31 != nal.H264_SEQUENCE:
            return
        bits = Bits.of_nal(bytes(unit[1:]))
        head = h264_head(bits)
        # max_num_ref_frames, gaps_in_frame_num_value_allowed_flag, the size.
        bits.ue()
        bits.u(1)
        bits.ue()
        bits.ue()
        self._heads.add((head, bool(bits.u(1))))

    def _count(self, units: list[memoryview]) -> int | None:
        for unit in units:
            self._learn(unit)
            kind = unit[0] & 31
            if kind in nal.H264_HEADS:
                return self._slice(unit, is_reference=bool(unit[0] >> 5 & 3), is_idr=kind == nal.H264_IDR)
        return None

    def _slice(self, unit: memoryview, *, is_reference: bool, is_idr: bool) -> int | None:
        if len(self._heads) != 1:
            return None  # the picture parameter set would say which
        ((head, frames_only),) = self._heads
        if is_idr:
            self._sequence += 1
            self._before = 0
        self._number += 1
        if head.order_type == 2:
            return self._number  # they come in decode order
        if head.order_type != 0:
            return None
        bits = Bits.of_nal(bytes(unit[1:_HEADER_BYTES]))
        for _ in range(3):
            bits.ue()
        bits.u(2 * head.separate_planes + head.frame_num_bits)
        if not frames_only and bits.u(1):
            bits.u(1)
        if is_idr:
            bits.ue()
        count = self._whole(bits.u(head.order_bits), head.order_bits)
        if is_reference:
            self._before = count
        return count


class HevcOrder(PictureOrder):
    """Of HEVC.

    Args:
        stsd: the track's sample description box.
    """

    def __init__(self, stsd: bytes) -> None:
        self._heads: set[HevcHead] = set()
        # Of picture parameter sets: whether slices say if their picture is shown, and bits to skip.
        self._pictures: dict[int, tuple[int, int]] = {}
        self._begins = True
        super().__init__("hevc", stsd)

    def _learn(self, unit: bytes | memoryview) -> None:
        kind = unit[0] >> 1 & 63
        if kind == nal.HEVC_SEQUENCE:
            self._heads.add(hevc_head(Bits.of_nal(bytes(unit[2:]))))
        elif kind == nal.HEVC_PICTURE:
            bits = Bits.of_nal(bytes(unit[2:_HEADER_BYTES]))
            number = bits.ue()
            bits.ue()
            bits.u(1)
            self._pictures[number] = bits.u(1), bits.u(3)

    def _count(self, units: list[memoryview]) -> int | None:
        count = None
        for unit in units:
            if len(unit) < 2 or (unit[0] & 1) << 5 | unit[1] >> 3:
                continue  # of another layer
            self._learn(unit)
            kind = unit[0] >> 1 & 63
            if kind == nal.HEVC_END:
                self._begins = True
            elif kind in nal.HEVC_SLICES and len(unit) > 2 and unit[2] >> 7:
                count = self._slice(unit, kind, is_base=unit[1] & 7 == 1)
        return count

    def _slice(self, unit: memoryview, kind: int, *, is_base: bool) -> int | None:
        if len(self._heads) != 1:
            return None
        (head,) = self._heads
        bits = Bits.of_nal(bytes(unit[2:_HEADER_BYTES]))
        bits.u(1)
        is_start = kind in nal.HEVC_IRAP
        if is_start:
            bits.u(1)
        says_shown, skipped = self._pictures.get(bits.ue(), (0, -1))
        if skipped < 0:
            raise ValueError("it names no picture parameter set")
        bits.u(skipped)
        bits.ue()
        shown = bits.u(1) if says_shown else 1
        bits.u(2 * head.separate_planes)
        # IDR and BLA pictures begin anew; so does a CRA picture behind which nothing is.
        if is_start and (kind != nal.HEVC_CRA or self._begins):
            self._sequence += 1
            self._before = 0
            self._begins = False
            count = 0 if kind in nal.HEVC_IDR else bits.u(head.order_bits)
        else:
            count = self._whole(bits.u(head.order_bits), head.order_bits)
        # Leading pictures and those that their own sub-layer does not refer to do not count for later ones.
        if is_base and kind not in _HEVC_NOT_COUNTED:
            self._before = count
        return count if shown else None
