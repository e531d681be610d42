"""Finds missing reference pictures in H.264, as when a network lost their packets: FFmpeg silently uses others instead.
They are missing in frame_num, which counts reference pictures (7.4.3 of ITU-T H.264).

Comments name the syntax elements that are read or skipped: 7.3.2.2 (picture parameter set) and 7.3.3 (slice header).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.h264 import IDR, PPS, SPS, WITH_SLICE_HEADER, Sps, parameter_sets, read_slice, read_sps
from streamvid.bitstream.nal import split_packet
from streamvid.bitstream.packets import nal_units
from streamvid.bitstream.sei import SEI, recovery_frames

_BEGIN_BYTES: Final = 32
"""Bytes of a slice that are enough for its header up to field_pic_flag."""
_HEADER_BYTES: Final = 1024
"""Bytes of a slice that are enough for its header, with weights of all references."""
_P, _B, _SP = 0, 1, 3
_END_OF_CHANGES: Final = 3
_RESET: Final = 5
"""memory_management_control_operation that makes a picture one with frame_num 0 for those that follow."""


@dataclass(frozen=True)
class Pps:
    """The parts of a picture parameter set that a slice header's layout depends on, and constrained_intra_pred_flag."""

    order_in_frame: bool
    references: tuple[int, int]
    weighted: tuple[bool, bool]
    constrained_intra: bool
    redundant: bool


def read_pps(bits: BitReader) -> tuple[int, Pps]:
    """Read a picture parameter set (7.3.2.2 of ITU-T H.264), and its number.

    Raises:
        ValueError: it has slice groups, or ends early.
    """
    number, _ = bits.ue(), bits.ue()  # pic_parameter_set_id, seq_parameter_set_id
    bits.u(1)  # entropy_coding_mode_flag
    order_in_frame = bool(bits.u(1))  # bottom_field_pic_order_in_frame_present_flag
    if bits.ue():  # num_slice_groups_minus1
        raise ValueError("slice groups are not read")
    references = bits.ue() + 1, bits.ue() + 1  # num_ref_idx_l0_default_active_minus1, l1
    weighted = bool(bits.u(1)), bits.u(2) == 1  # weighted_pred_flag, weighted_bipred_idc
    for _ in range(3):
        bits.se()  # pic_init_qp_minus26, pic_init_qs_minus26, chroma_qp_index_offset
    bits.u(1)  # deblocking_filter_control_present_flag
    # constrained_intra_pred_flag, redundant_pic_cnt_present_flag
    return number, Pps(order_in_frame, references, weighted, bool(bits.u(1)), bool(bits.u(1)))


class Gap(NamedTuple):
    """Reference pictures that are missing.

    Attributes:
        before, after: frame_num of the reference pictures before and behind them.
        spreads: pictures behind this one refer to them, too. If not, they are missing before a recovery point.
    """

    before: int
    after: int
    spreads: bool = True


