"""FFmpeg on the CPU: slices in segments, several threads, and sinks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamvid.bitstream.image import CODECS
from streamvid.color.picture import Picture, picture_of
from streamvid.color.tags import RGB
from streamvid.decode import cpu
from streamvid.decode.base import FrameSink
from streamvid.decode.cpu import CpuDecoder, decode_with_pyav, split_at_keyframes
from streamvid.decode.deadline import Pace
from streamvid.decode.slice_frames import StuckDecoderError, decode_frames
from streamvid.errors import VideoError
from streamvid.mp4.sample_entry import visual_sample_description
from streamvid.video import image_decoder, native_decoder
from streamvid.video.image_decoder import image_pipeline
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.clips import hard_clips, write
from tests.support.images import HEIGHT, WIDTH, taken
from tests.support.reference import slice_of, whole
from tests.support.stuck import Hangs, woken
from tools.clips import Recipe

HARD = hard_clips()
LONG = Recipe(width=96, height=64, frames=120, gop=40, b_frames=3)


@pytest.fixture
def cut_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As short as segments can be."""
    monkeypatch.setattr(cpu, "_MIN_SEGMENT", 1)


def stored(recipe: Recipe, folder: Path) -> StoredClip:
    return store_clip(write(recipe, folder / f"a.{recipe.container}"), folder)


@pytest.mark.usefixtures("cut_everywhere")
@pytest.mark.parametrize(
    "name",
    [
        "h264_pyramid", "h264_open_gop", "h264_vfr", "h264_avc3", "h264_trimmed", "h264_intra", "hevc", "hevc_open_gop",
        "hevc_open_gop_from_cra", "hevc_10bit", "vp9_hidden_frames", "vp9_odd", "vp8_hidden_frames", "av1", "mpeg4",
        "mpeg4_open_gop", "mpeg4_avi_b_frames", "mjpeg_avi",
    ],
)  # fmt: skip
def test_pieces_decode_to_what_the_whole_does(name: str, tmp_path: Path) -> None:
    clip = stored(HARD[name], tmp_path)
    frames = decode_with_pyav(whole(clip))
    rng = np.random.default_rng(0)
    count, cuts = len(clip.index.visible), 0
    decoder = CpuDecoder(threads=3)
    try:
        wanted = [np.sort(rng.choice(count, int(rng.integers(1, count)), replace=False)) for _ in range(6)]
        slices = [slice_of(clip, numbers) for numbers in (*wanted, np.arange(count))]
        decoded = decoder.submit(slices).result()
        for numbers, part, got in zip([*wanted, np.arange(count)], slices, decoded, strict=True):
            np.testing.assert_array_equal(got, frames[numbers])
            cuts += len(split_at_keyframes(part)) - 1
    finally:
        decoder.close()
    assert cuts or len(clip.index.starts) < 2 or "open_gop" in name


def test_pieces_are_not_too_short(tmp_path: Path) -> None:
    clip = stored(LONG, tmp_path)
    every = slice_of(clip, np.arange(120))
    assert split_at_keyframes(every) == [(0, 40), (40, 80), (80, 120)]
    few = slice_of(clip, [0, 41, 81])
    assert split_at_keyframes(few) == [(0, len(few.sizes))]
    assert split_at_keyframes(replace(every, starts=np.zeros(1, np.int64))) == [(0, 120)]


@pytest.mark.usefixtures("cut_everywhere")
def test_wanted_leading_pictures_stay_with_what_they_refer_to(tmp_path: Path) -> None:
    clip = stored(HARD["hevc_open_gop"], tmp_path)
    leading = clip.index.flags[clip.index.visible] & 4 != 0
    assert leading.any()
    numbers = np.flatnonzero(leading)
    part = slice_of(clip, numbers)
    assert len(part.starts) == 1
    np.testing.assert_array_equal(decode_with_pyav(part), decode_with_pyav(whole(clip))[numbers])
    # Without them every group begins anew.
    assert len(slice_of(clip, np.flatnonzero(~leading)).starts) == len(clip.index.starts)


def test_a_frame_that_no_packet_has_is_an_error(tmp_path: Path) -> None:
    part = slice_of(stored(LONG, tmp_path), np.arange(120))
    lost = replace(part, frames=np.append(part.frames[:-1], 500))
    decoder = CpuDecoder(threads=2)
    try:
        for bad in (lost, replace(part, data=part.data * 0)):
            with pytest.raises(VideoError, match="clip clip "):
                decoder.submit([part, bad]).result()
            with pytest.raises(VideoError, match="clip clip "):
                decode_with_pyav(bad)
        with pytest.raises(VideoError, match=r"96x64.*98x64"):
            decode_with_pyav(replace(part, width=98))
        # And it is still of use.
        assert decoder.submit([part]).result()[0].shape == (120, 64, 96, 3)
    finally:
        decoder.close()


