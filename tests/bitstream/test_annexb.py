"""Annex B, parameter sets and DPB sizes, against FFmpeg's bitstream filters."""

from __future__ import annotations

import io
import re
from contextlib import closing
from functools import partial
from pathlib import Path

import av
import av.logging
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext
from hypothesis import given
from hypothesis import strategies as st

from streamvid.bitstream.annexb import NAL_SYNTAX, dpb_requirement, parameter_sets
from streamvid.bitstream.nal import DpbRequirement
from streamvid.bitstream.packets import START_CODE, Packets
from streamvid.video.remux import store_clip
from tests.support.clips import hard_clips, write
from tests.support.reference import whole
from tools.clips import Recipe

NAMES = [name for name, recipe in hard_clips().items() if recipe.codec in NAL_SYNTAX]


def units(data: bytes, codec: str) -> list[bytes]:
    """NAL units behind start codes of three or four bytes, without those that only delimit access units."""
    delimiter = (9,) if codec == "h264" else (35,)
    found = [unit for unit in data.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1") if unit]
    return [unit for unit in found if (unit[0] & 31 if codec == "h264" else unit[0] >> 1 & 63) not in delimiter]


@pytest.mark.parametrize("name", NAMES)
def test_packets_are_those_that_ffmpeg_makes(name: str, tmp_path: Path) -> None:
    recipe = hard_clips()[name]
    clip = store_clip(write(recipe, tmp_path / f"source.{recipe.container}"), tmp_path)
    part = whole(clip)
    settings = parameter_sets(clip.codec, clip.stsd)
    assert settings.bit_depth == (10 if "10" in clip.pix_fmt else 8)
    packets = list(Packets.checked(part.data, part.sizes, length_size=settings.length_size))
    packets[0] = settings.annex_b + packets[0]
    with closing(av.open(io.BytesIO(clip.mp4.read_bytes()), options={"ignore_editlist": "1"})) as container:
        stream = container.streams.video[0]
        ffmpegs = av.BitStreamFilterContext(f"{clip.codec}_mp4toannexb", stream)
        wanted = [bytes(out) for packet in container.demux(stream) if packet.size for out in ffmpegs.filter(packet)]
    assert len(packets) == len(wanted)
    # FFmpeg puts the parameter sets before every key frame, and not again where they lie in band.
    sets = set(units(settings.annex_b, clip.codec))
    for ours, theirs in zip(packets, wanted, strict=True):
        mine = [unit for unit in units(ours, clip.codec) if unit not in sets]
        assert mine == [unit for unit in units(theirs, clip.codec) if unit not in sets]
    if any(unit in sets for unit in units(wanted[0], clip.codec)):
        assert sets <= set(units(packets[0], clip.codec))


@pytest.mark.parametrize("length_size", [1, 2, 4])
def test_lengths_of_any_size(length_size: int) -> None:
    bodies = [b"\x65abc", b"\x41" * 200, b"\x01"]
    data = b"".join(len(body).to_bytes(length_size, "big") + body for body in bodies)
    sizes = np.array([2 * length_size + 204, length_size + 1])
    packets = list(Packets.checked(np.frombuffer(data, dtype=np.uint8), sizes, length_size=length_size))
    assert packets == [START_CODE + bodies[0] + START_CODE + bodies[1], START_CODE + bodies[2]]


def test_packets_of_one_unit_among_others() -> None:
    units = [
        [b"\x65" * 300],
        [b"\x06ab", b"\x41" * 9],
        [],
        [b"\x41"],
        [b"\x09\xf0", b"\x41" * 70, b"\x41"],
        [b"\x01" * 256],
    ]
    packets = [b"".join(len(unit).to_bytes(4, "big") + unit for unit in some) for some in units]
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [2], [0], [1, 3]):
        data = np.frombuffer(b"".join(packets[n] for n in order), dtype=np.uint8)
        before = data.copy()
        made = list(Packets.checked(data, np.array([len(packets[n]) for n in order]), length_size=4))
        assert made == [b"".join(START_CODE + unit for unit in units[n]) for n in order]
        assert np.array_equal(data, before)


@pytest.mark.parametrize("data", [b"\0\0\0\5abcd", b"\0\0\0\0", b"\xff\xff\xff\xffabcd"])
def test_lengths_that_lie_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="NAL unit"):
        list(Packets.checked(np.frombuffer(data, dtype=np.uint8), np.array([len(data)]), length_size=4))


@pytest.mark.parametrize("sizes", [[5], [7], [-1, 7], [3, -1, 4], [1 << 62] * 4 + [6], []])
def test_sizes_that_lie_are_refused(sizes: list[int]) -> None:
    """They are addresses to the native module. The sum of some wraps around to what is there."""
    data = np.frombuffer(b"\0\0\0\2\x65a", dtype=np.uint8)
    with pytest.raises(ValueError, match="not as long"):
        Packets.checked(data, np.array(sizes, dtype=np.int64))


@pytest.mark.parametrize("codec", NAL_SYNTAX)
def test_boxes_that_lie_are_refused(codec: str) -> None:
    kind = {"h264": b"avcC", "hevc": b"hvcC"}[codec]
    with pytest.raises(ValueError, match="no"):
        parameter_sets(codec, bytes(100))
    for size in range(8, 40):
        # In front of it lie the sample description's header and the fixed part of its entry.
        box = bytes(16 + 86) + size.to_bytes(4, "big") + kind + b"\xff" * (size - 8)
        with pytest.raises(ValueError, match=r"cut off|too short"):
            parameter_sets(codec, box)


