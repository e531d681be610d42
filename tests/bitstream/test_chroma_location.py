"""Chroma locations in the headers of encoders."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import pytest

from streamvid.bitstream.chroma_location import chroma_location
from streamvid.video.encoders import leave_real_time
from streamvid.video.remux import store_clip
from tools.clips import Recipe, write

PARAMS = {"libx264": "x264-params", "libx265": "x265-params", "libsvtav1": "svtav1-params"}
NAMES = ("left", "center", "topleft", "top", "bottomleft", "bottom")
# What lies before the VUI's chroma location, or makes the reader skip more.
OTHERS = {
    "libx264": ["", "sar=3000/2999:overscan=show:videoformat=pal:colormatrix=bt709", "cqm=jvt:keyint=5"],
    "libx265": ["", "sar=3000\\:2999:overscan=show:videoformat=pal:colormatrix=bt709", "scaling-list=default:bframes=4",
                "temporal-layers=3:ref=4:lossless=1"],
}  # fmt: skip


def location(path: Path, encoder: str, params: str) -> str:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(encoder, rate=25, options={PARAMS[encoder]: params})
        stream.width, stream.height, stream.pix_fmt, stream.time_base = 128, 96, "yuv420p", Fraction(1, 25)
        for number in range(6):
            frame = av.VideoFrame(128, 96, "yuv420p")
            for plane in frame.planes:
                plane.update(bytes([16 + 20 * number]) * plane.buffer_size)
            frame.pts = number
            container.mux(stream.encode(frame))
            leave_real_time()
        container.mux(stream.encode(None))
    clip = store_clip(path, path.parent)
    return chroma_location(clip.codec, clip.stsd)


@pytest.mark.parametrize(("encoder", "others"), [(name, one) for name, every in OTHERS.items() for one in every])
def test_locations_of_sequence_parameter_sets(encoder: str, others: str, tmp_path: Path) -> None:
    for number, name in enumerate(NAMES[:3] if others else NAMES):
        params = ":".join(filter(None, [f"chromaloc={number}", others]))
        found = location(tmp_path / f"{number}.mp4", encoder, params)
        assert found == (name if number else found)  # x264 and x265 write nothing for 0, the default
        assert number or found in ("left", "unknown")


@pytest.mark.parametrize(("position", "name"), [("left", "left"), ("topleft", "topleft"), ("unknown", "unknown")])
def test_locations_of_av1(position: str, name: str, tmp_path: Path) -> None:
    assert location(tmp_path / "a.mp4", "libsvtav1", f"chroma-sample-position={position}") == name


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9", "mpeg4"])
def test_streams_that_do_not_state_it_are_unknown(codec: str, tmp_path: Path) -> None:
    clip = store_clip(write(Recipe(codec=codec, frames=4), tmp_path / "a.mp4"), tmp_path)
    assert chroma_location(clip.codec, clip.stsd) == "unknown"


def test_sample_descriptions_that_cannot_be_read_are_unknown() -> None:
    assert chroma_location("h264", b"") == chroma_location("av1", b"") == "unknown"
