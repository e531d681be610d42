"""Persistent decode sessions: the same pixels as stock DALI in a process of its own, whatever was decoded before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from streamvid.bitstream import packet_info
from streamvid.decode import job_queue, nvdec
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.cpu_assist import CpuAssistWorker
from streamvid.decode.gpu import GpuDecoder, decode_support
from streamvid.decode.nvdec import NvdecSessionPool, open_session_pool
from streamvid.decode.nvdec_library import NvdecLibrary, native_library
from streamvid.decode.nvdec_worker import NvdecWorker
from streamvid.decode.session_key import session_key
from streamvid.errors import VideoError
from streamvid.video.gpu_support import Route
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.clips import write
from tests.support.reference import sequential, slice_of, to_arrays, whole
from tests.support.sessions import agree
from tests.support.sps import Rewrite, rewrite, with_reorder, without_vui
from tests.support.stock_dali import stock_frames
from tools.clips import Recipe
from tools.damage import lie_about_order

if torch.cuda.is_available():  # without a driver its import raises RuntimeError
    pytest.importorskip("PyNvVideoCodec")

FULL = pytest.mark.full
SIZES = ((320, 180), (320, 192), (1920, 1080), (1920, 1088), (640, 272), (176, 144))


def stored(recipe: Recipe, folder: Path) -> StoredClip:
    folder.mkdir()
    return store_clip(write(recipe, folder / f"source.{recipe.container}"), folder)


Stocked = tuple[StoredClip, npt.NDArray[np.uint8]]


Make = Callable[[Sequence[Recipe]], list[Stocked]]


@pytest.fixture(autouse=True)
def cores_take_small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few pixels are enough to have engines and cores decode beside each other."""
    monkeypatch.setattr(job_queue, "CPU_MIN_FRAME_PIXELS", 500_000)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Clips and what stock DALI makes of them, each once."""
    folder = tmp_path_factory.mktemp("clips")
    known: dict[Recipe, Stocked] = {}

    def made(recipes: Sequence[Recipe]) -> list[Stocked]:
        new = [recipe for recipe in recipes if recipe not in known]
        clips = [stored(recipe, folder / str(len(known) + n)) for n, recipe in enumerate(new)]
        known.update(zip(new, zip(clips, stock_frames(clips), strict=True), strict=True))
        return [known[recipe] for recipe in recipes]

    return made


@pytest.fixture(params=["native", pytest.param("pynv", marks=FULL)])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> NvdecLibrary | None:
    """The native module; None: PyNvVideoCodec decodes."""
    found = native_library() if request.param == "native" else None
    if request.param == "native" and found is None:
        pytest.skip("the native module was not built")
    monkeypatch.setattr(nvdec, "native_library", lambda: found)
    return found


@pytest.fixture
def sessions(library: NvdecLibrary | None) -> NvdecSessionPool:
    opened = open_session_pool(0, threads=12)
    assert opened is not None
    return opened


@pytest.fixture(
    params=[*(pytest.param(counts, marks=FULL) for counts in ((1, 0), (7, 0), (0, 3))), (2, 3)],
    ids=["one", "all", "cpu", "both"],
)
def workers(request: pytest.FixtureRequest, library: NvdecLibrary | None) -> NvdecSessionPool:
    """NVDEC engines alone, CPU workers alone, and both at once."""
    engines, cpu_workers = request.param
    return NvdecSessionPool(device_id=0, engines=engines, cpu_workers=cpu_workers, library=library)


def test_whoever_decodes_the_pixels_are_the_same(make: Make, workers: NvdecSessionPool) -> None:
    recipes = [
        Recipe(frames=40, gop=10, b_frames=3, crf=28),
        Recipe(frames=40, gop=40, b_frames=2, width=416, height=180, crf=40),
        Recipe(codec="hevc", frames=40, gop=20, b_frames=3, open_gop=True),
        Recipe(codec="hevc", frames=40, gop=13, b_frames=2, width=1920, height=1080),
        Recipe(frames=40, gop=12, full_range=True),
        *(
            Recipe(codec="hevc", frames=24, gop=8, b_frames=2, width=w, height=h, pix_fmt="yuv420p10le", crf=12)
            for w, h in ((640, 272), (644, 268), (324, 180))
        ),
    ]
    clips = make([replace(recipe, seed=n) for n, recipe in enumerate(recipes)])
    native = library is not None
    rows = [decode_support(clip.codec, clip.stsd, clip.width, clip.height, native=native) for clip, _ in clips]
    assert {row.route for row in rows} == {Route.NVDEC}
    agree(workers, clips, each=3, rounds=4, seed=5)


@pytest.mark.full
def test_streams_with_a_larger_dpb_get_a_session_for_it(make: Make, workers: NvdecSessionPool) -> None:
    """Parameter sets differ in all that may matter; the decoder configurations are few."""
    params: list[tuple[tuple[str, str], ...]] = [
        (("ref", "1"),), (("ref", "4"), ("cabac", "0")), (("ref", "16"), ("b-pyramid", "normal")), (("8x8dct", "0"),),
        (("ref", "6"), ("weightp", "0")), (("ref", "2"), ("constrained-intra", "1")), (("ref", "9"), ("sps-id", "3")),
        (("deblock", "3:3"), ("chroma-qp-offset", "4")),
    ]  # fmt: skip
    recipes = [
        # The rate gets into the VUI.
        Recipe(frames=40, gop=20, b_frames=n % 8, params=more, seed=n, crf=30, fps=Fraction(24 + n))
        for n, more in enumerate(params)
    ]
    more_hevc: list[tuple[tuple[str, str], ...]] = [
        (("ref", "1"),), (("ref", "6"),), (("ctu", "16"), ("max-tu-size", "16")), (("min-cu-size", "16"),),
        (("level-idc", "5.1"),), (("sao", "0"), ("amp", "1"), ("rect", "1")),
    ]  # fmt: skip
    recipes += [
        Recipe(codec="hevc", frames=40, gop=20, b_frames=n % 4, params=more, seed=n, fps=Fraction(24 + n))
        for n, more in enumerate(more_hevc)
    ]
    clips = make(recipes)
    assert len({clip.stsd for clip, _ in clips}) >= 13
    keys = {session_key(clip.codec, clip.stsd, clip.width, clip.height)[0] for clip, _ in clips}
    assert len(keys) <= 3
    agree(workers, clips, each=2, rounds=3, seed=9)


@pytest.mark.full
@pytest.mark.parametrize("codec", ["h264", pytest.param("hevc", marks=FULL)])
def test_sizes_that_dali_mixes_up_come_out_right(codec: str, tmp_path: Path, sessions: NvdecSessionPool) -> None:
    clips = [
        stored(Recipe(codec=codec, width=w, height=h, frames=12, gop=6, seed=n, crf=20), tmp_path / f"{w}x{h}")  # type: ignore[arg-type]
        for n, (w, h) in enumerate(SIZES)
    ]
    agree(sessions, zip(clips, stock_frames(clips), strict=True), rounds=6, seed=7, frames=4)


def of_cores(clips: Sequence[StoredClip]) -> list[npt.NDArray[np.uint8]]:
    """Their frames as FFmpeg decodes them, and the same kernel converts them."""
    cores = NvdecSessionPool(device_id=0, engines=0, cpu_workers=8)
    found = to_arrays(cores.submit([whole(clip) for clip in clips]).result())
    cores.close()
    return found


def many(recipes: Sequence[Recipe], folder: Path) -> list[StoredClip]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda n: stored(replace(recipes[n], seed=n), folder / str(n)), range(len(recipes))))


def test_clips_of_132_sizes_in_random_batches_come_out_whole(tmp_path: Path, library: NvdecLibrary | None) -> None:
    """Sessions are set from one size to another; what is coded is larger than what is shown."""
    sizes = [(162 + 2 * (n * 29 % 400), 160 + 2 * (n * 17 % 150)) for n in range(132)]
    assert len(set(sizes)) == 132
    recipes = [
        Recipe(codec="hevc" if n % 3 == 2 else "h264", width=w, height=h, frames=9, gop=5, b_frames=2, style="texture")
        for n, (w, h) in enumerate(sizes)
    ]
    clips = many(recipes, tmp_path)
    sessions = NvdecSessionPool(device_id=0, engines=3, library=library)
    agree(sessions, zip(clips, of_cores(clips), strict=True), each=1, rounds=4, seed=4, frames=3)


def test_frames_are_right_while_the_gpu_is_busy(tmp_path: Path, library: NvdecLibrary | None) -> None:
    """Copies and kernels of a picture wait for milliseconds, while its surface is due to be decoded to again."""
    recipes = [
        Recipe(codec="hevc" if h == 240 else "h264", width=w, height=h, frames=40, gop=20, b_frames=2, style="texture")
        for w, h in ((640, 360), (416, 240), (1280, 720))
    ]
    clips = many(recipes, tmp_path)
    expected = [torch.from_numpy(frames).cuda() for frames in of_cores(clips)]
    sessions = NvdecSessionPool(device_id=0, engines=7, library=library)
    matrix, over = torch.ones(8192, 8192, dtype=torch.bfloat16, device="cuda"), threading.Event()

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            while not over.is_set():
                for _ in range(20):
                    matrix @ matrix
                torch.cuda.current_stream().synchronize()

    busy = threading.Thread(target=work)
    busy.start()
    wrong = []
    try:
        for _ in range(6):
            begun = [sessions.submit([whole(clip) for clip in clips] * 4) for _ in range(2)]
            for pending in begun:
                for n, pictures in enumerate(pending.result()):
                    if not torch.equal(pictures, expected[n % len(clips)]):
                        wrong.append(n)
    finally:
        over.set()
        busy.join()
    assert not wrong
    sessions.close()


@FULL
def test_parameter_sets_may_differ_from_slice_to_slice(tmp_path: Path, library: NvdecLibrary | None) -> None:
    """One session takes streams of one size whose numbers of reference frames, profiles and GOPs differ."""
    recipes = [
        Recipe(frames=40, gop=40, b_frames=0, params=(("ref", "1"),), crf=20),
        Recipe(frames=40, gop=40, b_frames=8, params=(("ref", "16"), ("b-pyramid", "normal")), crf=30),
        Recipe(frames=40, gop=10, b_frames=2, options=(("profile", "main"),)),
        Recipe(frames=40, gop=20, b_frames=0, options=(("profile", "baseline"),)),
        Recipe(frames=40, gop=15, b_frames=3, full_range=True),
    ]
    clips = [stored(replace(recipe, seed=n), tmp_path / str(n)) for n, recipe in enumerate(recipes)]
    assert len({clip.stsd for clip in clips}) == len(clips)
    # A single engine: all go through the same sessions.
    sessions = NvdecSessionPool(device_id=0, engines=1, library=library)
    agree(sessions, zip(clips, stock_frames(clips), strict=True), each=2, rounds=5, seed=3)


def test_batches_come_in_order_and_overlap(tmp_path: Path, sessions: NvdecSessionPool) -> None:
    clip = stored(Recipe(frames=48, gop=12), tmp_path / "clip")
    (reference,) = stock_frames([clip])
    starts = [[n + k for k in range(9)] for n in range(0, 32, 4)]
    begun = [sessions.submit([slice_of(clip, np.arange(s, s + 8)) for s in batch]) for batch in starts]
    for batch, pending in zip(starts, begun, strict=True):
        for start, pictures in zip(batch, pending.result(), strict=True):
            np.testing.assert_array_equal(pictures.cpu().numpy(), reference[start : start + 8])
    sessions.close()


def test_a_damaged_slice_costs_its_batch_alone(tmp_path: Path, sessions: NvdecSessionPool) -> None:
    clip = stored(Recipe(frames=24, gop=12), tmp_path / "clip")
    good = whole(clip)
    cut = replace(good, name="cut", frames=np.append(good.frames, 1000))
    torn = replace(good, name="torn", data=np.zeros_like(good.data))
    (expected,) = stock_frames([clip])
    for bad in (cut, torn):
        with pytest.raises(VideoError, match=bad.name):
            sessions.submit([bad]).result()
        (pictures,) = sessions.submit([good]).result()
        np.testing.assert_array_equal(pictures.cpu().numpy(), expected)
    sessions.close()


@FULL
def test_of_damage_that_only_ffmpeg_notices_an_engine_has_the_last_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, library: NvdecLibrary | None
) -> None:
    """A CPU worker gives such a job back: frames must not depend on who was free."""
    clip = stored(Recipe(width=1280, height=720, frames=40, gop=40, b_frames=0, style="texture"), tmp_path / "clip")
    good = whole(clip)
    middle = int(np.cumsum(good.sizes)[9]) + int(good.sizes[10]) // 2
    data = good.data.copy()
    data[middle : middle + 40] = np.random.default_rng(2).integers(0, 256, 40)
    torn = replace(good, name="torn", data=data)
    alone = NvdecSessionPool(device_id=0, engines=1, library=library)
    (reference,) = alone.submit([torn]).result()
    expected = reference.cpu()
    alone.close()
    (undamaged,) = stock_frames([clip])
    assert not np.array_equal(expected.numpy(), undamaged), "nothing is damaged"
    both = NvdecSessionPool(device_id=0, engines=1, cpu_workers=3, library=library)
    with caplog.at_level(logging.DEBUG, logger="streamvid.decode.cpu_assist"):
        got = both.submit([torn] * 12 + [good] * 2).result()
    assert "left to an engine" in caplog.text
    for pictures in got[:12]:
        np.testing.assert_array_equal(pictures.cpu().numpy(), expected.numpy())
    for pictures in got[12:]:
        np.testing.assert_array_equal(pictures.cpu().numpy(), undamaged)
    both.close()


@FULL
def test_frames_that_a_core_cannot_send_to_the_gpu_are_decoded_by_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are taken together: frames of the ones before are lost as well."""
    clips = [
        stored(Recipe(width=1280, height=720, frames=12, gop=12, b_frames=2, seed=n), tmp_path / str(n))
        for n in range(4)
    ]
    expected = stock_frames(clips)
    send, calls = CpuAssistWorker._send, count(1)

    def fails_at_times(core: CpuAssistWorker) -> None:
        if len(core._staged) > 1 and next(calls) % 2:
            raise RuntimeError("CUDA error: out of memory")
        send(core)

    monkeypatch.setattr(CpuAssistWorker, "_send", fails_at_times)
    sessions = NvdecSessionPool(device_id=0, engines=1, cpu_workers=2)
    got = sessions.submit([whole(clip) for clip in clips] * 8).result()
    assert next(calls) > 1
    for n, pictures in enumerate(got):
        np.testing.assert_array_equal(pictures.cpu().numpy(), expected[n % 4])
    sessions.close()


