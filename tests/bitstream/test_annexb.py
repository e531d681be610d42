"""Start codes and parameter sets, against FFmpeg's own filters."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import av
import numpy as np
import pytest

from streamvid.bitstream.annexb import NAL_SYNTAX, parameter_sets
from streamvid.bitstream.nal import START_CODE, to_annex_b
from streamvid.video.remux import store_clip
from tests.support.reference import whole
from tools.clips import hard_recipes, write

NAMES = [name for name, recipe in hard_recipes().items() if recipe.codec in NAL_SYNTAX]


def units(data: bytes, codec: str) -> list[bytes]:
    """NAL units behind start codes of three or four bytes, without those that only delimit access units."""
    delimiter = (9,) if codec == "h264" else (35,)
    found = [unit for unit in data.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1") if unit]
    return [unit for unit in found if (unit[0] & 31 if codec == "h264" else unit[0] >> 1 & 63) not in delimiter]


@pytest.mark.parametrize("name", NAMES)
def test_packets_are_those_that_ffmpeg_makes(name: str, tmp_path: Path) -> None:
    recipe = hard_recipes()[name]
    clip = store_clip(write(recipe, tmp_path / f"source.{recipe.container}"), tmp_path)
    part = whole(clip)
    settings = parameter_sets(clip.codec, clip.stsd)
    assert settings.bit_depth == (10 if "10" in clip.pix_fmt else 8)
    packets = to_annex_b(part.data, part.sizes, settings.length_size)
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
    packets = to_annex_b(np.frombuffer(data, dtype=np.uint8), sizes, length_size)
    assert packets == [START_CODE + bodies[0] + START_CODE + bodies[1], START_CODE + bodies[2]]


@pytest.mark.parametrize("data", [b"\0\0\0\5abcd", b"\0\0\0\0", b"\xff\xff\xff\xffabcd"])
def test_lengths_that_lie_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="NAL unit"):
        to_annex_b(np.frombuffer(data, dtype=np.uint8), np.array([len(data)]), 4)


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
