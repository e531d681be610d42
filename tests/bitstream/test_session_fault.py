"""Streams that decode sessions would decode wrongly without an error are recognised by their headers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamvid.bitstream.annexb import parameter_sets
from streamvid.bitstream.packets import START_CODE, packets_in
from streamvid.bitstream.session_fault import needs_packets, packets_fault, session_fault
from streamvid.bitstream.vpx import coded_sizes
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.gop_jobs import split_at_idr
from streamvid.decode.gpu import decode_support
from streamvid.decode.session_key import stream_headers
from streamvid.errors import VideoError
from streamvid.video.gpu_support import Route
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support import mpeg4
from tests.support.bits import escaped, to_bytes, ue
from tests.support.clips import write
from tests.support.field_pictures import Picture, write_fields
from tests.support.reference import joined, whole
from tools.clips import Recipe

H264 = Recipe(frames=4, height=192)
MPEG4 = replace(H264, codec="mpeg4")
VP9 = Recipe(codec="vp9", container="webm", frames=12, gop=6)
_HIDDEN = (("auto-alt-ref", "1"), ("lag-in-frames", "25"), ("cpu-used", "5"), ("b", "100k"))


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    ("recipe", "problem"),
    [
        (H264, ""),
        (replace(H264, height=180, width=322), ""),
        (replace(H264, params=(("tff", "1"),)), "deinterlace (PyNvVideoCodec)"),
        (replace(H264, params=(("fake-interlaced", "1"),)), ""),
        (replace(H264, params=(("constrained-intra", "1"), ("slices", "3"))), ""),
        (replace(H264, params=(("constrained-intra", "1"), ("fake-interlaced", "1"))), "constrained"),
        (
            replace(H264, params=(("constrained-intra", "1"), ("tff", "1"), ("cabac", "0"), ("weightp", "2"))),
            "constrained",
        ),
        (replace(H264, params=(("qp", "1"),)), ""),
        (replace(H264, params=(("qp", "0"),)), "lossless"),
        (replace(H264, params=(("crop-rect", "0,0,14,14"),)), ""),
        (replace(H264, params=(("crop-rect", "64,0,0,0"),)), "crop"),
        (replace(H264, params=(("crop-rect", "32,0,0,0"),)), "crop"),
        (replace(H264, params=(("crop-rect", "0,16,0,0"),)), "crop"),
        (replace(H264, codec="hevc", height=182, width=322), ""),
        (replace(H264, codec="hevc", params=(("interlace", "tff"),), b_frames=0), ""),
        (MPEG4, ""),
        (replace(MPEG4, width=131, height=97), ""),
        (replace(MPEG4, options=(("flags", "+qpel+mv4"), ("mpeg_quant", "1"))), ""),
        (replace(MPEG4, options=(("flags", "+ildct+ilme"),)), "deinterlace"),
        (replace(MPEG4, options=(("data_partitioning", "1"), ("ps", "300"))), "partitioned"),
    ],
)
def test_streams_that_sessions_get_wrong_are_decoded_by_cores(
    recipe: Recipe, problem: str, native: bool, tmp_path: Path
) -> None:
    clip = store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path)
    problem, _, of_python = problem.partition(" (")
    problem = "" if of_python and native else problem
    row = decode_support(clip.codec, clip.stsd, clip.width, clip.height, native=native)
    assert row.route is (Route.CPU if problem else Route.NVDEC)
    assert problem in row.reason
    # A row that says another size.
    assert decode_support(clip.codec, clip.stsd, clip.width + 16, clip.height, native=native).route is Route.CPU


def _hevc(params: tuple[tuple[str, str], ...], tmp_path: Path) -> tuple[StoredClip, dict[int, bytes]]:
    """A clip of 640x360 of x265, and its parameter sets by type."""
    recipe = Recipe(codec="hevc", width=640, height=360, frames=4, params=params)
    clip = store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path)
    units = parameter_sets(clip.codec, clip.stsd).annex_b.split(START_CODE)
    return clip, {unit[0] >> 1: unit for unit in units if unit}


@pytest.mark.parametrize(
    ("tiles", "block", "small"),
    [
        ("", 64, False),
        (ue(1) + ue(0) + "1", 64, False),  # 2 columns of 5 coding tree blocks
        (ue(2) + ue(0) + "1", 64, True),  # 3, 3 and 4
        (ue(0) + ue(4) + "1", 64, False),  # rows of 1, 1, 1, 1 and 2
        (ue(0) + ue(6) + "1", 32, True),  # 12 coding tree blocks in 7 rows
        (ue(1) + ue(0) + "0" + ue(3), 64, False),  # 4 and 6
        (ue(1) + ue(0) + "0" + ue(2), 64, True),  # 3 and 7
        (ue(1) + ue(1) + "0" + ue(6) + ue(2), 64, True),  # 7 and 3; 3 and 3
        (ue(0) + ue(2) + "0" + ue(1) + ue(8), 32, True),  # rows of 2, 9 and 1
    ],
)
def test_hevc_with_small_tiles(tiles: str, block: int, small: bool, tmp_path: Path) -> None:
    """Tiles that are less than 256 wide or 64 high, as kvazaar makes them, came out garbled."""
    clip, sets = _hevc((("ctu", f"{block}"),), tmp_path)
    bits = ue(0) + ue(0) + 7 * "0" + ue(0) + ue(0) + ue(0) + "010" + ue(0) + ue(0) + "0000"
    bits += f"{1 if tiles else 0}0{tiles}" + 20 * "0" + "1"
    pps = sets[34][:2] + escaped(to_bytes(bits))
    headers = START_CODE + sets[33] + START_CODE + pps
    found = session_fault("hevc", headers, clip.width, clip.height, native=True)
    assert ("tiles" in found) is small


@pytest.mark.parametrize("native", [False, True])
def test_headers_that_cannot_be_read_are_no_stream_for_a_session(native: bool) -> None:
    assert session_fault("h264", b"\0\0\0\1\x67\x64", 320, 180, native=native)
    assert session_fault("mpeg4", b"\0\0\1\x20\x00", 320, 180, native=native)


@pytest.mark.parametrize(
    ("pictures", "problem"),
    [(["frame"] * 4, ""), (["fields"] * 4, "deinterlace"), (["frame"] * 3 + ["repeated field"], "deinterlace")],
)
def test_h264_that_may_be_in_fields_is_looked_at(pictures: list[Picture], problem: str, tmp_path: Path) -> None:
    """PyNvVideoCodec deinterlaces fields, and leaves frames as they are."""
    clip = store_clip(write_fields(tmp_path / "a.mp4", pictures), tmp_path)
    assert decode_support(clip.codec, clip.stsd, clip.width, clip.height, native=False).route is Route.NVDEC
    assert needs_packets(clip.codec, clip.stsd, native=False)
    assert not needs_packets(clip.codec, clip.stsd, native=True)
    packets = packets_in(whole(clip).data, whole(clip).sizes)
    found = packets_fault(clip.codec, clip.stsd, packets, clip.width, clip.height)
    assert problem in found
    assert bool(problem) == bool(found)


def test_progressive_h264_is_not_looked_at(tmp_path: Path) -> None:
    clip = store_clip(write(H264, tmp_path / "a.mp4"), tmp_path)
    assert not needs_packets(clip.codec, clip.stsd, native=False)
    assert parameter_sets(clip.codec, clip.stsd).length_size == 4


@pytest.mark.parametrize(
    "recipe",
    [
        replace(VP9, codec="vp8"),
        replace(VP9, codec="vp8", hidden=5),
        VP9,
        replace(VP9, width=321, height=181),
        replace(VP9, pix_fmt="yuv444p"),
        replace(VP9, frames=60, gop=30, options=_HIDDEN),
        replace(VP9, options=(("error-resilient", "1"),)),
    ],
)
def test_packets_of_vp8_and_vp9_state_their_size(recipe: Recipe, tmp_path: Path) -> None:
    encoded = whole(store_clip(write(recipe, tmp_path / "a.webm"), tmp_path))
    packets = packets_in(encoded.data, encoded.sizes)
    size = (recipe.width, recipe.height)
    assert coded_sizes(recipe.codec, bytes(packets[0])) == {size}
    assert needs_packets(recipe.codec, encoded.stsd, native=True)
    assert not packets_fault(recipe.codec, encoded.stsd, packets, *size)
    assert packets_fault(recipe.codec, encoded.stsd, packets, size[0] + 1, size[1])
    assert packets_fault(recipe.codec, encoded.stsd, [packets[0][:6]], *size)


@pytest.mark.parametrize("codec", ["h264", "hevc", "mpeg4"])
def test_a_stream_that_changes_its_size_is_no_job(codec: Any, tmp_path: Path) -> None:
    """A session that was opened for the larger size gives the smaller pictures under the larger ones' size."""
    parts = []
    for n, (width, height) in enumerate([(320, 192), (160, 144)]):
        recipe = Recipe(codec=codec, container="ts", frames=6, gop=6, width=width, height=height, b_frames=0)
        (tmp_path / str(n)).mkdir()
        parts.append(whole(store_clip(write(recipe, tmp_path / str(n) / "a.ts"), tmp_path / str(n))))
    targets: list[Any] = [None]
    split_at_idr(parts[:1], targets)
    small = parts[1]
    if codec in ("h264", "hevc"):  # their parameter sets in band
        small = replace(small, data=_in_band(small), sizes=small.sizes + _extra(small))
    with pytest.raises(VideoError, match="another way"):
        split_at_idr([joined(parts[0], small)], targets)


