"""The pool of decode sessions without a GPU: FFmpeg stands in for NVDEC and host memory for the GPU's.

Frames, their order, retries and sessions are what these tests hold; pixels on a real GPU are held by tests/gpu.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
import torch

from streamvid.decode import job_queue, nvdec, nvdec_worker
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.deadline import Pace
from streamvid.decode.decode_job import JobGroup
from streamvid.decode.job_queue import DecodeQueue
from streamvid.decode.nvdec import NvdecSessionPool
from streamvid.decode.nvdec_library import Caps, NvdecLibrary
from streamvid.decode.nvdec_worker import NvdecWorker
from streamvid.errors import GpuLostError, VideoError
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support import mpeg4
from tests.support.clips import write
from tests.support.fake_gpu import Decoder, Surface, put_in_place
from tests.support.nvdec_driver import stand_in
from tests.support.reference import slice_of, whole
from tests.support.sessions import agree
from tests.support.sps import rewrite, with_reorder
from tools.clips import Recipe


@pytest.fixture(autouse=True)
def cores_take_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few pixels are enough to have engines and cores decode beside each other."""
    monkeypatch.setattr(job_queue, "CPU_MIN_PIXELS", 5_000_000)
    monkeypatch.setattr(job_queue, "CPU_MIN_FRAME_PIXELS", 100_000)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for the GPU; the arguments of every session that is opened."""
    return put_in_place(monkeypatch)


@pytest.fixture(params=["pynv", "native"])
def library(request: pytest.FixtureRequest, opened: list[Any]) -> Iterator[NvdecLibrary | None]:
    """None: PyNvVideoCodec decodes; else the native module, with FFmpeg behind the stand-in for the driver."""
    if request.param == "pynv":
        yield None
        return
    driver = stand_in()
    driver.decode_by_ffmpeg()
    yield driver.library
    driver.reset()


Clips = dict[str, tuple[Any, Any]]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Clips:
    """Stored clips and their frames, whose colours all are luma: see `tests.support.fake_gpu`."""
    made = {}
    for name, recipe in {
        "h264": Recipe(width=480, height=270, frames=40, gop=10, b_frames=2),
        "long": Recipe(width=480, height=270, frames=30, gop=30, b_frames=3),
        "hevc": Recipe(codec="hevc", frames=36, gop=12, b_frames=2),
        "open": Recipe(codec="hevc", frames=36, gop=12, b_frames=3, open_gop=True),
    }.items():
        folder = tmp_path_factory.mktemp(name)
        clip = store_clip(write(recipe, folder / "source.mp4"), folder)
        made[name] = clip, grey(clip)
    return made


def grey(clip: StoredClip) -> npt.NDArray[np.uint8]:
    """The luma of its frames in three channels, uint8 [frames, height, width, 3]."""
    with av.open(str(clip.mp4)) as container:
        luma = np.stack([frame.to_ndarray()[: clip.height] for frame in container.decode(video=0)])
    return np.repeat(luma[..., None], 3, axis=-1)


@pytest.mark.parametrize(("engines", "cpu_workers"), [(1, 0), (3, 0), (0, 2), (1, 2)])
def test_frames_are_those_of_the_sequential_decode(
    clips: Clips, opened: list[Any], library: NvdecLibrary | None, engines: int, cpu_workers: int
) -> None:
    pool = NvdecSessionPool(device_id=0, engines=engines, cpu_workers=cpu_workers, library=library)
    agree(pool, clips.values(), rounds=2)
    assert bool(opened) == (bool(engines) and library is None)
    assert {(one["codec"], one["maxwidth"], one["maxheight"]) for one in opened} <= {
        ("h264", 480, 270), ("hevc", 320, 180),
    }  # fmt: skip


def test_all_streams_go_before_the_models(clips: Clips, opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each engine, one for all cores, and one that allocates: PyTorch has 32 in all."""
    made = []

    class Stream(torch.cuda.Stream):  # type: ignore[misc]
        def __init__(self, device_id: int, priority: int = 0) -> None:
            made.append(priority)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    agree(NvdecSessionPool(device_id=0, engines=3, cpu_workers=4), clips.values(), rounds=1)
    assert len(made) == 5
    assert max(made) < 0


