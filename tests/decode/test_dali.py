"""Slices joined into one stream: on the CPU, the joined stream decodes to the frames of each, in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.color.tags import RGB
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.dali import fuse, group, reason_of
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from tests.support.clips import hard_clips, write
from tests.support.reference import slice_of
from tools.clips import Recipe

HARD = hard_clips()


@pytest.mark.parametrize(
    "name", ["h264", "h264_pyramid", "hevc", "hevc_open_gop", "hevc_10bit", "vp9", "mpeg4_open_gop"]
)
def test_a_fused_stream_decodes_to_the_frames_of_its_slices(name: str, tmp_path: Path) -> None:
    recipe = HARD[name]
    clip = store_clip(write(recipe, tmp_path / f"a.{recipe.container}"), tmp_path)
    rng = np.random.default_rng(0)
    slices = [
        slice_of(clip, np.sort(rng.choice(len(clip.index.visible), int(rng.integers(1, 7)), replace=False)))
        for _ in range(9)
    ]
    whole = decode_with_pyav(fuse(slices))
    np.testing.assert_array_equal(whole, np.concatenate([decode_with_pyav(part) for part in slices]))


def part(packets: int, stsd: bytes, name: str = "a") -> EncodedSlice:
    return EncodedSlice(
        name=name, codec="h264", stsd=stsd, width=64, height=64, color=RGB, data=np.zeros(packets, np.uint8),
        sizes=np.ones(packets, np.int64), display_order=np.arange(packets), frames=np.arange(1),
    )  # fmt: skip


def test_a_fused_stream_starts_at_its_first_packet_alone() -> None:
    """Whatever its slices say: where else decoding may start is not known, and of its order nothing is said."""
    slices = [replace(part(4, bytes(30), name), starts=np.array([0, 2]), in_order=False) for name in "ab"]
    whole = fuse(slices)
    assert (whole.name, whole.starts.tolist(), whole.in_order) == ("a, b", [0], True)
    assert whole.display_order.tolist() == [*range(8)]
    assert whole.frames.tolist() == [0, 4]


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=40), st.integers(1, 12))
def test_groups(slices: list[tuple[int, int]], streams: int) -> None:
    parts = [part(packets, bytes([kind]) * 30) for packets, kind in slices]
    groups = group(parts, streams)
    assert sorted(n for one in groups for n in one) == list(range(len(parts)))
    for one in groups:
        assert one == sorted(one)
        assert len({parts[n].stsd for n in one}) == 1
    kinds = len({stsd for _, stsd in slices})
    assert len(groups) <= max(streams + kinds, kinds)
    if kinds == 1:
        loads = [sum(len(parts[n].sizes) for n in one) for one in groups]
        assert len(groups) == min(streams, len(parts))
        assert max(loads) - min(loads) <= max(packets for packets, _ in slices)


def test_parameter_sets_among_the_packets_are_not_trusted_to_be_equal() -> None:
    entry = bytes(20) + b"avc3" + bytes(20)
    assert sorted(map(len, group([part(5, entry, "a"), part(5, entry, "b"), part(5, entry, "a")], 1))) == [1, 2]


def test_few_streams_where_each_opens_a_decoder() -> None:
    """1080 rows are coded as 1088, and DALI never finds such a decoder again."""

    def many(height: int, count: int) -> list[EncodedSlice]:
        return [replace(part(21, bytes(30)), width=1920, height=height) for _ in range(count)]

    assert len(group(many(1088, 56), 7)) == 7
    assert len(group(many(1080, 56), 7)) == 5
    assert len(group(many(1080, 4), 7)) == 1
    assert len(group(many(1088, 4), 7)) == 4


def test_bit_rates_do_not_keep_clips_apart(tmp_path: Path) -> None:
    """FFmpeg writes each file's own into its sample description."""
    clips = []
    for seed in range(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        recipe = Recipe(frames=12, gop=6, seed=seed, style="texture" if seed else "gradient")
        clips.append(store_clip(write(recipe, folder / "source.mp4"), folder))
    assert clips[0].stsd != clips[1].stsd
    slices = [slice_of(clip, [1, 4]) for clip in clips]
    assert group(slices, 1) == [[0, 1]]
    whole = decode_with_pyav(fuse(slices))
    np.testing.assert_array_equal(whole, np.concatenate([decode_with_pyav(part) for part in slices]))


def test_an_error_of_dali_is_cut_down_to_its_reason() -> None:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def graph() -> object:
        return fn.decoders.image(fn.external_source(name="file", dtype=types.UINT8, ndim=1), device="cpu")

    pipe = graph()
    pipe.build()
    pipe.feed_input("file", [np.zeros(100, dtype=np.uint8)])
    with pytest.raises(RuntimeError, match="traceback") as caught:
        pipe.run()
    reason = reason_of(caught.value)
    assert "traceback" not in reason
    assert 10 < len(reason) <= 300
    assert reason_of(RuntimeError("no  \n room")) == "no room"