def test_mpeg4_without_a_version_is_no_stream_to_follow_another(tmp_path: Path) -> None:
    """NVIDIA's parser takes the version of the stream before, or of the object; FFmpeg takes the first."""
    vops = mpeg4.encoded(tmp_path)
    states = store_clip(mpeg4.mux(vops, tmp_path / "states.mkv"), tmp_path)
    for name, of_object in (("none", None), ("first", 1), ("fifth", 5)):
        silent = [one._replace(data=mpeg4.without_version(one.data, of_object=of_object)) for one in vops]
        (tmp_path / name).mkdir()
        clip = store_clip(mpeg4.mux(silent, tmp_path / name / "a.mkv"), tmp_path / name)
        np.testing.assert_array_equal(decode_with_pyav(whole(clip)), decode_with_pyav(whole(states)))
        headers = silent[0].data[: silent[0].data.index(b"\0\0\1\xb6")]
        assert bool(session_fault("mpeg4", headers, clip.width, clip.height, native=True)) is (of_object == 5)
        if of_object == 5:
            continue
        jobs = split_at_idr([whole(states), whole(clip), whole(states)], [None] * 3)  # type: ignore[list-item]
        assert [job.key == jobs[0].key for job in jobs] == [True] * 2 + [False] * 2 + [True] * 2