def test_cores_tell_the_queue_how_slow_they_are(
    clips: Clips, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    monkeypatch.setattr(nvdec.DecodeQueue, "core_took", lambda queue, key, slower: told.append((key.codec, slower)))
    pool = NvdecSessionPool(device_id=0, engines=1, cpu_workers=2)
    agree(pool, [clips["h264"], clips["long"]], rounds=6)
    assert {codec for codec, _ in told} == {"h264"}
    assert min(slower for _, slower in told) > 0


_HIDDEN = (("auto-alt-ref", "1"), ("lag-in-frames", "25"), ("cpu-used", "5"), ("b", "100k"))
_SMALL = Recipe(codec="vp8", container="webm", width=160, height=144, frames=40, gop=10)
WITHOUT_NAL_UNITS = {
    "vp8": _SMALL,
    "vp8_hidden": replace(_SMALL, gop=20, hidden=7),
    "vp9": replace(_SMALL, codec="vp9"),
    "vp9_odd": replace(_SMALL, codec="vp9", width=161, height=145),
    "vp9_hidden": replace(_SMALL, codec="vp9", frames=96, gop=48, options=_HIDDEN),
    "mpeg4": replace(_SMALL, codec="mpeg4", container="mp4", b_frames=2),
    "mpeg4_open": replace(_SMALL, codec="mpeg4", container="mp4", b_frames=2, open_gop=True),
}


class Dealing(Decoder):
    """Deals timestamps out anew, as NVIDIA's parser does: the oldest that it was given to the next frame."""

    def __init__(self, codec: str) -> None:
        super().__init__(codec, lambda frames: frames)
        self._given: list[int] = []

    def Decode(self, packet: Any) -> list[Surface]:  # noqa: N802
        if packet.bsl:
            self._given.append(packet.pts)
        frames = super().Decode(packet)
        for frame in frames:
            frame._pts = min(self._given)
            self._given.remove(frame._pts)
        if not packet.bsl:
            self._given.clear()
        return frames


@pytest.mark.parametrize("recipe", WITHOUT_NAL_UNITS.values(), ids=WITHOUT_NAL_UNITS)
def test_codecs_without_nal_units_are_fed_packet_by_packet(
    recipe: Recipe, opened: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = store_clip(write(recipe, tmp_path / f"source.{recipe.container}"), tmp_path)
    references = decode_with_pyav(whole(clip), color="auto")
    retried: list[str] = []
    monkeypatch.setattr(NvdecWorker, "_open", lambda worker, key: Dealing(key.codec))
    monkeypatch.setattr(nvdec.DecodeQueue, "retry", lambda queue, job, error: retried.append(str(error)))
    pool = NvdecSessionPool(device_id=0, engines=2, cpu_workers=1)
    rng = np.random.default_rng(1)
    batches = [[np.sort(rng.choice(len(references), 5, replace=False)) for _ in range(3)] for _ in range(3)]
    begun = [(wanted, pool.submit([slice_of(clip, some) for some in wanted], color="auto")) for wanted in batches]
    begun.append(([np.arange(len(references))], pool.submit([whole(clip)], color="auto")))
    for wanted, pending in begun:
        for some, got in zip(wanted, pending.result(), strict=True):
            far = np.abs(got.numpy().astype(int) - references[some])
            assert far.max() <= 1  # rounded once, by other sums
    pool.close()
    assert not retried


class Repeating(Decoder):
    """Of a VOP that is not coded, NVDEC gives the picture before once more."""

    _last: Surface

    def Decode(self, packet: Any) -> list[Surface]:  # noqa: N802
        frames = super().Decode(packet)
        if packet.bsl and not frames:
            self._last._pts, frames = packet.pts, [self._last]
        self._last = copy(frames[-1]) if frames else self._last
        return frames


def test_vops_that_are_not_coded_are_no_frames(
    opened: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vops = mpeg4.encoded(tmp_path)
    clip = store_clip(mpeg4.mux(mpeg4.with_not_coded(vops, [4, 9, 17]), tmp_path / "a.mkv"), tmp_path)
    references = decode_with_pyav(whole(clip), color="auto")
    assert len(references) == len(vops)
    retried: list[str] = []
    monkeypatch.setattr(NvdecWorker, "_open", lambda worker, key: Repeating(key.codec, lambda frames: frames))
    monkeypatch.setattr(nvdec.DecodeQueue, "retry", lambda queue, job, error: retried.append(str(error)))
    pool = NvdecSessionPool(device_id=0, engines=1)
    for wanted in (np.arange(24), np.array([5, 6]), np.array([18])):
        (got,) = pool.submit([slice_of(clip, wanted)], color="auto").result()
        assert np.abs(got.numpy().astype(int) - references[wanted]).max() <= 1
    pool.close()
    assert not retried


@pytest.mark.parametrize("codec", ["vp8", "vp9"])
def test_packets_of_zeros_are_an_error(codec: Any, opened: list[Any], tmp_path: Path) -> None:
    """Their headers say that nothing is shown: no frame of theirs may be taken for written."""
    recipe = Recipe(codec=codec, container="webm", width=320, height=180, frames=12, gop=6)
    good = whole(store_clip(write(recipe, tmp_path / "source.webm"), tmp_path))
    pool = NvdecSessionPool(device_id=0, engines=1)
    with pytest.raises(VideoError, match="no packet for 12 of its frames"):
        pool.submit([replace(good, data=0 * good.data)])
    pool.close()


def test_an_engine_that_has_room_for_one_session_closes_it_for_another(
    clips: Clips, opened: list[Any], library: NvdecLibrary | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1 << 20))
    before = 0 if library is None else stand_in().decoders_opened()
    pool = NvdecSessionPool(device_id=0, engines=1, library=library)
    for name in ("h264", "hevc", "h264"):
        clip, frames = clips[name]
        (got,) = pool.submit([slice_of(clip, [3, 17])]).result()
        np.testing.assert_array_equal(got.numpy(), frames[[3, 17]])
    pool.close()
    if library is None:
        assert [one["codec"] for one in opened] == ["h264", "hevc", "h264"]
    else:
        # The spare thread may have opened one of them, and keep it.
        assert before + 2 <= stand_in().decoders_opened() <= before + 3
        assert stand_in().open_objects() == 0


@pytest.mark.usefixtures("opened")
def test_the_native_module_takes_clips_of_all_sizes_by_few_sessions(tmp_path: Path) -> None:
    made = {}
    for n, (width, height) in enumerate(((320, 180), (176, 144), (480, 272), (128, 256), (208, 160))):
        folder = tmp_path / str(n)
        folder.mkdir()
        clip = store_clip(
            write(Recipe(width=width, height=height, frames=24, gop=8, b_frames=2), folder / "a.mp4"), folder
        )
        made[str(n)] = clip, grey(clip)
    driver = stand_in()
    driver.decode_by_ffmpeg()
    before = driver.decoders_opened()
    # Both engines and their spare thread know the largest size from the first batch on.
    agree(NvdecSessionPool(device_id=0, engines=2, library=driver.library), made.values(), rounds=3)
    assert driver.decoders_opened() <= before + 3
    assert driver.open_objects() == 0
    driver.reset()


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("at", [20, 150])  # not both in one: what is in flight at the first is retried by the second
@pytest.mark.parametrize("spoiled", ["lost", "twice", "error"])
def test_a_driver_that_fails_once_costs_no_frame(clips: Clips, spoiled: str, at: int) -> None:
    calls = count(1)

    def spoil(frames: list[av.VideoFrame]) -> list[av.VideoFrame]:
        if not frames or next(calls) != at:
            return frames
        if spoiled == "error":
            raise av.error.InvalidDataError(1, "no data")
        return frames[:-1] if spoiled == "lost" else [*frames, frames[-1]]

    driver = stand_in()
    driver.decode_by_ffmpeg(spoil)
    agree(NvdecSessionPool(device_id=0, engines=1, library=driver.library), clips.values(), rounds=2)
    assert next(calls) > at
    assert driver.open_objects() == 0
    driver.reset()


@pytest.mark.usefixtures("opened", "impatient")
def test_a_driver_that_hangs_costs_its_batches_and_its_session_is_closed_when_it_wakes_up(
    clips: Clips, caplog: pytest.LogCaptureFixture
) -> None:
    calls, wakes, before = count(1), threading.Event(), threading.enumerate()

    def hang(frames: list[av.VideoFrame]) -> list[av.VideoFrame]:
        if next(calls) == 5:
            assert wakes.wait(60)
        return frames

    driver = stand_in()
    driver.decode_by_ffmpeg(hang)
    pool = NvdecSessionPool(device_id=0, engines=1, library=driver.library)
    clip, frames = clips["h264"]
    with pytest.raises(
        VideoError, match=r"engine nvdec-(spare-)?0 has not answered .*; the clips in it: clip"
    ) as error:
        pool.submit([whole(clip)]).result()
    assert "abandoned" in caplog.text
    name = f"streamvid-{str(error.value).split('engine ')[1].split()[0]}"
    stuck = next(one for one in threading.enumerate() if one.name == name and one not in before)
    (got,) = pool.submit([whole(clip)]).result()
    wakes.set()
    stuck.join(60)
    assert not stuck.is_alive()
    np.testing.assert_array_equal(got.numpy(), frames)
    agree(pool, clips.values(), rounds=1)
    assert driver.open_objects() == 0
    driver.reset()


@pytest.mark.parametrize("spoiled", ["lost", "twice", "error"])
def test_a_decoder_that_fails_at_times_costs_no_frame(
    clips: Clips, opened: list[Any], monkeypatch: pytest.MonkeyPatch, spoiled: str
) -> None:
    calls = count(1)

    def spoil(frames: list[Surface]) -> list[Surface]:
        # A retry feeds packet by packet, and gets few frames at a time.
        if len(frames) < 4 or next(calls) not in (2, 5):
            return frames
        if spoiled == "error":
            raise RuntimeError("CUDA_ERROR_UNKNOWN")
        return frames[:-1] if spoiled == "lost" else [*frames, frames[-1]]

    monkeypatch.setattr(NvdecWorker, "_open", lambda worker, key: Decoder(key.codec, spoil))
    agree(NvdecSessionPool(device_id=0, engines=1), clips.values(), rounds=2)
    assert next(calls) > 5


def test_frames_that_come_in_another_order_than_the_bitstream_says_are_matched_by_timestamp(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: NvdecLibrary | None
) -> None:
    """The parameter sets say that nothing is reordered, so a decoder may hand out B-frames behind what they precede."""
    recipe = Recipe(width=320, height=180, frames=24, gop=8, b_frames=3)
    source = rewrite(write(recipe, tmp_path / "a.mp4"), tmp_path / "b.mp4", with_reorder(0))
    clip = store_clip(source, tmp_path)
    frames = grey(clip)

    def late(frames: list[Any]) -> list[Any]:
        return [*frames[:1], *frames[:0:-1]]

    stand_in().decode_by_ffmpeg(late)
    monkeypatch.setattr(NvdecWorker, "_open", lambda worker, key: Decoder(key.codec, late))
    pool = NvdecSessionPool(device_id=0, engines=1, library=library)
    for wanted in (np.arange(24), np.array([1, 2, 19])):
        (got,) = pool.submit([slice_of(clip, wanted)]).result()
        np.testing.assert_array_equal(got.numpy(), frames[wanted])
    pool.close()


def test_a_slice_that_cannot_be_decoded_costs_its_batch_alone(
    clips: Clips, opened: list[Any], library: NvdecLibrary | None
) -> None:
    clip, frames = clips["h264"]
    good = whole(clip)
    bad: list[EncodedSlice] = []
    spoiled = good.data.copy()
    second = int(good.sizes[0])
    spoiled[second + 5 : second + int(good.sizes[1])] = 255  # behind the length and the type of its unit
    changes: dict[str, dict[str, Any]] = {
        "gone": {"frames": np.append(good.frames, 1000)}, "torn": {"data": 0 * good.data}, "spoiled": {"data": spoiled}
    }  # fmt: skip
    for name, change in changes.items():
        bad.append(replace(good, name=name, **change))
    pool = NvdecSessionPool(device_id=0, engines=2, library=library)
    for part in bad:
        with pytest.raises(VideoError, match=part.name):
            pool.submit([part]).result()
        assert pool.refuses(part) is (part.name == "spoiled")  # the others did not come to an engine
        assert not pool.refuses(good)
        (got,) = pool.submit([good]).result()
        np.testing.assert_array_equal(got.numpy(), frames)
    pool.close()


class Hanging(Decoder):
    """Hangs in its third call, of all of them, until it is woken."""

    def __init__(self, codec: str, calls: Iterator[int], wakes: threading.Event) -> None:
        super().__init__(codec, lambda frames: frames)
        self._calls, self._wakes = calls, wakes

    def Decode(self, packet: Any) -> list[Surface]:  # noqa: N802
        if next(self._calls) == 3:
            assert self._wakes.wait(60)
        return super().Decode(packet)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvdec, "Pace", partial(Pace, least_s=2.0))


@pytest.mark.usefixtures("opened", "impatient")
def test_an_engine_that_hangs_costs_its_batches_and_is_replaced(
    clips: Clips, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls, wakes, before = count(1), threading.Event(), threading.enumerate()
    monkeypatch.setattr(NvdecWorker, "_open", lambda _, key: Hanging(key.codec, calls, wakes))
    pool = NvdecSessionPool(device_id=0, engines=1)
    clip, frames = clips["h264"]
    with pytest.raises(VideoError, match=r"engine nvdec-0 has not answered \(.* s\); the clips in it: clip"):
        pool.submit([whole(clip)]).result()
    assert "abandoned" in caplog.text
    stuck = next(one for one in threading.enumerate() if one.name == "streamvid-nvdec-0" and one not in before)
    got = [pool.submit([whole(clip)]).result()[0] for _ in range(3)]
    wakes.set()
    stuck.join(60)
    assert not stuck.is_alive()
    assert pool.refuses(whole(clip))
    for one in got:  # nor has what woke up late written to them
        np.testing.assert_array_equal(one.numpy(), frames)
    agree(pool, clips.values(), rounds=1)


@pytest.mark.usefixtures("opened")
def test_an_engine_that_hangs_is_noticed_however_long_its_job(clips: Clips, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, wakes = count(1), threading.Event()
    # The whole job may take far longer than one packet of it.
    monkeypatch.setattr(nvdec, "Pace", partial(Pace, least_s=0.0))
    monkeypatch.setattr(Pace, "_each", lambda self, encoded: 2.0)
    monkeypatch.setattr(NvdecWorker, "_open", lambda _, key: Hanging(key.codec, calls, wakes))
    pool = NvdecSessionPool(device_id=0, engines=1)
    with pytest.raises(VideoError, match=r"has not answered \(it did nothing for 2 s\)"):
        pool.submit([whole(clips["h264"][0])]).result()
    wakes.set()
    pool.close()


@pytest.mark.usefixtures("opened", "impatient")
def test_a_stuck_engine_holds_up_neither_the_others_nor_closing(clips: Clips, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, wakes = {"hevc": count(3), "h264": count(4)}, threading.Event()
    monkeypatch.setattr(NvdecWorker, "_open", lambda _, key: Hanging(key.codec, calls[key.codec], wakes))
    pool = NvdecSessionPool(device_id=0, engines=2)
    bad = pool.submit([slice_of(clips["hevc"][0], [3])])
    clip, frames = clips["h264"]
    for _ in range(3):
        (got,) = pool.submit([whole(clip)]).result()
        np.testing.assert_array_equal(got.numpy(), frames)
    pool.close()
    with pytest.raises(VideoError, match="has not answered"):
        bad.result()
    wakes.set()


def test_an_abandoned_thread_takes_no_more_jobs(
    clips: Clips, library: NvdecLibrary | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, session = DecodeQueue.take, NvdecWorker._session
    abandoned: list[threading.Thread] = []
    decoding = set()

    def abandons(queue: DecodeQueue, *, opened: Any, **given: Any) -> Any:
        job = take(queue, opened=opened, **given)
        if job is not None and not abandoned:  # between the worker's look at it and the job's arrival
            abandoned.append(threading.current_thread())
            assert opened.abandon() == []
        return job

    def notes(worker: NvdecWorker, job: Any) -> Any:
        found = session(worker, job)
        decoding.add(threading.current_thread())
        return found

    fail, wakes = NvdecWorker._fail, threading.Event()

    def hangs(worker: NvdecWorker, error: Exception) -> None:  # as its decoder does, which is closed here
        if threading.current_thread() in abandoned:
            assert wakes.wait(60)
        fail(worker, error)

    monkeypatch.setattr(DecodeQueue, "take", abandons)
    monkeypatch.setattr(NvdecWorker, "_session", notes)
    monkeypatch.setattr(NvdecWorker, "_fail", hangs)
    pool = NvdecSessionPool(device_id=0, engines=2, library=library)
    got = pool.submit([whole(clip) for clip, _ in clips.values()])
    deadline = time.monotonic() + 50
    while not got.done():
        assert time.monotonic() < deadline, "the job that it took waits for its decoder"
        time.sleep(0.01)
    for (_, expected), frames in zip(clips.values(), got.result(), strict=True):
        np.testing.assert_array_equal(frames.numpy(), expected)
    wakes.set()
    agree(pool, clips.values(), rounds=2)
    assert decoding
    assert abandoned[0] not in decoding


@pytest.mark.usefixtures("opened")
def test_more_stuck_engines_than_sessions_can_be_blamed_for_end_the_run(
    clips: Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes = threading.Event()
    monkeypatch.setattr(nvdec, "Pace", partial(Pace, least_s=0.2))
    monkeypatch.setattr(NvdecWorker, "_open", lambda _, key: Hanging(key.codec, repeat(3), wakes))
    pool = NvdecSessionPool(device_id=0, engines=1)
    for expected in (VideoError, VideoError, VideoError, GpuLostError):
        one = replace(slice_of(clips["hevc"][0], [3]), name=f"{expected.__name__} of a clip")
        with pytest.raises(expected, match="has not answered"):
            pool.submit([one]).result()
        assert pool.refuses(one) is (expected is VideoError)
    pool.close()
    wakes.set()


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("reason", ["CUDA error: out of memory", "CUDA error: invalid device ordinal"])
def test_an_engine_that_cannot_begin_leaves_no_batch_waiting(
    clips: Clips, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    begin, tries = nvdec_worker.SurfaceQueue, count()

    def fails(*given: Any) -> Any:
        if next(tries) < 2:
            raise RuntimeError(reason)
        return begin(*given)

    monkeypatch.setattr(nvdec_worker, "SurfaceQueue", fails)
    pool = NvdecSessionPool(device_id=0, engines=1)
    clip, frames = clips["h264"]
    with pytest.raises(VideoError, match=rf"nvdec-0 failed \({reason}"):
        pool.submit([whole(clip)]).result()
    got = None
    while got is None:
        with suppress(VideoError):
            (got,) = pool.submit([whole(clip)]).result()
    np.testing.assert_array_equal(got.numpy(), frames)
    assert not pool.refuses(whole(clip))
    pool.close()


def test_engines_begin_before_all_slices_are_split(
    clips: Clips, opened: list[Any], library: NvdecLibrary | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, parts = threading.Event(), []
    decode, split = NvdecWorker._decode, nvdec.split_at_idr
    monkeypatch.setattr(NvdecWorker, "_decode", lambda worker, job: (begun.set(), decode(worker, job)))

    def slow(slices: Any, *given: Any, **more: Any) -> Any:
        assert not parts or begun.wait(120)
        parts.append(len(slices))
        return split(slices, *given, **more)

    monkeypatch.setattr(nvdec, "split_at_idr", slow)
    pool = NvdecSessionPool(device_id=0, engines=1, library=library)
    clip, frames = clips["hevc"]
    made = pool.submit([slice_of(clip, [n % 30]) for n in range(40)]).result()
    for n, got in enumerate(made):
        np.testing.assert_array_equal(got[0].numpy(), frames[n % 30])
    assert len(parts) > 1
    assert sum(parts) == 40
    pool.close()


def test_a_damaged_slice_is_told_when_nothing_of_its_batch_is_under_way(
    clips: Clips, opened: list[Any], library: NvdecLibrary | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or memory would be freed that engines write to."""
    groups: list[JobGroup] = []

    class Seen(JobGroup):
        def __init__(self, jobs: int, **more: Any) -> None:
            super().__init__(jobs, **more)
            groups.append(self)

    monkeypatch.setattr(nvdec, "JobGroup", Seen)
    pool = NvdecSessionPool(device_id=0, engines=1, library=library)
    clip, frames = clips["hevc"]
    good = slice_of(clip, [7])
    with pytest.raises(VideoError, match="damaged"):
        pool.submit([good] * 40 + [replace(good, data=~good.data)])
    assert [group._pending for group in groups] == [0]
    (got,) = pool.submit([good]).result()
    np.testing.assert_array_equal(got[0].numpy(), frames[7])
    pool.close()


def test_where_sessions_cannot_be_opened_one_warning_says_what_it_costs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nvdec._warn_of_dali.cache_clear()
    monkeypatch.setattr(nvdec.importlib.util, "find_spec", lambda name: None)
    for _ in range(3):
        assert nvdec.open_session_pool(0) is None
    (record,) = caplog.records
    assert "PyNvVideoCodec and triton are not installed" in record.getMessage()
    assert "3 to 48 times slower" in record.getMessage()
    assert "pip install" in record.getMessage()
    # Installed, but it does not load: here for want of a driver.
    monkeypatch.setattr(nvdec.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", None)
    assert nvdec.open_session_pool(0) is None
    assert "does not work here" in caplog.records[-1].getMessage()
    nvdec._warn_of_dali.cache_clear()


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("built", [True, False])
def test_where_the_native_module_was_not_built_one_warning_says_so(
    built: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nvdec._warn_of_python.cache_clear()
    monkeypatch.setattr(nvdec.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(nvdec, "native_library", lambda: stand_in().library if built else None)
    monkeypatch.setattr(nvdec, "decoder_caps", lambda *_: Caps(True, 7, 48, 16, 4096, 4096))
    monkeypatch.setattr(NvdecSessionPool, "compile", lambda *_: None)
    for _ in range(2):
        pool = nvdec.open_session_pool(0)
        assert pool is not None
        names = {thread.name for thread in threading.enumerate()}
        spares = sum(name.startswith("streamvid-nvdec-spare") for name in names)
        assert spares == (3 if built else 0), "a spare thread for two engines, as sessions are set to other sizes"
        pool.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (not built)
    assert all("Install a C compiler" in text for text in said)
    nvdec._warn_of_python.cache_clear()