class FrameNumbers:
    """Follows frame_num over the packets of a track.

    Args:
        stsd: the track's sample description box.
    """

    def __init__(self, stsd: bytes) -> None:
        self._sps: set[Sps] = set()
        self._pps: dict[int, Pps] = {}
        self._previous, self._last = -1, b""  # PrevRefFrameNum, and a slice, of the last reference picture
        self._lost: Gap | None = None  # before the last recovery point
        self._recovery_rank, self._recovery_frames, self._is_unrecovered = 0, 0, False
        self._is_known = True
        with self._unknown_after_errors():
            sets = parameter_sets(stsd)
            self._length_size = sets.length_size
            for unit in nal_units(sets.annex_b):
                self._read_set(unit)

    def gap_before(self, packet: memoryview, *, starts: bool = False, rank: int = 0, wanted: bool = True) -> Gap | None:
        """Process the next packet in decode order; disposable packets may be left out.

        Pictures missing before a recovery point matter to the pictures that are decoded behind the recovery point and
        displayed before it, and to those up to recovery_frame_cnt. No others refer to them.

        Args:
            packet: in the format of MP4 files.
            starts: whether decoding begins here, so that earlier packets may have been left out.
            rank: position of the picture in display order.
            wanted: whether the picture is displayed; if not, pictures missing before a recovery point do not matter.

        Returns:
            None if no reference picture is missing, if the stream may leave some out, or if that cannot be determined,
            from here on.
        """
        if self._is_known:
            with self._unknown_after_errors():
                gap = self._take(split_packet(packet, self._length_size), starts=starts, rank=rank)
                refers = rank < self._recovery_rank or self._is_unrecovered
                return gap or (self._lost if wanted and refers else None)
        return None

    @contextmanager
    def _unknown_after_errors(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError):
            self._is_known = False

    def _take(self, units: Sequence[memoryview], *, starts: bool, rank: int) -> Gap | None:
        idr = any(unit[0] & 31 == IDR for unit in units)
        counts = (recovery_frames(bytes(unit[1:])) for unit in units if unit[0] & 31 == SEI)
        recovery = next((count for count in counts if count is not None), None)
        # Pictures may be missing before either, and leading ones of a recovery point that decoding begins at.
        begins = idr or (recovery is not None and not starts)
        if idr or starts:
            self._previous, self._lost = -1, None
        for unit in units:
            kind = unit[0] & 31
            if kind in (SPS, PPS):
                self._read_set(bytes(unit))
            if kind not in WITH_SLICE_HEADER:
                continue
            (sps,) = self._sps  # ValueError: which of several sets applies is not tracked
            if sps.gaps_allowed:
                raise ValueError("its parameter sets allow gaps in frame_num")
            frame_num = read_slice(BitReader.of_nal(bytes(unit[1:_BEGIN_BYTES])), sps).frame_num
            previous = self._previous
            follows = frame_num in (previous, (previous + 1) % (1 << sps.frame_num_bits))
            is_gap = previous >= 0 and not follows and not (frame_num <= 1 and self._resets(self._last, sps))
            if recovery is not None:
                self._lost = Gap(previous, frame_num, spreads=False) if is_gap else None
                self._recovery_rank, self._recovery_frames, recovery = rank, recovery, None
                self._is_unrecovered = self._recovery_frames > 0
            elif is_gap:
                return Gap(previous, frame_num)
            elif self._lost and self._is_unrecovered:
                behind = (frame_num - self._lost.after) % (1 << sps.frame_num_bits)
                self._is_unrecovered = behind < self._recovery_frames
            if unit[0] >> 5 & 3 and (begins or previous >= 0):  # nal_ref_idc
                self._previous, self._last = frame_num, bytes(unit[:_HEADER_BYTES])
        return None

    def _read_set(self, unit: bytes) -> None:
        bits = BitReader.of_nal(unit[1:])
        if unit[0] & 31 == SPS:
            self._sps.add(read_sps(bits))
        elif unit[0] & 31 == PPS:
            number, pps = read_pps(bits)
            self._pps[number] = pps

    def _resets(self, unit: bytes, sps: Sps) -> bool:
        """Whether frame_num restarts at 0 after the picture of a slice, by its marking rather than as IDR. Raises
        ValueError for slice headers that are not supported."""
        if unit[0] & 31 == IDR:
            return False
        bits = BitReader.of_nal(unit[1:])
        slice_type, picture_set, _, in_field = read_slice(bits, sps)
        pps = self._pps[picture_set]
        bits.u(in_field)  # bottom_field_flag
        if sps.pic_order_cnt_type == 1:
            raise ValueError("slice headers with pic_order_cnt_type 1 are not parsed")
        if sps.pic_order_cnt_type == 0:
            bits.u(sps.poc_lsb_bits)
            if pps.order_in_frame and not in_field:
                bits.se()  # delta_pic_order_cnt_bottom
        if pps.redundant:
            bits.ue()  # redundant_pic_cnt
        if slice_type == _B:
            bits.u(1)  # direct_spatial_mv_pred_flag
        lists = {_P: 1, _SP: 1, _B: 2}.get(slice_type, 0)
        references = list(pps.references[:lists])
        if lists and bits.u(1):  # num_ref_idx_active_override_flag
            references = [bits.ue() + 1 for _ in range(lists)]
        for _ in range(lists):
            if bits.u(1):  # ref_pic_list_modification_flag_l0, l1
                while bits.ue() != _END_OF_CHANGES:  # modification_of_pic_nums_idc
                    bits.ue()  # abs_diff_pic_num_minus1 or long_term_pic_num
        if lists and pps.weighted[slice_type == _B]:
            _skip_weights(bits, sps, references)
        if bits.u(1):  # adaptive_ref_pic_marking_mode_flag
            while operation := bits.ue():
                if operation == _RESET:
                    return True
                for _ in range({3: 2}.get(operation, 1)):
                    bits.ue()  # difference_of_pic_nums_minus1, long_term_pic_num, long_term_frame_idx and the like
        return False


def _skip_weights(bits: BitReader, sps: Sps, references: Sequence[int]) -> None:
    """pred_weight_table, 7.3.3.2."""
    if sps.crop_unit[0] == 1:
        raise ValueError("prediction weights are parsed for 4:2:0 and 4:2:2 only")
    bits.ue()  # luma_log2_weight_denom
    bits.ue()  # chroma_log2_weight_denom
    for count in references:
        for _ in range(count):
            for weights in (2, 4):
                if bits.u(1):  # luma_weight_flag, chroma_weight_flag
                    for _ in range(weights):
                        bits.se()
