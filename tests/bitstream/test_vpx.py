"""VP8 whose key frames refer to the frame before."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from streamvid.bitstream.vpx import classify_vp8
from streamvid.decode.cpu import decode_with_pyav
from streamvid.video.remux import store_clip
from tests.support.reference import sequential, slice_of

WIDTH, HEIGHT = 96, 64


def boolean_coded(bits: list[int]) -> bytes:
    """Bits coded at even probability (RFC 6386, 7.3)."""
    low, span, shift = 0, 255, 8
    for bit in bits:
        split = (span + 1) // 2
        low, span = (low + split, span - split) if bit else (low, split)
        while span < 128:
            low, span, shift = 2 * low, 2 * span, shift + 1
    return (low << -shift % 8).to_bytes((shift + 7) // 8, "big")


def field(value: int, size: int) -> list[int]:
    return [value >> place & 1 for place in reversed(range(size))]


def key_frame(draw: random.Random, *, segments: bool, has_map: bool) -> bytes:
    """A key frame whose segments have very different quantisers; all behind its header is noise, which decodes."""
    bits = [0, 0, int(segments)]  # color_space, clamping_type, segmentation_enabled
    if segments:
        bits += [int(has_map), 1, 1]  # update_mb_segmentation_map, update_segment_feature_data, segment_feature_mode
        for quantiser in (4, 120, 60, 20):
            bits += [1, *field(quantiser, 7), 0]
        bits += 4 * [0]  # no loop filter levels
        bits += 3 * [1, *field(128, 8)] if has_map else []  # segment_prob
    # filter_type, loop_filter_level, sharpness_level, mode_ref_lf_delta_enabled, log2_nbr_of_dct_partitions
    bits += [0, *field(20, 6), *field(0, 3), 0, *field(0, 2)]
    bits += [*field(40, 7), *(5 * [0]), 1]  # quant_indices, refresh_entropy_probs
    first = boolean_coded([*bits, *(draw.getrandbits(1) for _ in range(4000))])
    tag = 1 << 4 | len(first) << 5  # show_frame, first_part_size
    size = WIDTH.to_bytes(2, "little") + HEIGHT.to_bytes(2, "little")
    return tag.to_bytes(3, "little") + b"\x9d\x01\x2a" + size + first + draw.randbytes(1500)


def test_key_frames_that_keep_the_segment_map_are_no_start(tmp_path: Path) -> None:
    draw = random.Random(3)
    kinds = [(True, True), (True, False), (True, False), (False, False), (True, False), (True, True), (True, False)]
    packets = [key_frame(draw, segments=segments, has_map=has_map) for segments, has_map in kinds]
    with av.open(str(tmp_path / "a.mkv"), "w") as output:
        track = output.add_stream("vp8", rate=25)
        track.codec_context.width, track.codec_context.height = WIDTH, HEIGHT
        for number, data in enumerate(packets):
            packet = av.Packet(data)
            packet.pts = packet.dts = number
            packet.time_base, packet.stream, packet.is_keyframe = Fraction(1, 25), track, True
            output.mux(packet)
    right = sequential(tmp_path / "a.mkv")
    alone = av.CodecContext.create("vp8", "r").decode(av.Packet(packets[2]))[0].to_ndarray(format="rgb24")
    assert not np.array_equal(alone, right[2])
    clip = store_clip(tmp_path / "a.mkv", tmp_path)
    assert clip.index.starts.tolist() == [0, 3, 5]
    for number, frame in enumerate(right):
        assert np.array_equal(decode_with_pyav(slice_of(clip, [number]))[0], frame)


@pytest.mark.parametrize("flags", range(16))
def test_the_first_flags_of_a_key_frame(flags: int) -> None:
    header = boolean_coded([*field(flags, 4), 1, 0, 1, 1] * 3)
    packet = bytes([1 << 4, 0, 0]) + b"\x9d\x01\x2a" + bytes(4) + header
    assert classify_vp8(memoryview(packet)).random_access == (flags & 3 != 2)
