"""What edit lists show: as the box says, and not as FFmpeg's demuxer takes it where it errs."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.decode.cpu import decode_with_pyav
from streamvid.mp4.edit_list import Edit, limit_edit, parse_edit_list, read_edit
from streamvid.mp4.writer import slice_header
from streamvid.video.remux import remux_with_ffmpeg
from streamvid.video.transcode import TranscodeOptions, transcode
from tests.support.clips import write
from tests.support.reference import sequential, slice_of
from tools.clips import Recipe, look, read_frame_number

# By its edit list FFmpeg loses pictures between the last two key frames that are shown, or the last one that is shown,
# or tells of less than half of the file. In fragmented files that begin late it loses the first fragment.
_FRAGMENTED = (("movflags", "frag_keyframe"),)
LOST = [
    Recipe(codec="hevc", frames=26, gop=12, b_frames=3, delay=Fraction(179, 100), muxer=_FRAGMENTED),
    Recipe(codec="mjpeg", container="mov", frames=12, gop=1, delay=Fraction(69, 50), muxer=_FRAGMENTED),
    Recipe(codec="mpeg4", frames=31, gop=2, b_frames=1, open_gop=True, jitter=976),
    Recipe(codec="mpeg4", container="mov", frames=15, gop=3, b_frames=2, open_gop=True, jitter=363),
    Recipe(codec="h264", container="mov", frames=25, gop=4, b_frames=1, open_gop=True, jitter=327, trim=2, trim_end=1),
    Recipe(codec="h264", frames=25, gop=4, b_frames=1, open_gop=True, jitter=327, trim=9, trim_end=1),
    Recipe(codec="mpeg4", frames=12, gop=2, b_frames=1, jitter=613, trim_end=1),
    Recipe(codec="h264", frames=12, gop=12, b_frames=0, trim_end=11),
]


@pytest.mark.parametrize("recipe", LOST)
def test_frames_that_an_edit_list_shows_are_stored_and_decode(recipe: Recipe, tmp_path: Path) -> None:
    source = write(recipe, tmp_path / f"source.{recipe.container}")
    clip = remux_with_ffmpeg(source, tmp_path)
    numbers = recipe.shown()
    at = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(at, [float(t) for t in recipe.shown_at()], atol=0.0011)
    every = sequential(source, full_range=False, edits=False)
    for row, got in enumerate(decode_with_pyav(slice_of(clip, np.arange(len(numbers))))):
        assert read_frame_number(got) == numbers[row]
        np.testing.assert_array_equal(got, every[numbers[row]])
    # No more is kept before the first than it needs.
    assert clip.index.size.sum() <= sum(_sizes(source)[max(0, numbers[0] - 2 * recipe.gop) :])


@pytest.mark.parametrize("recipe", [*LOST, Recipe(codec="mpeg4", frames=20, gop=5, b_frames=2, muxer=_FRAGMENTED)])
def test_frames_that_an_edit_list_shows_are_transcoded(recipe: Recipe, tmp_path: Path) -> None:
    source = write(recipe, tmp_path / f"source.{recipe.container}")
    transcode(source, tmp_path / "converted.mp4", TranscodeOptions("mjpeg"))
    clip = remux_with_ffmpeg(tmp_path / "converted.mp4", tmp_path)
    at = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(at, [float(t) for t in recipe.shown_at()], atol=0.0011)
    pictures = decode_with_pyav(slice_of(clip, np.arange(len(at))))
    assert [read_frame_number(picture) for picture in pictures] == recipe.shown()


def _sizes(source: Path) -> list[int]:
    with av.open(str(source), options={"ignore_editlist": "1"}) as container:
        return [packet.size for packet in container.demux(video=0) if packet.size]


def elst(*edits: tuple[int, int, int, int], version: int = 0) -> bytes:
    """The payload of an edit list: duration, media time, rate as integer and fraction."""
    layout = ">Qqhh" if version else ">Iihh"
    return struct.pack(">II", version << 24, len(edits)) + b"".join(struct.pack(layout, *edit) for edit in edits)


@pytest.mark.parametrize(
    ("edits", "shown"),
    [
        ([(776, 752, 1, 0)], Edit(752, 752 + 12416)),
        ([(500, -1, 1, 0), (1000, 0, 1, 0)], Edit(0, 16000)),
        ([(1, 0, 1, 0)], Edit(0, 16)),
        ([(1000, 0, 1, 0), (1000, 32000, 1, 0)], None),
        ([(1000, 0, 2, 0)], None),
        ([(1000, 0, 0, 0)], None),
        ([(1000, -1, 1, 0)], None),
        ([(0, 752, 1, 0)], Edit(752, 752)),
        ([(1, 0, 1, 0)] * 3, None),
        ([], None),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_edit_lists_are_parsed(edits: Sequence[tuple[int, int, int, int]], shown: Edit | None, version: int) -> None:
    box = elst(*edits, version=version)
    assert parse_edit_list(b"1234" + box, 4, 4 + len(box), movie_scale=1000, scale=16000) == shown


def test_its_end_is_rounded_as_ffmpeg_does() -> None:
    box = elst((10, 3, 1, 0))
    assert parse_edit_list(box, 0, len(box), movie_scale=30, scale=100) == Edit(3, 36)
    assert parse_edit_list(box, 0, len(box), movie_scale=60, scale=100) == Edit(3, 20)
    assert parse_edit_list(box, 0, len(box), movie_scale=0, scale=100) is None


def test_a_box_that_says_more_than_it_holds() -> None:
    box = elst((10, 3, 1, 0))
    for wrong in (box[:-1], box + b"\0", box[:7] + b"\2" + box[8:]):
        assert parse_edit_list(wrong, 0, len(wrong), movie_scale=1000, scale=1000) is None


def test_it_is_the_one_of_the_track(tmp_path: Path) -> None:
    source = write(Recipe(frames=20, trim=3, trim_end=2, audio=True), tmp_path / "a.mp4")
    with av.open(str(source)) as container:
        video, sound = container.streams.video[0].id, container.streams.audio[0].id
        base = container.streams.video[0].time_base
    assert base is not None
    shown = read_edit(source, video)
    assert shown is not None
    assert round((shown.end - shown.begin) * base * 30) == 15
    assert read_edit(source, sound) != shown
    assert read_edit(source, 99) is None


@pytest.mark.parametrize("container", ["mkv", "avi", "ts"])
def test_other_files_have_none(container: str, tmp_path: Path) -> None:
    assert read_edit(write(Recipe(frames=4, container=container), tmp_path / "a"), 1) is None  # type: ignore[arg-type]


@given(st.binary(max_size=300), st.integers(0, 3))
def test_random_bytes_have_no_edit_list(tmp_path_factory: pytest.TempPathFactory, noise: bytes, track: int) -> None:
    file = tmp_path_factory.mktemp("noise") / "a.mp4"
    moov = struct.pack(">I4s", 8 + len(noise), b"moov") + noise
    for data in (noise, moov, struct.pack(">I4sQ", 1, b"moov", 16 + len(noise)) + noise, b"\0\0\0\0moov" + noise):
        file.write_bytes(data)
        assert read_edit(file, track) is None


def test_a_box_that_ends_nowhere_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "a.mp4"
    for size in (2**63 - 1, 2**63, 2**64 - 1):
        for kind in (b"free", b"moov"):
            file.write_bytes(struct.pack(">I4sQ", 1, kind, size) + bytes(40))
            assert read_edit(file, 1) is None


@pytest.mark.parametrize("scale", [1, 2**32 - 1])
def test_times_beyond_all_bounds(scale: int, tmp_path: Path) -> None:
    """An edit list that says more than int64 holds, in a file that is whole but for that."""
    recipe = Recipe(codec="mpeg4", frames=6, gop=3, b_frames=1, trim=1)
    source = write(recipe, tmp_path / "a.mp4")
    data = source.read_bytes()
    at = data.index(b"elst") + 4
    (begin,) = struct.unpack_from(">i", data, at + 12)
    movie = data.index(b"mvhd") + 4 + 12
    damaged = bytearray(data)
    struct.pack_into(">I", damaged, movie, scale)
    struct.pack_into(">I", damaged, at + 8, 2**32 - 1)
    source.write_bytes(damaged)
    shown = read_edit(source, 1)
    assert shown is not None
    assert shown.begin == begin > 0
    clip = remux_with_ffmpeg(source, tmp_path)
    assert 0 < len(clip.index.visible) <= recipe.frames


@pytest.mark.parametrize("ticks", [0, 2**31, 2**32 - 1])
def test_a_timescale_that_is_none_counts_seconds(ticks: int, tmp_path: Path) -> None:
    """As FFmpeg does: a track's ticks of 31 bits at most, so that most pictures are before the edit or after it."""
    source = write(Recipe(frames=50, gop=10, b_frames=2), tmp_path / "a.mp4")
    data = bytearray(source.read_bytes())
    struct.pack_into(">I", data, data.index(b"mdhd") + 4 + 12, ticks)
    source.write_bytes(data)
    assert 0 < len(remux_with_ffmpeg(source, tmp_path).index.visible) == len(sequential(source)) < 50


