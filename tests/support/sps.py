"""Rewrites the sequence parameter set of an H.264 clip: what encoders other than x264 leave out or get wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.h264 import _bitstream_restriction, read_sps
from tests.support.bits import escaped, to_bits, to_bytes, ue, unescaped
from tests.support.remux import remuxing

Rewrite = Callable[[str], str]
"""The bits of a sequence parameter set behind its NAL unit header, as text of 0 and 1, → other ones."""


class _Positions(BitReader):
    """Remembers where each Exponential-Golomb code begins."""

    def __init__(self, bits: str) -> None:
        super().__init__(int(bits, 2).to_bytes(len(bits) // 8, "big"))
        self._size = len(bits)
        self.codes: list[int] = []

    @property
    def position(self) -> int:
        return self._size - self._left

    def ue(self) -> int:
        self.codes.append(self.position)
        return super().ue()


def _to_vui_flag(bits: str) -> _Positions:
    reader = _Positions(bits)
    sps = read_sps(reader)
    reader.u(1 if sps.frame_mbs_only else 2)  # mb_adaptive_frame_field_flag, direct_8x8_inference_flag
    if reader.u(1):  # frame_cropping_flag
        for _ in range(4):
            reader.ue()
    return reader


def without_vui(bits: str) -> str:
    """Without VUI, as Apple's and many hardware encoders write it: it does not say how far pictures are reordered."""
    return bits[: _to_vui_flag(bits).position] + "01"


def with_reorder(frames: int) -> Rewrite:
    """Claim another max_num_reorder_frames."""

    def rewritten(bits: str) -> str:
        reader = _to_vui_flag(bits)
        reader.u(1)  # vui_parameters_present_flag
        assert _bitstream_restriction(reader) is not None
        start, end = reader.codes[-2:]
        return bits[:start] + ue(frames) + bits[end:]

    return rewritten


def with_level(level: int) -> Rewrite:
    """Claim another level_idc, and have no VUI."""
    return lambda bits: without_vui(bits[:16] + f"{level:08b}" + bits[24:])


def rewrite(source: Path, target: Path, change: Rewrite) -> Path:
    """Copy an MP4 with another sequence parameter set in its avcC box."""
    with remuxing(source, target) as copy:
        record = bytes(copy.stream.codec_context.extradata or b"")
        end = 8 + int.from_bytes(record[6:8], "big")
        unit = record[8:9] + escaped(to_bytes(change(to_bits(unescaped(record[9:end])))))
        copy.track.codec_context.extradata = record[:6] + len(unit).to_bytes(2, "big") + unit + record[end:]
        for packet in copy.packets:
            copy.mux(packet)
    return target
