"""Film grain, which FFmpeg adds to pictures behind the one that a message comes with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import streamvid as sv
from streamvid.bitstream.packet_info import classify
from streamvid.color.tags import Color
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.video.ingest import index_by_tables
from streamvid.video.packet_selection import contradiction, select_packets
from streamvid.video.probe import CannotCopyError
from streamvid.video.remux import store_clip
from tests.support.bits import escaped, ue
from tests.support.clips import write
from tests.support.reference import sequential
from tests.support.remux import remuxing
from tools.clips import Recipe
from tools.recipes import Codec

HEVC = Recipe(codec="hevc", width=192, height=160, frames=24, gop=8, b_frames=2)
_AOM = b"\x04\x06\xb5\x58\x90\x00\x01\x00"


def _characteristics(codec: Codec) -> bytes:
    """film_grain_characteristics (D.1.21): much grain in luma, in all pictures from this one on."""
    bits = (
        "0000000011"
        + "100"
        + "0" * 11
        + f"{0:08b}{255:08b}"
        + ue(2 * 250 - 1)
        + ("1" if codec == "hevc" else ue(1))
        + "1"
    )
    bits = bits.ljust(-(-len(bits) // 8) * 8, "0")
    payload = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return bytes([19, len(payload)]) + payload


def _with_message(recipe: Recipe, path: Path, message: bytes, *, number: int = 0) -> Path:
    """A video with a SEI message before a packet."""
    unit = (b"\x4e\x01" if recipe.codec == "hevc" else b"\x06") + escaped(message + b"\x80")
    with remuxing(write(recipe, path.with_name("plain.mp4")), path) as made:
        for n, packet in enumerate(made.packets):
            made.mux(packet, (len(unit).to_bytes(4, "big") + unit) * (n == number) + bytes(packet))
    return path


def test_frames_keep_their_film_grain(tmp_path: Path) -> None:
    """Only the first packet tells of it."""
    source = _with_message(HEVC, tmp_path / "a.mp4", _characteristics("hevc"))
    with pytest.raises(CannotCopyError, match="add film grain"):
        store_clip(source, tmp_path)
    with pytest.raises(CannotCopyError, match="add film grain"), source.open("rb", buffering=0) as file:
        index_by_tables(source, file, lambda spans: [source.read_bytes()[a:b] for a, b in spans])
    pack(source, tmp_path / "set", options=PackOptions("gpu"), workers=1, progress=False)
    dataset = sv.ClipDataset(tmp_path / "set")
    color = Color("bt601", full_range=False, siting=(0, 1))
    grained, plain = (sequential(tmp_path / name, color=color) for name in ("a.mp4", "plain.mp4"))
    for number in range(HEVC.frames):
        frame = dataset.get("a", frames=[number])["video"].numpy()[0].astype(int)
        assert np.abs(frame - grained[number]).mean() < 0.7 * np.abs(frame - plain[number]).mean()


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_messages_of_film_grain(codec: Codec, tmp_path: Path) -> None:
    deep = "yuv420p10le" if codec == "hevc" else "yuv444p"
    grain = _characteristics(codec)
    for name, message, pix_fmt, adds in (
        ("a", grain, "yuv420p", True), ("b", _AOM, "yuv420p", True), ("c", _AOM, deep, True),
        ("d", grain, deep, False), ("e", b"\x04" + _AOM[1:6] + b"\x02\x00", "yuv420p", False),
        ("f", grain[:1], "yuv420p", False), ("g", b"\x05\x10" + bytes(16) + grain, "yuv420p", True),
    ):  # fmt: skip
        recipe = replace(HEVC, codec=codec, frames=8, pix_fmt=pix_fmt)
        (tmp_path / name).mkdir()
        source = _with_message(recipe, tmp_path / name / "a.mp4", message, number=5)
        if adds:
            with pytest.raises(CannotCopyError, match="add film grain"):
                store_clip(source, tmp_path / name)
        else:
            assert len(store_clip(source, tmp_path / name).index) == 8, name


def test_film_grain_that_tables_did_not_show(tmp_path: Path) -> None:
    """It is found when the packet is read."""
    clip = store_clip(write(HEVC, tmp_path / "b.mp4"), tmp_path)
    source = _with_message(HEVC, tmp_path / "a.mp4", _characteristics("hevc"), number=11)
    with source.open("rb", buffering=0) as file:
        index = index_by_tables(source, file, lambda spans: [source.read_bytes()[a:b] for a, b in spans]).index
    places = zip(index.offset.tolist(), index.size.tolist(), strict=True)
    packets = [source.read_bytes()[at : at + size] for at, size in places]
    assert [kind.adds_grain for kind in classify("hevc", clip.stsd, [*map(memoryview, packets)])].index(True) == 11
    chosen = select_packets(index, np.arange(24))
    found = contradiction("hevc", clip.stsd, chosen, np.frombuffer(b"".join(packets), np.uint8))
    assert found is not None
    assert (found[0], "film grain" in found[1]) == (11, True)
