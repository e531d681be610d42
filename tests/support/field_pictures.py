"""H.264 coded in fields, which no encoder at hand makes: noise in I_PCM macroblocks, and fields that repeat others."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Literal

import av
import numpy as np
import numpy.typing as npt

from tests.support.bits import escaped, to_bytes, ue

Picture = Literal["frame", "fields", "repeated field"]
"""Coded as a frame; as two fields; as two fields of which the second, and the first from the second picture on, are P
pictures of skipped macroblocks."""


class Bits:
    """The codes of a header, as text of 0 and 1."""

    def __init__(self) -> None:
        self.text = ""

    def u(self, value: int, bits: int) -> None:
        self.text += f"{value:0{bits}b}"

    def ue(self, *values: int) -> None:
        """Unsigned Exponential-Golomb codes."""
        self.text += "".join(map(ue, values))

    def nal(self, header: int) -> bytes:
        """A NAL unit in Annex B: trailing bits, and emulation prevention bytes (7.3.1)."""
        return bytes([0, 0, 0, 1, header]) + escaped(to_bytes(self.text + "1"))


def write_fields(
    path: Path, pictures: list[Picture], *, width: int = 160, height: int = 160, gop: int = 8, apart: bool = False
) -> Path:
    """An MP4 of Main profile with 25 frames a second, one for each of `pictures`; with `apart` each field is a
    packet. The height is a multiple of 32."""
    rng = np.random.default_rng(len(pictures))
    sps, pps = Bits(), Bits()
    sps.u(77, 8), sps.u(0, 8), sps.u(31, 8)  # profile_idc, constraints, level_idc
    # seq_parameter_set_id, log2_max_frame_num - 4, pic_order_cnt_type, log2_max_pic_order_cnt_lsb - 4, references
    sps.ue(0, 4, 0, 4, 2)
    sps.u(0, 1)  # gaps_in_frame_num_value_allowed_flag
    sps.ue(width // 16 - 1, height // 32 - 1)
    sps.u(0b00100, 5)  # frame_mbs_only, mb_adaptive_frame_field, direct_8x8_inference, frame_cropping, vui
    pps.ue(0, 0)
    pps.u(0, 2)  # entropy_coding_mode (CAVLC), bottom_field_pic_order_in_frame_present
    pps.ue(0, 0, 0)  # slice groups, references of lists 0 and 1
    pps.u(0, 3)  # weighted prediction
    pps.ue(0, 0, 0)  # pic_init_qp, pic_init_qs, chroma_qp_index_offset
    pps.u(0b100, 3)  # deblocking_filter_control_present
    units: list[list[bytes]] = []
    for n, kind in enumerate(pictures):
        in_gop, planes = n % gop, _noise(rng, height, width)
        units.append([])
        for parity in [None] if kind == "frame" else [0, 1]:
            idr = in_gop == 0 and not parity
            repeats = kind == "repeated field" and not idr
            lines = [plane if parity is None else plane[parity::2] for plane in planes]
            unit = _slice(None if repeats else lines, in_gop, parity, idr=idr, macroblocks=width * height // 256)
            units[-1].append((sps.nal(0x67) + pps.nal(0x68) if idr else b"") + unit.nal(0x65 if idr else 0x61))
    raw = path.with_suffix(".h264")
    raw.write_bytes(b"".join(b"".join(parts) for parts in units))
    with av.open(str(raw)) as source, av.open(str(path), "w") as output:
        track = output.add_stream_from_template(source.streams.video[0])
        for n, parts in enumerate(units):
            for m, data in enumerate(parts if apart else [b"".join(parts)]):
                packet = av.Packet(data)
                packet.pts = packet.dts = 2 * n + m
                packet.duration, packet.is_keyframe = 1 if apart and len(parts) > 1 else 2, n % gop == 0 and m == 0
                packet.time_base, packet.stream = Fraction(1, 50), track
                output.mux(packet)
    return path


def _noise(rng: np.random.Generator, height: int, width: int) -> list[npt.NDArray[np.uint8]]:
    """Blocks of colours that differ from line to line, so that fields are unlike each other."""
    sizes = [(height, width), *[(height // 2, width // 2)] * 2]
    return [rng.integers(40, 216, (high, 1), dtype=np.uint8).repeat(wide, axis=1) for high, wide in sizes]


def _slice(
    planes: list[npt.NDArray[np.uint8]] | None, frame_num: int, parity: int | None, *, idr: bool, macroblocks: int
) -> Bits:
    """A picture in one slice (7.3.3), of PCM, or without planes of skipped macroblocks."""
    bits = Bits()
    bits.ue(0, 7 if planes else 5, 0)  # first_mb_in_slice, slice_type I or P, pic_parameter_set_id
    bits.u(frame_num, 8)
    bits.u(parity is not None, 1)  # field_pic_flag
    if parity is not None:
        bits.u(parity, 1)  # bottom_field_flag
    if idr:
        bits.ue(0)  # idr_pic_id
    bits.u(2 * frame_num + (parity or 0), 8)  # pic_order_cnt_lsb
    if planes is None:
        bits.u(0, 2)  # num_ref_idx_active_override_flag, ref_pic_list_modification_flag_l0
    bits.u(0, 2 if idr else 1)  # dec_ref_pic_marking
    bits.ue(0, 1)  # slice_qp_delta, disable_deblocking_filter_idc
    if planes is None:
        bits.ue(macroblocks if parity is None else macroblocks // 2)  # mb_skip_run
        return bits
    luma, *chroma = planes
    pieces = []
    for y in range(0, len(luma), 16):
        for x in range(0, luma.shape[1], 16):
            blocks = [luma[y : y + 16, x : x + 16], *(c[y // 2 : y // 2 + 8, x // 2 : x // 2 + 8] for c in chroma)]
            pieces.append("".join(f"{v:08b}" for block in blocks for v in block.ravel().tolist()))
    bits.ue(25)  # mb_type I_PCM
    for n, piece in enumerate(pieces):
        if n:
            bits.ue(25)
        # pcm_alignment_zero_bit; the NAL unit's header is a whole byte
        bits.text += "0" * (-len(bits.text) % 8) + piece
    return bits
