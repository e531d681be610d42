"""Clips cut out of every hard video: the right frames bit for bit, at the right times, and nothing that they do not
need."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamvid.decode.cpu import CpuDecoder, decode_with_pyav
from streamvid.video import probe
from streamvid.video.frame_index import DISPOSABLE, HIDDEN, RANDOM_ACCESS
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from streamvid.video.trim import non_displayed_bytes, trim_clip
from tests.support.clips import hard_clips, write
from tests.support.reference import sequential, slice_of, to_rgb
from tools.clips import Recipe

HARD = hard_clips()
Frames = list[npt.NDArray[np.uint8]]


def same(got: npt.NDArray[np.uint8] | Frames, wanted: Frames) -> bool:
    return len(got) == len(wanted) and all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))


def every_packet_decoded(clip: StoredClip) -> Frames:
    """The visible frames, out of a decode of all that the clip stores."""
    by_pts: dict[int, npt.NDArray[np.uint8]] = {}
    with av.open(str(clip.mp4), options={"ignore_editlist": "1"}) as container:
        shift = None
        for packet in container.demux(video=0):
            if shift is None and packet.pts is not None:
                shift = packet.pts - int(clip.index.pts[0])
            for frame in packet.decode():
                assert frame.pts is not None
                assert shift is not None
                by_pts[frame.pts - shift] = to_rgb(frame, full_range=clip.color_range == "pc")
    return [by_pts[pts] for pts in clip.index.frame_pts.tolist()]


@pytest.mark.parametrize("name", HARD)
def test_hard_video_in_clips(name: str, tmp_path: Path) -> None:
    recipe = HARD[name]
    source = write(recipe, tmp_path / f"{name}.{recipe.container}")
    whole = store_clip(source, tmp_path, cut_only=True)
    frames = sequential(source, full_range=whole.color_range == "pc")
    count = len(frames)
    rng = np.random.default_rng(len(name) + count)
    # Clips that tile the video, one of them of a single frame; and one that overlaps several.
    points = sorted({0, count, *(int(p) for p in rng.integers(0, count, 1)), count - 1})
    tiles = list(itertools.pairwise(points))
    first = int(rng.integers(0, count))
    for start, end in [*tiles, (first, int(rng.integers(first, count)) + 1)]:
        clip = trim_clip(whole, start, end, tmp_path / "cut.mp4")
        assert same(decode_with_pyav(slice_of(clip, np.arange(end - start))), frames[start:end])
        # Players show the same: the edit list leaves the rest out.
        assert same(sequential(clip.mp4, full_range=whole.color_range == "pc"), frames[start:end])
        times = whole.index.frame_pts
        np.testing.assert_array_equal(clip.index.frame_pts, times[start:end] - times[start])
        over = times[end] if end < count else whole.duration
        assert clip.duration == over - times[start]
        assert (clip.rotation, clip.width, clip.stsd) == (whole.rotation, whole.width, whole.stsd)
        assert probe.probe_first_frame(probe.VideoFile(clip.mp4)) == probe.probe_first_frame(probe.VideoFile(whole.mp4))
        # So does a decode of all that the clip stores, as `verify --decode` has it.
        if start == points[-2]:
            assert same(every_packet_decoded(clip), frames[start:end])
        # A frame in the middle, out of a minimal slice, as a loader reads it.
        middle = (end - start) // 2
        assert same(decode_with_pyav(slice_of(clip, [middle])), [frames[start + middle]])


@pytest.mark.parametrize("name", ["hevc_open_gop", "mpeg4_open_gop", "h264_trimmed", "vp8_hidden_frames", "h264_vfr"])
def test_every_cut_into_two(name: str, tmp_path: Path) -> None:
    recipe = HARD[name]
    source = write(recipe, tmp_path / f"a.{recipe.container}")
    whole = store_clip(source, tmp_path, cut_only=True)
    frames = sequential(source, full_range=False)
    for point in range(1, len(frames)):
        for start, end in ((0, point), (point, len(frames))):
            clip = trim_clip(whole, start, end, tmp_path / "cut.mp4")
            ends = sorted({0, end - start - 1})
            assert same(decode_with_pyav(slice_of(clip, ends)), [frames[start + n] for n in ends])


CODECS = (
    "h264", "hevc", "hevc_open_gop", "h264_pyramid", "vp9_hidden_frames", "mpeg4_open_gop", "av1", "vp8_hidden_frames"
)  # fmt: skip


@cache
def video(name: str) -> tuple[StoredClip, Frames, TemporaryDirectory[str]]:
    """A video that is made once: its folder lives as long as the tests run."""
    folder = TemporaryDirectory()
    source = write(HARD[name], Path(folder.name) / f"source.{HARD[name].container}")
    whole = store_clip(source, Path(folder.name), cut_only=True)
    return whole, sequential(source, full_range=False), folder


@settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_frames_of_any_cut(data: st.DataObject) -> None:
    whole, frames, folder = video(data.draw(st.sampled_from(CODECS)))
    start = data.draw(st.integers(0, len(frames) - 1))
    end = data.draw(st.integers(start + 1, len(frames)))
    clip = trim_clip(whole, start, end, Path(folder.name) / "cut.mp4")
    wanted = sorted(data.draw(st.sets(st.integers(0, end - start - 1), min_size=1, max_size=5)))
    assert same(decode_with_pyav(slice_of(clip, wanted)), [frames[start + n] for n in wanted])
    # A clip of a clip is a clip.
    inner = data.draw(st.integers(0, end - start - 1))
    again = trim_clip(clip, inner, end - start, Path(folder.name) / "again.mp4")
    assert same(decode_with_pyav(slice_of(again, [0])), [frames[start + inner]])


def test_nothing_is_stored_that_nobody_needs(tmp_path: Path) -> None:
    whole = store_clip(write(Recipe(frames=90, gop=30, b_frames=2), tmp_path / "a.mp4"), tmp_path)
    at_key = trim_clip(whole, 30, 60, tmp_path / "cut.mp4")
    assert len(at_key.index) == 30
    assert not (at_key.index.flags & HIDDEN).any()
    assert at_key.traits == ""
    # Of a video that is out of order somewhere, this part is not.
    assert trim_clip(replace(whole, traits="unordered"), 30, 60, tmp_path / "cut.mp4").traits == ""
    late = trim_clip(whole, 45, 60, tmp_path / "cut.mp4")
    hidden = late.index.flags & HIDDEN != 0
    assert hidden.any()
    assert not (late.index.flags[hidden] & DISPOSABLE).any()
    assert late.index.flags[0] & RANDOM_ACCESS
    assert non_displayed_bytes(whole.index, 45, 60) == late.index.size[hidden].sum()
    assert non_displayed_bytes(whole.index, 30, 60) == 0
    assert non_displayed_bytes(whole.index, 0, 90) == 0


def test_packets_lie_where_the_index_says(tmp_path: Path) -> None:
    whole = store_clip(write(HARD["h264_pyramid"], tmp_path / "a.mp4"), tmp_path)
    clip = trim_clip(whole, 13, 77, tmp_path / "cut.mp4")
    data = clip.mp4.read_bytes()
    with av.open(str(clip.mp4), options={"ignore_editlist": "1"}) as container:
        rows = [(p.pts, p.pos, p.size, p.is_keyframe, bytes(p)) for p in container.demux(video=0) if p.size]
    assert len(rows) == len(clip.index)
    for n, (pts, position, size, key, payload) in enumerate(rows):
        assert (position, size) == (clip.index.offset[n], clip.index.size[n])
        assert pts - rows[0][0] == clip.index.pts[n] - clip.index.pts[0]
        assert key == bool(clip.index.flags[n] & RANDOM_ACCESS)
        assert data[position : position + size] == payload
    assert data.index(b"moov") < data.index(b"mdat")


def test_dali_decodes_cut_clips_as_pyav_does() -> None:
    whole, frames, folder = video("vp9_hidden_frames")
    clip = trim_clip(whole, 37, 61, Path(folder.name) / "cut.mp4")
    decoder = CpuDecoder(threads=2)
    try:
        got = decoder.submit([slice_of(clip, [0, 11, 23])]).result()[0]
    finally:
        decoder.close()
    assert same(got, [frames[37], frames[48], frames[60]])


def test_ten_clips_take_no_more_passes_than_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(Recipe(frames=90, container="mkv"), tmp_path / "a.mkv")
    opened: list[Path] = []
    real = probe.open_video

    def counted(path: Path, **options: Any) -> Any:
        opened.append(path)
        return real(path, **options)

    monkeypatch.setattr(probe, "open_video", counted)
    whole = store_clip(source, tmp_path, cut_only=True)
    passes = len(opened)
    source.unlink()
    for n in range(10):
        trim_clip(whole, 5 * n, 5 * n + 20, tmp_path / f"{n}.mp4")
    assert len(opened) == passes
    assert passes > 0


def test_frames_that_are_not_there(tmp_path: Path) -> None:
    whole, frames, _ = video("h264")
    for first, end in ((-1, 3), (0, len(frames) + 1)):
        with pytest.raises(IndexError):
            trim_clip(whole, first, end, tmp_path / "cut.mp4")


def test_a_file_that_changes_before_it_is_cut(tmp_path: Path) -> None:
    """The clip had the old checksums of other bytes: it was packed, and a bad clip to each reader."""
    whole = store_clip(write(Recipe(frames=20, gop=10), tmp_path / "a.mp4"), tmp_path, cut_only=True)
    assert whole.mp4 == tmp_path / "a.mp4"
    with whole.mp4.open("r+b") as file:
        file.seek(int(whole.index.offset[15]))
        file.write(b"\xff")
    trim_clip(whole, 0, 10, tmp_path / "cut.mp4")
    with pytest.raises(ValueError, match="was changed while it was packed"):
        trim_clip(whole, 10, 20, tmp_path / "cut.mp4")
