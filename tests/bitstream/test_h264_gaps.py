"""Gaps in frame_num, in headers that are written bit by bit; tests/decode/test_damage.py has streams of x264."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.h264 import read_slice, read_sps
from streamvid.bitstream.h264_gaps import FrameNumbers
from tests.support.field_pictures import Bits


def sps(*, gaps: bool = False) -> bytes:
    bits = Bits()
    bits.u(77, 8), bits.u(0, 8), bits.u(31, 8)
    bits.ue(0, 0, 0, 0, 4)  # log2_max_frame_num 4, pic_order_cnt_type 0 in 4 bits, 4 references
    bits.u(gaps, 1)
    bits.ue(9, 9)
    bits.u(0b11000, 5)
    return bits.nal(0x67)[4:]


def pps() -> bytes:
    bits = Bits()
    bits.ue(0, 0)
    bits.u(0, 2)
    bits.ue(0, 1, 0)  # no slice groups; 2 references of list 0, one of list 1
    bits.u(0b101, 3)  # weighted_pred_flag, weighted_bipred_idc 1
    bits.ue(0, 0, 0)
    bits.u(0, 3)
    return bits.nal(0x68)[4:]


def stsd(*, gaps: bool = False) -> bytes:
    def box(kind: bytes, payload: bytes) -> bytes:
        return (8 + len(payload)).to_bytes(4, "big") + kind + payload

    one, two = sps(gaps=gaps), pps()
    record = bytes([1, 77, 0, 31, 0xFF, 0xE1]) + len(one).to_bytes(2, "big") + one
    record += b"\x01" + len(two).to_bytes(2, "big") + two
    return box(b"stsd", bytes(4) + b"\0\0\0\1" + box(b"avc1", bytes(78) + box(b"avcC", record)))


def picture(
    frame_num: int,
    *,
    kind: str = "P",
    reference: bool = True,
    marks: tuple[int, ...] = (),
    recovery: bool = False,
    frames: int = 0,
) -> memoryview:
    """A packet; `marks` are the codes of dec_ref_pic_marking behind its flag, `frames` is recovery_frame_cnt."""
    bits = Bits()
    bits.ue(0, {"P": 5, "B": 6, "I": 7, "IDR": 7}[kind], 0)
    bits.u(frame_num, 4)
    if kind == "IDR":
        bits.ue(0)
    bits.u(0, 4)
    if kind == "B":
        bits.u(1, 1)  # direct_spatial_mv_pred_flag
    lists = "PB".find(kind) + 1
    if lists:
        bits.u(1, 1)  # num_ref_idx_active_override_flag
        bits.ue(*[1] * lists)
    for _ in range(lists):
        bits.u(1, 1)
        bits.ue(0, 5, 3)  # a change of the list, and its end
    if lists:
        bits.ue(2, 2)
        for _ in range(2 * lists):  # of one reference luma's weights alone, chroma's for none
            bits.u(1, 1)
            bits.ue(4, 3)
            bits.u(0, 1)
    if kind == "IDR":
        bits.u(0, 2)
    elif reference:
        bits.u(bool(marks), 1)
        bits.ue(*marks)
    unit = bits.nal((0x60 if reference else 0) + (5 if kind == "IDR" else 1))[4:]
    message = Bits()
    message.ue(frames)
    payload = message.nal(0)[5:]
    units = [bytes([6, 6, len(payload)]) + payload + b"\x80", unit] if recovery else [unit]
    return memoryview(b"".join(len(one).to_bytes(4, "big") + one for one in units))


IDR = picture(0, kind="IDR")


def first_gap(description: bytes, packets: list[memoryview], starts: set[int]) -> tuple[int, int] | None:
    numbers = FrameNumbers(description)
    found = [numbers.gap_before(packet, starts=n in starts) for n, packet in enumerate(packets)]
    return next((gap[:2] for gap in found if gap), None)


@pytest.mark.parametrize(
    ("packets", "gap"),
    [
        ([IDR, picture(1), picture(2), picture(3)], None),
        ([IDR, picture(1), picture(3)], (1, 3)),
        ([IDR, picture(2)], (0, 2)),
        ([IDR, *(picture(n % 16) for n in range(1, 40))], None),
        ([IDR, *(picture(n % 16) for n in range(1, 40) if n != 16)], (15, 1)),
        ([IDR, picture(1), picture(2, reference=False), picture(2, reference=False), picture(2)], None),
        ([IDR, picture(1), picture(2, kind="B", reference=False), picture(3)], (1, 3)),
        ([IDR, picture(1), picture(2), IDR, picture(1)], None),
        # A marking that lets numbers start again, behind others; and markings that do not.
        ([IDR, picture(1), picture(2, marks=(1, 0, 5, 0)), picture(1)], None),
        ([IDR, picture(1), picture(2, kind="B", marks=(3, 0, 1, 5, 0)), picture(1)], None),
        ([IDR, picture(1), picture(2, marks=(1, 5, 0)), picture(1)], (2, 1)),
        ([IDR, picture(1), picture(2, marks=(3, 5, 5, 0)), picture(1)], (2, 1)),
        ([IDR, picture(1), picture(2, marks=(5, 0)), picture(2)], None),
        ([IDR, picture(1), picture(2), picture(1)], (2, 1)),
        # What lies before a recovery point need not be whole, nor what begins with none.
        ([picture(3), picture(7), picture(9)], None),
        ([picture(3, kind="I", recovery=True), picture(5), IDR, picture(2)], (0, 2)),
        ([IDR, picture(1), picture(7, kind="I", recovery=True), picture(8)], None),
        ([IDR, picture(1), picture(7, kind="I", recovery=True), picture(9)], (7, 9)),
    ],
)
def test_missing_frame_numbers_are_a_gap(packets: list[memoryview], gap: tuple[int, int] | None) -> None:
    assert first_gap(stsd(), packets, {0}) == gap


def test_missing_frame_numbers_that_are_no_gap() -> None:
    gap = [IDR, picture(1), picture(3)]
    assert first_gap(stsd(gaps=True), gap, {0}) is None, "the stream may have some"
    assert first_gap(stsd(), [IDR, picture(1), picture(3)], {0, 2}) is None, "packets were left out there"
    assert first_gap(b"", gap, {0}) is None
    assert first_gap(stsd(), [IDR, memoryview(b"\0\0\0\1\x61"), picture(1)], {0}) is None, "a slice of nothing"


def test_the_beginning_of_a_slice_header() -> None:
    """In fields, with planes of their own, by the fourth of several picture parameter sets."""
    bits = Bits()
    bits.ue(5, 6, 3)  # first_mb_in_slice, slice_type B, pic_parameter_set_id
    bits.u(2, 2)  # colour_plane_id
    bits.u(9, 4)  # frame_num
    bits.u(1, 1)  # field_pic_flag
    usual = read_sps(BitReader.of_nal(sps()[1:]))
    fields = replace(usual, separate_colour_plane=True, frame_mbs_only=False)
    assert read_slice(BitReader.of_nal(bits.nal(1)[5:]), fields) == (1, 3, 9, True)


def test_what_is_missing_before_a_recovery_point() -> None:
    """It matters to pictures that are displayed before it, and to those up to recovery_frame_cnt."""
    packets = [IDR, picture(1), picture(7, kind="I", recovery=True), picture(8, kind="B"), picture(9)]
    ranks = [0, 1, 3, 2, 4]
    numbers = FrameNumbers(stsd())
    gaps = [numbers.gap_before(packet, rank=rank) for packet, rank in zip(packets, ranks, strict=True)]
    assert gaps == [None, None, None, (1, 7, False), None]
    numbers = FrameNumbers(stsd())
    assert not any(
        numbers.gap_before(packet, rank=rank, wanted=rank != 2) for packet, rank in zip(packets, ranks, strict=True)
    )

    refresh = [IDR, picture(1), picture(7, recovery=True, frames=2), picture(8), picture(9), picture(10)]
    numbers = FrameNumbers(stsd())
    gaps = [numbers.gap_before(packet, rank=rank) for rank, packet in enumerate(refresh)]
    assert gaps == [None, None, (1, 7, False), (1, 7, False), None, None]
    # Nothing is missing there, and what is behind an IDR picture refers to nothing before it.
    for packets in ([IDR, picture(1), picture(2, recovery=True), picture(3)], [*refresh[:3], IDR, picture(1)]):
        numbers = FrameNumbers(stsd())
        assert [numbers.gap_before(packet, rank=-n) for n, packet in enumerate(packets)][3:] == [None] * (
            len(packets) - 3
        )