def test_mpeg4_that_is_interlaced_from_the_middle_on_is_decoded_by_cores(tmp_path: Path) -> None:
    parts = []
    for name, flags in (("plain", "+mv4"), ("interlaced", "+ildct+ilme")):
        (tmp_path / name).mkdir()
        recipe = Recipe(codec="mpeg4", container="avi", frames=6, gop=3, b_frames=0, options=(("flags", flags),))
        parts.append(whole(store_clip(write(recipe, tmp_path / name / "a.avi"), tmp_path / name)))
    plain, interlaced = parts
    headers = np.frombuffer(stream_headers("mpeg4", interlaced.stsd), dtype=np.uint8)
    sizes = interlaced.sizes + np.array([len(headers), *[0] * 5])
    interlaced = replace(interlaced, data=np.concatenate([headers, interlaced.data]), sizes=sizes)
    both = joined(plain, interlaced)
    for encoded, problem in ((plain, ""), (both, "deinterlace")):
        assert needs_packets("mpeg4", encoded.stsd, native=True)
        fault = packets_fault(
            "mpeg4", encoded.stsd, packets_in(encoded.data, encoded.sizes), encoded.width, encoded.height
        )
        assert problem in fault
        assert bool(fault) is bool(problem)


@pytest.mark.parametrize(("still", "b_frames"), [(0, 2), (96, 2), (192, 2), (96, 0)])
def test_mpeg4_with_empty_video_packets_is_decoded_by_cores(still: int, b_frames: int, tmp_path: Path) -> None:
    """With two threads FFmpeg's encoder codes each half as video packets of its own."""
    encoded = whole(store_clip(mpeg4.write_still_above(tmp_path / "a.mp4", still, b_frames=b_frames), tmp_path))
    fault = packets_fault("mpeg4", encoded.stsd, packets_in(encoded.data, encoded.sizes), encoded.width, encoded.height)
    assert ("empty video packet" in fault) is bool(fault) is (still > 0 < b_frames)


def _sets(encoded: EncodedSlice) -> bytes:
    from streamvid.bitstream.annexb import parameter_sets

    units = parameter_sets(encoded.codec, encoded.stsd).annex_b.split(b"\0\0\0\1")[1:]
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)


def _in_band(encoded: EncodedSlice) -> Any:
    return np.concatenate([np.frombuffer(_sets(encoded), dtype=np.uint8), encoded.data])


def _extra(encoded: EncodedSlice) -> Any:
    return np.array([len(_sets(encoded)), *[0] * (len(encoded.sizes) - 1)])
