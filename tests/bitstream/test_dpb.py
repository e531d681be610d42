"""What parameter sets ask of a decoder: as FFmpeg reads them, and where there is nothing to be read."""

from __future__ import annotations

import re
from pathlib import Path

import av
import av.logging
import pytest
from av.bitstream import BitStreamFilterContext
from hypothesis import given
from hypothesis import strategies as st

from streamvid.bitstream.annexb import dpb_requirement, parameter_sets
from streamvid.bitstream.nal import START_CODE, DpbRequirement
from streamvid.video.remux import store_clip
from tools.clips import Recipe, write

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
        wanted = DpbRequirement("", fields["max_dec_frame_buffering"])
        assert fields["max_num_ref_frames"] <= wanted.frames
    else:
        wanted = DpbRequirement(str(fields["general_level_idc"]), fields["sps_max_dec_pic_buffering_minus1"] + 1)
    assert dpb_requirement(clip.codec, parameter_sets(clip.codec, clip.stsd).annex_b) == wanted


def bare(level: int, references: str) -> bytes:
    """A sequence parameter set of 320x192, Baseline, without VUI; references as an Exponential-Golomb code."""
    bits = "1" + "1" + "011" + references + "0" + "000010100" + "0001100" + "1" + "1" + "0" + "0" + "1"
    bits += "0" * (-len(bits) % 8)
    return START_CODE + bytes([0x67, 66, 0, level]) + int(bits, 2).to_bytes(len(bits) // 8, "big")


def test_without_that_information_only_equals_go_together() -> None:
    picture_set = START_CODE + b"\x68\xce\x0f\xc8"
    asked = dpb_requirement("h264", bare(21, "00110") + picture_set)
    assert asked.frames == 0
    assert asked == dpb_requirement("h264", bare(21, "00110") + START_CODE + b"\x68\xce\x0f\xc9")
    assert asked.group != dpb_requirement("h264", bare(30, "00110") + picture_set).group
    assert asked.group != dpb_requirement("h264", bare(21, "00101") + picture_set).group
    assert asked.group


def test_what_cannot_be_read_goes_with_itself_alone() -> None:
    whole = bare(21, "00110")
    for sets in (whole + whole, whole[:9], START_CODE + b"\x68\xce", b""):
        assert dpb_requirement("h264", sets) == DpbRequirement(f"sets {sets.hex()}", 0)


@given(st.sampled_from(["h264", "hevc"]), st.binary(max_size=200))
def test_noise_is_no_error(codec: str, noise: bytes) -> None:
    head = b"\x67" if codec == "h264" else b"\x42\x01"
    assert isinstance(dpb_requirement(codec, START_CODE + head + noise), DpbRequirement)