def test_damage_is_no_error(tmp_path: Path) -> None:
    """Bytes of a real header, changed one by one."""
    source = write(Recipe(frames=4, trim=1), tmp_path / "a.mp4")
    whole = source.read_bytes()
    rng = np.random.default_rng(5)
    start = whole.index(b"moov")
    assert read_edit(source, 1) is not None
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[int(rng.integers(start, len(whole)))] ^= int(rng.integers(1, 256))
        source.write_bytes(damaged)
        read_edit(source, 1)


def test_the_end_of_an_edit_list(tmp_path: Path) -> None:
    path = write(Recipe(width=96, height=64, frames=20, trim=4), tmp_path / "a.mp4")
    size = path.stat().st_size
    with path.open("r+b") as file:
        assert limit_edit(file, 0.2)
    assert path.stat().st_size == size
    assert look(path).numbers == [4, 5, 6, 7, 8, 9]
    assert not limit_edit(io.BytesIO(slice_header(b"", np.array([1]), width=64, height=48)), 1.0)


def test_an_edit_list_ends_within_a_frame_that_is_transcoded(tmp_path: Path) -> None:
    """5 frames of 40 ms, and 20 ms of the sixth."""
    source = write(Recipe(width=96, height=64, frames=20, fps=Fraction(25)), tmp_path / "a.mp4")
    with source.open("r+b") as file:
        assert limit_edit(file, 0.22)
    transcode(source, tmp_path / "b.mp4", TranscodeOptions("mjpeg"))
    clip = remux_with_ffmpeg(tmp_path / "b.mp4", tmp_path)
    assert len(clip.index.frame_pts) == 6
    assert clip.duration * Fraction(*clip.time_base) == Fraction(22, 100)