def test_frames_whose_order_is_not_known_are_left_to_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times say that pictures are shown in decode order, and nobody has mended them."""
    recipe = Recipe(width=320, height=192, frames=30, gop=30, b_frames=3, style="texture")
    good = stored(recipe, tmp_path / "good")
    reference = decode_with_pyav(whole(good))
    monkeypatch.setattr(packet_info, "in_output_order", lambda codec, kinds, times: True)
    (tmp_path / "lying").mkdir()
    lying = store_clip(lie_about_order(good.mp4, tmp_path / "lying.mp4"), tmp_path / "lying")
    shown = np.argsort(np.argsort(good.index.pts))
    assert not np.array_equal(shown, np.arange(30))
    decoder = GpuDecoder(device_id=0, threads=2, max_batch=4)
    got = to_arrays(decoder.decode([whole(good), replace(whole(lying), in_order=False)] * 2))
    (expected,) = stock_frames([good])
    for pictures in got[::2]:
        np.testing.assert_array_equal(pictures, expected)
    for pictures in got[1::2]:
        np.testing.assert_array_equal(pictures, reference[shown])
    decoder.close()


@pytest.mark.parametrize(
    ("change", "b_frames"),
    [(without_vui, 3), (without_vui, 7), (with_reorder(0), 3), (with_reorder(1), 7)],
)
def test_pictures_that_are_reordered_further_than_the_bitstream_says_keep_their_places(
    change: Rewrite, b_frames: int, tmp_path: Path, library: NvdecLibrary | None
) -> None:
    """Short GOPs, in which few frames have a timestamp of ours; alone and in windows, by engines and by cores."""
    recipe = Recipe(width=320, height=192, frames=48, gop=8, b_frames=b_frames, style="texture")
    source = rewrite(write(recipe, tmp_path / "a.mp4"), tmp_path / "b.mp4", change)
    clip = store_clip(source, tmp_path)
    expected = sequential(clip.mp4, full_range=False, edits=False)
    (tmp_path / "honest").mkdir()
    honest = whole(store_clip(tmp_path / "a.mp4", tmp_path / "honest"))
    reference = to_arrays(GpuDecoder(device_id=0, threads=1, max_batch=1).decode([honest]))[0]
    for engines, cpu_workers in ((1, 0), (0, 1)):
        sessions = NvdecSessionPool(device_id=0, engines=engines, cpu_workers=cpu_workers, library=library)
        for wanted in (list(range(48)), [1], [2, 3], [13, 30, 31], *([n] for n in range(16, 24))):
            (pictures,) = sessions.submit([slice_of(clip, wanted)]).result()
            np.testing.assert_array_equal(pictures.cpu().numpy(), reference[wanted])
            for number, picture in zip(wanted, pictures.cpu().numpy(), strict=True):
                assert np.abs(picture.astype(int) - expected[number]).mean() < 3
        sessions.close()


@pytest.mark.full
@pytest.mark.parametrize("twice", [pytest.param(False, marks=FULL), True])
def test_a_frame_that_a_decoder_loses_or_repeats_shifts_no_others(
    make: Make, monkeypatch: pytest.MonkeyPatch, twice: bool
) -> None:
    """Frames are matched by their order: one too few or too many must not go unnoticed."""
    clips = make([Recipe(frames=n, gop=12, b_frames=2, seed=n) for n in (20, 30, 40)])
    opened, calls = NvdecWorker._open, count(1)

    class Lossy:
        def __init__(self, decoder: Any) -> None:
            self._decoder = decoder

        def Decode(self, packet: Any) -> list[Any]:  # noqa: N802
            frames = list(self._decoder.Decode(packet))
            # Not in a retry, which feeds packet by packet.
            if len(frames) > 5 and next(calls) in (1, 4, 9):
                frames[-1:] = [frames[-1]] * 2 if twice else []
            return frames

    monkeypatch.setattr(NvdecWorker, "_open", lambda worker, key: Lossy(opened(worker, key)))
    sessions = NvdecSessionPool(device_id=0, engines=1)
    for _ in range(4):
        got = sessions.submit([whole(clip) for clip, _ in clips]).result()
        for (_, reference), pictures in zip(clips, got, strict=True):
            np.testing.assert_array_equal(pictures.cpu().numpy(), reference)
    assert next(calls) > 9
    sessions.close()


@pytest.mark.full
def test_nothing_that_goes_to_sessions_enters_dalis_cache(tmp_path: Path) -> None:
    """True 1088 rows beside 1080: neither is left to the CPU."""
    clips = [
        stored(Recipe(width=1920, height=height, frames=8, gop=8, seed=height), tmp_path / str(height))
        for height in (1088, 1080)
    ]
    decoder = GpuDecoder(device_id=0, threads=2, max_batch=4)
    rows = [decode_support(clip.codec, clip.stsd, clip.width, clip.height, native=decoder.native) for clip in clips]
    assert Route.DALI not in map(decoder.route, rows)
    got = to_arrays(decoder.decode([whole(clip) for clip in clips]))
    for expected, pictures in zip(stock_frames(clips), got, strict=True):
        np.testing.assert_array_equal(pictures, expected)
    decoder.close()


def test_a_clip_that_engines_cannot_decode_is_left_to_cores(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """H.264 with more slices in a picture than NVDEC takes."""
    many = stored(Recipe(width=640, height=368, frames=8, params=(("slice-max-mbs", "1"),)), tmp_path / "many")
    few = stored(Recipe(width=640, height=368, frames=8), tmp_path / "few")
    slices = [replace(whole(clip), name=name) for name, clip in (("many", many), ("few", few))]
    expected = [decode_with_pyav(one, color="auto") for one in slices]
    decoder = GpuDecoder(device_id=0, threads=4, max_batch=2)
    try:
        with pytest.raises(VideoError, match="clip many cannot be decoded"):
            decoder.submit(slices, color="auto").result()
        assert "cores decode clip many from now on" in caplog.text
        for _ in range(2):
            for got, right in zip(decoder.submit(slices, color="auto").result(), expected, strict=True):
                np.testing.assert_array_equal(got.cpu().numpy(), right)
    finally:
        decoder.close()