H264: list[tuple[tuple[str, str], ...]] = [
    (("ref", "1"),),
    (("ref", "3"),),
    (("ref", "16"), ("b-pyramid", "normal")),
    (("nal-hrd", "vbr"), ("vbv-maxrate", "500"), ("vbv-bufsize", "500")),
    (("cqm", "jvt"), ("ref", "5")),
    (("sar", "17/13"), ("ref", "5"), ("overscan", "crop")),
    (("tff", "1"), ("ref", "4")),
]
HEVC: list[tuple[tuple[str, str], ...]] = [
    (("ref", "1"),),
    (("ref", "6"), ("level-idc", "5.1")),
    (("level-idc", "3.1"), ("temporal-layers", "3"), ("b-adapt", "0")),
    (("sar", "2"), ("vbv-maxrate", "500"), ("vbv-bufsize", "500"), ("hrd", "1")),
]
RECIPES = [
    *(Recipe(frames=8, gop=8, b_frames=n % 4, height=192, params=more) for n, more in enumerate(H264)),
    Recipe(frames=2, options=(("profile", "baseline"),), params=(("ref", "5"),)),
    Recipe(frames=2, width=1918, height=1078, full_range=True),
    *(Recipe(codec="hevc", frames=8, gop=8, b_frames=n, params=more) for n, more in enumerate(HEVC)),
    Recipe(codec="hevc", frames=8, width=640, height=272, pix_fmt="yuv420p10le"),
]


def as_ffmpeg_reads_it(path: Path) -> dict[str, int]:
    """The fields of the sequence parameter set, the largest of those that come several times."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        before = av.logging.get_level()
        av.logging.set_level(av.logging.INFO)
        try:
            with av.logging.Capture() as lines:
                BitStreamFilterContext("trace_headers", stream)
        finally:
            av.logging.set_level(before)
    fields: dict[str, int] = {}
    for _, _, line in lines:
        found = re.match(r"\d+\s+(\w+)(?:\[\d+\])?\s+[01]+ = (\d+)", line.strip())
        if found:
            fields[found[1]] = max(int(found[2]), fields.get(found[1], 0))
    return fields


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_is_what_ffmpeg_reads(recipe: Recipe, tmp_path: Path) -> None:
    clip = store_clip(write(recipe, tmp_path / "source.mp4"), tmp_path)
    fields = as_ffmpeg_reads_it(clip.mp4)
    if recipe.codec == "h264":
        wanted = DpbRequirement("", fields["max_dec_frame_buffering"], fields["max_num_reorder_frames"])
        assert fields["max_num_ref_frames"] <= wanted.frames
    else:
        wanted = DpbRequirement(
            str(fields["general_level_idc"]),
            fields["sps_max_dec_pic_buffering_minus1"] + 1,
            fields["sps_max_num_reorder_pics"],
        )
    assert dpb_requirement(clip.codec, parameter_sets(clip.codec, clip.stsd).annex_b) == wanted


def bare(level: int, references: str) -> bytes:
    """A sequence parameter set of 320x192, Baseline, without VUI; references as an Exponential-Golomb code."""
    bits = "1" + "1" + "011" + references + "0" + "000010100" + "0001100" + "1" + "1" + "0" + "0" + "1"
    bits += "0" * (-len(bits) % 8)
    return START_CODE + bytes([0x67, 66, 0, level]) + int(bits, 2).to_bytes(len(bits) // 8, "big")


def test_without_that_information_only_equals_go_together() -> None:
    picture_set = START_CODE + b"\x68\xce\x0f\xc8"
    asked = dpb_requirement("h264", bare(21, "00110") + picture_set)
    assert (asked.frames, asked.reorder) == (0, 5)
    assert asked == dpb_requirement("h264", bare(21, "00110") + START_CODE + b"\x68\xce\x0f\xc9")
    assert asked.group != dpb_requirement("h264", bare(30, "00110") + picture_set).group
    assert asked.group != dpb_requirement("h264", bare(21, "00101") + picture_set).group
    assert asked.group


def test_what_cannot_be_read_goes_with_itself_alone() -> None:
    whole = bare(21, "00110")
    for sets in (whole + whole, whole[:9], START_CODE + b"\x68\xce", b""):
        assert dpb_requirement("h264", sets) == DpbRequirement(f"sets {sets.hex()}", 0, 0)


@given(st.sampled_from(["h264", "hevc"]), st.binary(max_size=200))
def test_noise_is_no_error(codec: str, noise: bytes) -> None:
    head = b"\x67" if codec == "h264" else b"\x42\x01"
    assert isinstance(dpb_requirement(codec, START_CODE + head + noise), DpbRequirement)


@pytest.mark.parametrize("length_size", [1, 2, 4])
def test_leading_units_end_with_the_first_slice(length_size: int) -> None:
    def packet(*units: bytes) -> memoryview:
        return memoryview(b"".join(len(unit).to_bytes(length_size, "big") + unit for unit in units))

    leading, sei = [b"\x09\xf0", b"\x67sps", b"\x65slice"], b"\x06sei"
    of = partial(NAL_SYNTAX["h264"].leading_units, length_size=length_size)
    for given_units, expected in [([*leading, b"\x65slice"], leading), ([sei], [sei]), ([], [])]:
        found = of(packet(*given_units))
        assert [(kind, bytes(unit)) for kind, unit in found] == [(unit[0] & 31, unit) for unit in expected]
    for damaged in (packet(sei)[:-1], packet(*leading)[:-1], packet(b"", sei)):
        with pytest.raises(ValueError, match="does not end within its packet"):
            of(damaged)