def test_only_wanted_frames_come_and_each_once(tmp_path: Path) -> None:
    part = slice_of(stored(LONG, tmp_path), [3, 50, 51, 90])
    assert sorted(row for row, _ in decode_frames(part)) == [0, 1, 2, 3]


def test_batches_that_are_begun_ahead_come_in_their_order(tmp_path: Path) -> None:
    clip = stored(LONG, tmp_path)
    frames = decode_with_pyav(whole(clip))
    decoder = CpuDecoder(threads=2)
    try:
        numbers = [[n, n + 30, n + 60] for n in range(0, 60, 7)]
        begun = [decoder.submit([slice_of(clip, one)], color="bt601") for one in numbers]
        for one, wait in zip(numbers, begun, strict=True):
            np.testing.assert_array_equal(wait.result()[0], frames[one])
    finally:
        decoder.close()


def test_a_decoder_that_is_kept_is_for_streams_of_its_settings_alone(tmp_path: Path) -> None:
    """Two codecs, and two sizes of one, in turn."""
    recipes = [replace(LONG, frames=8), replace(LONG, frames=8, codec="hevc"), replace(LONG, frames=8, width=128)]
    clips = []
    for number, recipe in enumerate(recipes):
        (tmp_path / str(number)).mkdir()
        clips.append(stored(recipe, tmp_path / str(number)))
    kept = CpuDecoder(threads=0)
    for clip in clips * 2:
        np.testing.assert_array_equal(kept.submit([whole(clip)]).result()[0], decode_with_pyav(whole(clip)))


@pytest.mark.parametrize("threads", [0, 2])
def test_a_sink_gets_what_is_decoded(threads: int, tmp_path: Path) -> None:
    part = slice_of(stored(LONG, tmp_path), [5, 60, 110])

    class Sums(FrameSink):
        def __init__(self) -> None:
            self.frames = [0, 0, 0]

        def write(self, row: int, picture: Picture) -> None:
            self.frames[row] = int(sum(plane.sum(dtype=np.int64) for plane in picture.planes))

    sinks, decoder = [Sums(), Sums()], CpuDecoder(threads=threads)
    try:
        decoder.write([part, part], sinks).result()
    finally:
        decoder.close()
    for sink in sinks:
        pictures = {row: picture_of(frame) for row, frame in decode_frames(part)}
        assert sink.frames == [int(sum(plane.sum(dtype=np.int64) for plane in pictures[n].planes)) for n in range(3)]


def test_a_damaged_picture_that_others_are_made_from_is_noticed(tmp_path: Path) -> None:
    """Frame 10 cannot be decoded; nobody wants it, but all behind it refer to it. FFmpeg notices in H.264 alone."""
    clip = stored(Recipe(frames=24, gop=24, b_frames=0, width=416, height=240, style="texture"), tmp_path)
    part = slice_of(clip, [4, 20])
    middle = int(np.cumsum(part.sizes)[9]) + int(part.sizes[10]) // 2
    data = part.data.copy()
    data[middle : middle + 40] = np.random.default_rng(2).integers(0, 256, 40)
    with pytest.raises(VideoError, match="is damaged"):
        dict(decode_frames(replace(part, data=data)))
    before = slice_of(clip, [4, 9])
    assert len(dict(decode_frames(before))) == 2


def test_a_native_part_that_was_not_built_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that come to it together would each log it."""
    logged: list[str] = []

    def log(text: str, *_: object) -> None:
        time.sleep(0.1)  # as one that writes to a slow terminal, while others go on
        logged.append(text)

    monkeypatch.setattr(native_decoder, "_VERSION", -1)
    monkeypatch.setattr(native_decoder, "compiled", cache(native_decoder.compiled.__wrapped__))
    monkeypatch.setattr(native_decoder.log, "warning", log)
    slices = [slice_of(stored(Recipe(frames=2), tmp_path), np.arange(2))] * 4
    with closing(CpuDecoder(threads=4)) as decoder:
        assert len(decoder.submit(slices).result()) == 4
    assert len(logged) == 1


@pytest.mark.usefixtures("cut_everywhere")
def test_the_longest_segments_of_a_batch_come_first(tmp_path: Path) -> None:
    """What is begun last keeps the other threads waiting at a batch's end."""
    clip, begun = stored(LONG, tmp_path), list[int]()

    class Notes(cpu.InThreadDecoder):
        def frames(self, encoded: Any, segment: Any = None, **options: Any) -> Iterator[tuple[int, Picture]]:
            begun.append(segment[1] - segment[0])
            return super().frames(encoded, segment, **options)

    decoder, wanted = CpuDecoder(threads=1, decoder=Notes), [[3], [79], [0, 20]]
    try:
        decoded = decoder.submit([slice_of(clip, numbers) for numbers in wanted]).result()
    finally:
        decoder.close()
    for numbers, got in zip(wanted, decoded, strict=True):
        np.testing.assert_array_equal(got, decode_with_pyav(slice_of(clip, numbers)))
    assert begun == sorted(begun, reverse=True)
    assert begun[0] > begun[-1]


