"""Picture parameter sets of HEVC: 7.3.2.3.1 of ITU-T H.265. Comments name the syntax elements that are read or
skipped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.packets import nal_units

_PPS: Final = 34
"""nal_unit_type of picture parameter sets."""
_MOST_TILES: Final = 22
"""Columns or rows of tiles: 20 and 22 at most (annex A)."""


@dataclass(frozen=True)
class Pps:
    """Fields of a picture parameter set.

    Attributes:
        constrained_intra: whether intra prediction leaves out neighbours of inter prediction.
        chroma_offset: the larger offset of chroma's QP to that of luma.
        lossless_blocks: whether coding blocks may be lossless.
        columns, rows: number of tiles across and down.
        widths, heights: of all columns and rows but the last, in coding tree blocks; None if tiles are as equal as
            possible.
    """

    constrained_intra: bool
    chroma_offset: int
    lossless_blocks: bool
    columns: int
    rows: int
    widths: tuple[int, ...] | None
    heights: tuple[int, ...] | None

    def smallest_tile(self, width: int, height: int) -> tuple[int, int]:
        """The least width and the least height of a tile, in coding tree blocks, of a picture of so many."""
        return _smallest(width, self.columns, self.widths), _smallest(height, self.rows, self.heights)


def read_pictures(sets: bytes) -> list[Pps]:
    """The picture parameter sets of the base layer among parameter sets in Annex B.

    Raises:
        ValueError: one ends early, or exceeds a limit.
    """
    units = (unit for unit in nal_units(sets) if len(unit) > 2)
    return [_read(BitReader.of_nal(unit[2:])) for unit in units if unit[0] == _PPS << 1 and not unit[1] >> 3]


def _read(bits: BitReader) -> Pps:
    """Read a picture parameter set up to its tiles."""
    bits.ue()  # pps_pic_parameter_set_id
    bits.ue()  # pps_seq_parameter_set_id
    bits.u(7)  # dependent_slice_segments_enabled_flag to cabac_init_present_flag
    bits.ue()  # num_ref_idx_l0_default_active_minus1
    bits.ue()  # num_ref_idx_l1_default_active_minus1
    bits.se()  # init_qp_minus26
    constrained = bool(bits.u(1))  # constrained_intra_pred_flag
    bits.u(1)  # transform_skip_enabled_flag
    if bits.u(1):  # cu_qp_delta_enabled_flag
        bits.ue()  # diff_cu_qp_delta_depth
    offset = max(bits.se(), bits.se())  # pps_cb_qp_offset, pps_cr_qp_offset
    bits.u(3)  # pps_slice_chroma_qp_offsets_present_flag, weighted_pred_flag, weighted_bipred_flag
    lossless = bool(bits.u(1))  # transquant_bypass_enabled_flag
    tiles = bits.u(1)  # tiles_enabled_flag
    bits.u(1)  # entropy_coding_sync_enabled_flag
    columns = rows = 1
    widths: tuple[int, ...] | None = None
    heights: tuple[int, ...] | None = None
    if tiles:
        columns, rows = bits.ue() + 1, bits.ue() + 1  # num_tile_columns_minus1, num_tile_rows_minus1
        if max(columns, rows) > _MOST_TILES:
            raise ValueError(f"{columns}x{rows} tiles, {_MOST_TILES} each at most")
        if not bits.u(1):  # uniform_spacing_flag
            widths = _sizes(bits, columns)  # column_width_minus1
            heights = _sizes(bits, rows)  # row_height_minus1
    return Pps(constrained, offset, lossless, columns, rows, widths, heights)


def _sizes(bits: BitReader, count: int) -> tuple[int, ...]:
    return tuple(bits.ue() + 1 for _ in range(count - 1))


def _smallest(total: int, count: int, stated: Iterable[int] | None) -> int:
    """The smallest of the `count` parts of `total` coding tree blocks; `stated` as in `Pps.widths` (6-3 and 6-4)."""
    if stated is None:
        return total // count
    parts = [*stated]
    return min(*parts, total - sum(parts)) if parts else total
