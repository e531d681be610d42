"""Frames that `find_damage` names are exactly those that a loader cannot decode."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest

from streamvid.arrays import Int64
from streamvid.bitstream import hevc
from streamvid.bitstream.packets import START_CODE, packets_in
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.damage import Damage, find_damage
from streamvid.errors import VideoError
from streamvid.video.frame_index import DISPOSABLE
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.clips import one_after_the_other, without_packets, write
from tests.support.reference import slice_of
from tests.support.remux import remuxing
from tools.clips import Recipe

BASE = Recipe(width=128, height=80, frames=80, gop=20, b_frames=3, style="texture")
CODECS = {
    "h264": BASE,
    "hevc_open_gop": replace(BASE, codec="hevc", open_gop=True),
    "vp9": replace(BASE, codec="vp9", container="webm"),
    "mpeg4": replace(BASE, codec="mpeg4"),
    "av1": replace(BASE, codec="av1"),
    "one_gop": replace(BASE, gop=80),
}


def loads(clip: StoredClip, frames: list[int]) -> bool:
    try:
        decode_with_pyav(slice_of(clip, frames))
    except VideoError:
        return False
    return True


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_frames_are_those_that_do_not_load(name: str, seed: int, tmp_path: Path) -> None:
    clip = store_clip(write(CODECS[name], tmp_path / f"a.{CODECS[name].container}"), tmp_path)
    rng = np.random.default_rng(seed)
    data = bytearray(clip.mp4.read_bytes())
    for packet in rng.choice(len(clip.index), 1 + seed, replace=False):
        at, size = int(clip.index.offset[packet]), int(clip.index.size[packet])
        if seed == 1:
            data[at : at + size] = bytes(size)
        else:
            for place in rng.integers(at + min(8, size - 1), at + size, 3):
                data[place] ^= 0xFF
    clip.mp4.write_bytes(data)
    every = np.arange(80)
    found = find_damage(clip.index, every, partial(slice_of, clip))
    damaged = set() if found is None else set(found.frames)
    lost = {n for n in range(80) if not loads(clip, [n])}
    if name.startswith("hevc"):  # of which frames that load may be damaged, too: see below
        assert lost <= damaged
        return
    assert damaged == lost
    assert seed != 1 or damaged
    for first in range(0, 80, 9):
        window = list(range(first, min(80, first + 16)))
        assert loads(clip, window) == damaged.isdisjoint(window)
    # Of some frames it is what is found of all.
    some = np.arange(24, 40)
    part = find_damage(clip.index, some, partial(slice_of, clip))
    assert (set() if part is None else set(part.frames)) & set(some.tolist()) == damaged & set(some.tolist())


def test_h264_frames_whose_references_were_lost_before_packing(tmp_path: Path) -> None:
    """FFmpeg takes other pictures in their place and says nothing."""
    source = write(BASE, tmp_path / "a.mp4")
    whole = store_clip(source, tmp_path)
    every = np.arange(80)
    assert find_damage(whole.index, every, partial(slice_of, whole)) is None
    for lost in (20, 22, 23, 25):  # a key frame, and others
        clip = store_clip(without_packets(source, tmp_path / "b.mp4", lost), tmp_path)
        found = find_damage(clip.index, np.arange(79), partial(slice_of, clip))
        if bool(whole.index.flags[lost] & DISPOSABLE):
            assert found is None
            continue
        assert found is not None
        assert "reference pictures are missing" in found.cause
        # Up to the next key frame; what is decoded before the gap is sound.
        decoded = clip.index.visible[list(found.frames)]
        assert lost <= decoded.min() <= lost + 1
        assert decoded.max() < 39
        assert len(found.frames) > 1


def test_h264_frames_that_refer_to_what_is_missing_before_a_recovery_point(tmp_path: Path) -> None:
    """Those that are decoded behind it and displayed before it, as where recordings were joined; no others."""
    source = write(replace(BASE, open_gop=True, gop=12, b_frames=3, frames=48), tmp_path / "a.mp4")
    whole = store_clip(source, tmp_path)
    assert find_damage(whole.index, np.arange(48), partial(slice_of, whole)) is None
    with av.open(str(source)) as container:
        key = [n for n, packet in enumerate(container.demux(video=0)) if packet.is_keyframe][2]
    lost = range(key - 6, key)
    clip = store_clip(without_packets(source, tmp_path / "b.mp4", *lost), tmp_path)
    found = find_damage(clip.index, np.arange(48 - len(lost)), partial(slice_of, clip))
    assert found is not None
    assert found.cause.endswith("before a recovery point")
    at = key - len(lost)
    leading = [n for n in range(at + 1, len(clip.index)) if clip.index.pts[n] < clip.index.pts[at]]
    assert leading
    assert sorted(clip.index.visible[list(found.frames)].tolist()) == leading


def test_it_says_which_frames() -> None:
    assert str(Damage((4,), 9, "gone")) == "frame 4 of its 9 does not decode: gone"
    assert str(Damage((4, 5, 6, 8), 9, "gone")) == "4 of its 9 frames do not decode, 4 to 6, 8: gone"
    many = Damage(tuple(range(0, 40, 2)), 50, "gone")
    assert str(many) == "20 of its 50 frames do not decode, 0, 2, 4, 6, 8 and 15 more: gone"


@pytest.mark.parametrize("container", ["avi", "mov"])
def test_damage_within_a_picture_of_motion_jpeg_is_found(container: str, tmp_path: Path) -> None:
    """FFmpeg leaves what it cannot decode as it lies in memory, and flags nothing: it differs from run to run."""
    recipe = replace(BASE, codec="mjpeg", container=container, frames=6)  # type: ignore[arg-type]
    clip = store_clip(write(recipe, tmp_path / f"a.{container}"), tmp_path)
    data = bytearray(clip.mp4.read_bytes())
    at, size = int(clip.index.offset[2]), int(clip.index.size[2])
    # Of the coded samples, neither the tables before them nor the end.
    noise = np.random.default_rng(1).integers(0, 255, size // 4, dtype=np.uint8)  # 0xFF begins a marker
    data[at + size // 2 : at + size // 2 + len(noise)] = noise.tobytes()
    clip.mp4.write_bytes(data)
    found = find_damage(clip.index, np.arange(6), partial(slice_of, clip))
    assert found is not None
    assert found.frames == (2,)


HEVC = Recipe(codec="hevc", width=160, height=144, frames=24, gop=12, b_frames=3)


@pytest.mark.parametrize("recipe", [HEVC, replace(HEVC, codec="vp8", b_frames=0, container="webm")])
def test_damage_that_ffmpeg_does_not_tell_of_is_found(recipe: Recipe, tmp_path: Path) -> None:
    """Single bits are flipped. What is accepted looks the same in every window."""
    clip = store_clip(write(recipe, tmp_path / f"a.{recipe.container}"), tmp_path).as_file(tmp_path / "b.mp4")
    whole, draw, found = clip.mp4.read_bytes(), random.Random(2), 0
    all_frames = np.arange(len(clip.index.visible))
    for _ in range(24):
        data = bytearray(whole)
        data[draw.randrange(int(clip.index.offset[0]) + 60, len(data))] ^= 1 << draw.randrange(8)
        clip.mp4.write_bytes(data)
        if find_damage(clip.index, all_frames, clip.slice) is not None:
            found += 1
            continue
        pictures = decode_with_pyav(clip.slice(all_frames))
        for first in (1, 7, 12, 20):
            window = all_frames[first : first + 3]
            assert np.array_equal(decode_with_pyav(clip.slice(window)), pictures[window])
    assert found >= 4


@pytest.mark.parametrize(("frames", "short"), [(24, 5), (3, 1)])
def test_a_picture_of_vp8_that_ends_early_is_named(frames: int, short: int, tmp_path: Path) -> None:
    """With those that are predicted from it, up to the next key frame. The second of three gets the same memory again
    when they are decoded once more."""
    recipe = replace(HEVC, codec="vp8", b_frames=0, container="webm", style="texture", frames=frames)
    clip = store_clip(write(recipe, tmp_path / "a.webm"), tmp_path)
    sizes = clip.index.size.copy()
    sizes[short] -= sizes[short] // 3
    found = find_damage(clip.index, np.arange(frames), replace(clip, index=replace(clip.index, size=sizes)).slice)
    assert found == Damage((*range(short, min(12, frames)),), frames, "FFmpeg leaves out a part of a picture")


def test_sei_messages_that_are_not_as_they_should_be_are_no_damage(tmp_path: Path) -> None:
    clip = store_clip(write(HEVC, tmp_path / "a.mp4"), tmp_path)
    sei = struct.pack(">I", 6) + bytes([39 << 1, 1, 4, 200, 0xFF, 0xFF])  # longer than its unit

    def with_sei(frames: Int64) -> EncodedSlice:
        part = clip.slice(frames)
        data = b"".join(sei + packet.tobytes() for packet in packets_in(part.data, part.sizes))
        return replace(part, data=np.frombuffer(data, dtype=np.uint8), sizes=part.sizes + len(sei))

    assert find_damage(clip.index, np.arange(len(clip.index.visible)), with_sei) is None


def test_hevc_whose_container_lacks_a_parameter_set_that_is_in_band(tmp_path: Path) -> None:
    recipe = replace(CODECS["hevc_open_gop"], frames=24, tag="hev1", params=(("repeat-headers", "1"),))
    source = write(recipe, tmp_path / "a.mp4")
    data = source.read_bytes()
    box = data.index(b"hvcC") - 4
    end = box + int.from_bytes(data[box : box + 4], "big")
    count, vps = data[box + 30], data.index(bytes([32]), box + 31)  # numOfArrays; its type (ISO/IEC 14496-15, 8.3.3.1)
    assert (vps, count) == (box + 31, 4)
    size = int.from_bytes(data[vps + 3 : vps + 5], "big") + 5
    shorter = data[box + 8 : box + 30] + bytes([count - 1]) + data[vps + size : end]
    free = struct.pack(">I", size) + b"free" + bytes(size - 8)
    source.write_bytes(data[:box] + struct.pack(">I", end - box - size) + b"hvcC" + shorter + free + data[end:])
    clip = store_clip(source, tmp_path)
    assert find_damage(clip.index, np.arange(24), clip.slice) is None


def test_hevc_of_joined_recordings_of_which_the_second_states_its_sets_once(tmp_path: Path) -> None:
    """Its later IDR pictures are decoded by them, too, and not by the sample description's."""
    recipe = replace(HEVC, width=128, height=96, frames=16, gop=8, b_frames=0)
    first, second = (tmp_path / name for name in ("first.mp4", "second.mp4"))
    write(recipe, first)
    plain = write(replace(recipe, params=(("wpp", "0"), ("open-gop", "0"))), tmp_path / "plain.mp4")
    sets = hevc.parameter_sets(store_clip(plain, tmp_path).stsd).annex_b.split(START_CODE)[1:]
    in_band = b"".join(len(unit).to_bytes(4, "big") + unit for unit in sets)
    with remuxing(plain, second) as copy:
        for number, packet in enumerate(copy.packets):
            copy.mux(packet, in_band * (not number) + bytes(packet))
    clip = store_clip(one_after_the_other([first, second], tmp_path / "joined.mp4"), tmp_path)
    assert clip.index.starts.tolist() == [0, 8, 16]
    assert find_damage(clip.index, np.arange(32), clip.slice) is None
