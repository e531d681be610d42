"""The output order of pictures, read from headers, equals FFmpeg's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.bitstream import packet_info
from streamvid.bitstream.annexb import parameter_sets
from streamvid.bitstream.h264 import H264Order
from streamvid.bitstream.hevc import HevcOrder
from streamvid.bitstream.packets import START_CODE
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.damage import Damage, find_damage
from streamvid.video.output_order import output_order
from streamvid.video.probe import VideoFile, read_stream_info
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import TIMES_SORTED, UNORDERED, StoredClip
from streamvid.video.timestamps import in_output_order, scan_packet_times
from tests.support.clips import write
from tests.support.reference import packets_of, sequential, slice_of, whole
from tools.clips import Recipe
from tools.damage import lie_about_order

Params = tuple[tuple[str, str], ...]
H264: list[Params] = [
    (("b-pyramid", "normal"),), (("b-pyramid", "none"),), (("b-pyramid", "strict"), ("ref", "6")), (("tff", "1"),),
    (("slices", "4"),), (("bframes", "0"),), (("open-gop", "1"), ("b-pyramid", "normal")),
]  # fmt: skip
HEVC: list[Params] = [
    (), (("b-pyramid", "0"),), (("slices", "3"),), (("temporal-layers", "3"), ("b-adapt", "0")),
    (("repeat-headers", "1"),),
]  # fmt: skip
SMALL = Recipe(width=128, height=96, frames=70, b_frames=3)
RECIPES = [
    *(replace(SMALL, gop=gop, params=more) for more in H264 for gop in (7, 400)),
    *(replace(SMALL, codec="hevc", gop=gop, b_frames=4, params=more) for more in HEVC for gop in (9, 400)),
    Recipe(codec="hevc", frames=40, gop=10, b_frames=3, open_gop=True),
    Recipe(codec="hevc", frames=40, gop=10, b_frames=3, open_gop=True, from_key=1),
    Recipe(frames=40, gop=10, b_frames=3, drop=2),
]


def orders(clip: StoredClip, packets: list[memoryview]) -> list[int | None]:
    return [kind.order for kind in packet_info.classify(clip.codec, clip.stsd, packets)]


def decoded(path: Path) -> list[int]:
    """The packets whose pictures come out, in the order in which they do."""
    with av.open(str(path), options={"ignore_editlist": "1"}) as container:
        context = container.streams.video[0].codec_context
        context.flags |= av.codec.context.Flags.copy_opaque
        frames = []
        for number, packet in enumerate(container.demux(video=0)):
            packet.opaque = number
            frames += [frame.opaque for frame in context.decode(packet if packet.size else None)]
    return [number for number in frames if isinstance(number, int)]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_it_is_the_order_in_which_ffmpeg_hands_them_out(recipe: Recipe, tmp_path: Path) -> None:
    clip = store_clip(write(recipe, tmp_path / "v.mp4"), tmp_path)
    order = orders(clip, packets_of(clip))
    assert None not in order
    out = decoded(clip.mp4)
    assert len(out) > len(order) - 4
    assert (np.diff(np.array(order)[out]) > 0).all()
    assert UNORDERED not in clip.traits


@pytest.mark.parametrize("container", ["mp4", "mkv"])
@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_times_that_contradict_it_are_not_believed(codec: str, container: str, tmp_path: Path) -> None:
    """As muxers write them that know decode times alone: every player shows what the decoder hands out."""
    good = write(Recipe(codec=codec, frames=30, gop=12, b_frames=3, style="texture"), tmp_path / "good.mp4")
    reference = sequential(good, full_range=False)
    clip = store_clip(lie_about_order(good, tmp_path / f"lying.{container}"), tmp_path)
    assert UNORDERED not in clip.traits
    assert clip.source_remarks == (TIMES_SORTED,)
    assert len(clip.index.visible) == len(reference)
    np.testing.assert_array_equal(decode_with_pyav(whole(clip)), reference)
    np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, [1, 2, 17])), [reference[n] for n in (1, 2, 17)])


def test_what_an_edit_list_hides_stays_hidden(tmp_path: Path) -> None:
    good = write(Recipe(frames=12, gop=12, b_frames=3), tmp_path / "good.mp4")
    lying = VideoFile(lie_about_order(good, tmp_path / "lying.mp4"))
    found = scan_packet_times(lying, read_stream_info(lying))
    found = replace(found, hidden=found.pts <= np.sort(found.pts)[2])
    output = output_order(lying, "h264")
    ordered = in_output_order(found, output)
    assert not np.array_equal(ordered.pts, found.pts)
    np.testing.assert_array_equal(np.sort(ordered.pts[~found.hidden]), np.sort(found.pts[~found.hidden]))
    np.testing.assert_array_equal(ordered.hidden, found.hidden)
    # Of times that are rounded to milliseconds, but count sixteenths of them, the hidden ones are milliseconds, too.
    rounded = np.round(found.pts * found.time_base[0] / found.time_base[1] * 1000).astype(np.int64) * 16
    ordered = in_output_order(replace(found, pts=rounded, time_base=(1, 16000)), output)
    assert ordered.in_coarsest_ticks().time_base == (1, 1000)
    with pytest.raises(ValueError, match="none of its frames is shown"):
        in_output_order(replace(found, hidden=np.ones_like(found.hidden)), output)
    with pytest.raises(ValueError, match="same time"):
        in_output_order(replace(found, pts=np.full_like(found.pts, 100)), output)


def test_what_cannot_be_told_is_named(tmp_path: Path) -> None:
    """A second sequence parameter set that says something else, in band: slices may be of either."""
    clip = store_clip(write(Recipe(frames=12, gop=6, b_frames=2), tmp_path / "v.mp4"), tmp_path)
    (tmp_path / "other").mkdir()
    other = store_clip(write(Recipe(frames=2, gop=6, b_frames=0), tmp_path / "w.mp4"), tmp_path / "other")
    (sps, *_) = parameter_sets("h264", other.stsd).annex_b.split(START_CODE)[1:]
    packets = packets_of(clip)
    packets[6] = memoryview(len(sps).to_bytes(4, "big") + sps + packets[6])
    order = orders(clip, packets)
    assert None not in order[:6]
    assert order[6:] == [None] * 6


def test_pictures_that_do_not_come_out_have_no_place(tmp_path: Path) -> None:
    """A picture parameter set with output_flag_present_flag, and slices with pic_output_flag 1 and 0."""
    clip = store_clip(write(Recipe(codec="hevc", frames=2), tmp_path / "v.mp4"), tmp_path)
    order = HevcOrder(parameter_sets("hevc", clip.stsd).annex_b)
    sets = memoryview(bytes([34 << 1, 1, 0b1101_0001]))
    shown, hidden = (memoryview(bytes([1 << 1, 1, 0b1110_0000 | flag << 4, 0, 0, 128])) for flag in (1, 0))
    assert order.next_rank([sets, shown]) is not None
    assert order.next_rank([hidden]) is None


@given(st.sampled_from(["h264", "hevc"]), st.lists(st.binary(max_size=24), max_size=6), st.integers(0, 2**16))
def test_garbage_does_not_raise(codec: str, units: list[bytes], seed: int) -> None:
    reader = H264Order if codec == "h264" else HevcOrder
    made = reader(b"")
    rng = np.random.default_rng(seed)
    for _ in range(3):
        made.next_rank([memoryview(unit) for unit in units if unit])
        made.next_rank([memoryview(rng.bytes(40))])


def test_verify_tells_frames_in_another_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a dataset that another program wrote."""

    def damage(source: Path) -> Damage | None:
        clip = store_clip(source, tmp_path)
        return find_damage(clip.index, np.arange(30), partial(slice_of, clip))

    good = write(Recipe(frames=30, gop=12, b_frames=3), tmp_path / "good.mp4")
    assert damage(good) is None
    monkeypatch.setattr(packet_info, "in_output_order", lambda codec, kinds, times: True)
    found = damage(lie_about_order(good, tmp_path / "lying.mp4"))
    assert found is not None
    assert "another order" in found.cause