def test_a_slice_that_is_stuck_fails_and_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    part = slice_of(stored(LONG, tmp_path), [3, 50, 51, 90])
    frames = decode_with_pyav(part)
    decoder = CpuDecoder(threads=2, decoder=Hangs, pace=Pace(least_s=0.5))
    with woken():
        for _ in range(2):
            with pytest.raises(StuckDecoderError, match="clip stuck gets FFmpeg stuck") as caught:
                decoder.submit([part, replace(part, name="stuck"), part]).result()
            assert caught.value.clip == "stuck"
            for got in decoder.submit([part] * 4).result():
                np.testing.assert_array_equal(got, frames)
        decoder.close()
    assert caplog.text.count("clip stuck gets FFmpeg stuck") == 2


def test_a_decoder_that_hangs_within_a_long_slice_is_noticed_by_its_packets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the time of all its packets is up, which is long for one of large frames."""
    part = whole(stored(LONG, tmp_path))
    monkeypatch.setattr(Pace, "_each", lambda self, encoded: 1.0)
    monkeypatch.setattr(cpu, "_MIN_SEGMENT", 1000)

    class HangsLate(Hangs):
        def frames(self, *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
            for n, frame in enumerate(super(Hangs, self).frames(*given, **options)):
                if n == 30:
                    self.hang()
                yield frame

    decoder = CpuDecoder(threads=1, decoder=HangsLate, pace=Pace(least_s=0.5))
    with woken():
        pending = decoder.submit([part])
        with pytest.raises(StuckDecoderError, match=r"packets 0 to 119: it did nothing for 1 s"):
            pending.result()
        decoder.close()


def test_a_thread_that_wakes_up_late_writes_into_nothing_that_was_delivered(tmp_path: Path) -> None:
    """Its batch failed; the same batch, decoded anew, has memory of its own."""
    part = slice_of(stored(LONG, tmp_path), [3, 50, 51, 90])
    decoder = CpuDecoder(threads=1, decoder=Hangs, pace=Pace(least_s=0.5))
    with woken():
        with pytest.raises(StuckDecoderError):
            decoder.submit([replace(part, name="stuck")]).result()
        (got,) = decoder.submit([part]).result()
        np.testing.assert_array_equal(got, decode_with_pyav(part))
        got[:] = 7
    assert (got == 7).all()
    decoder.close()


def test_opening_dalis_pipeline_is_no_images_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds where nvImageCodec starts CUDA for many threads. What hangs then is found, but later."""
    file = taken()["jpeg_444"]
    stsd = visual_sample_description(CODECS["jpeg"], b"", width=WIDTH, height=HEIGHT)
    one, packet = np.zeros(1, dtype=np.int64), np.frombuffer(file.data, dtype=np.uint8)
    image = EncodedSlice("sound", "jpeg", stsd, WIDTH, HEIGHT, RGB, packet, one + len(packet), one, one)
    expected = decode_with_pyav(image)
    opened = threading.Event()

    def slow(**options: Any) -> Any:
        opened.wait(2.0)
        return image_pipeline(**options)

    monkeypatch.setattr(image_decoder, "image_pipeline", slow)
    decoder = CpuDecoder(threads=2, pace=Pace(least_s=0.2))
    try:
        assert all(np.array_equal(made, expected) for made in decoder.submit([image] * 3).result())
        monkeypatch.setattr(cpu, "START_S", 0.2)
        stuck = CpuDecoder(threads=1, pace=Pace(least_s=0.2))
        opening = stuck.submit([image])
        with pytest.raises(StuckDecoderError):
            opening.result()
    finally:
        opened.set()
        decoder.close()
