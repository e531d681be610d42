"""FFmpeg called by the native part gives the same results as through PyAV, for any input."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.color.picture import Picture, picture_of
from streamvid.decode.cpu import InThreadDecoder
from streamvid.decode.slice_frames import DamagedClipError, decode_frames, decode_pictures
from streamvid.packing.options import PackOptions
from streamvid.transform import cpu_batch_writer
from streamvid.video import native_decoder
from streamvid.video.codec_context import ReusableCodecContext
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from tests.support.clips import hard_clips, write
from tests.support.nvdec_driver import compile_c
from tests.support.packed import pack_recipes
from tests.support.reference import joined, slice_of, whole
from tools.clips import Recipe

SOURCE = Path(native_decoder.__file__).parents[1] / "native/ffmpeg.c"
SMALL = Recipe(width=96, height=64, frames=30, gop=12, b_frames=3, style="texture")
RECIPES = {
    **{
        name: hard_clips()[name]
        for name in (
            "h264_pyramid", "h264_open_gop", "h264_avc3", "hevc_open_gop_from_cra", "hevc_10bit", "vp9_hidden_frames",
            "vp9_odd", "vp8_hidden_frames", "mpeg4_avi_b_frames",
        )
    },
    "av1": replace(SMALL, codec="av1"),
    "h264_444": replace(SMALL, pix_fmt="yuv444p"),
    "hevc_rgb": replace(SMALL, codec="hevc", pix_fmt="gbrp"),
    "hevc_gray": replace(SMALL, codec="hevc", pix_fmt="gray"),

    "h264_422_10": replace(SMALL, pix_fmt="yuv422p10le"),
}  # fmt: skip


def stored(recipe: Recipe, folder: Path) -> EncodedSlice:
    return whole(store_clip(write(recipe, folder / f"a.{recipe.container}"), folder))


def digest(picture: Picture) -> tuple[str, str]:
    return picture.pix_fmt, hashlib.sha256(b"".join(plane.tobytes() for plane in picture.planes)).hexdigest()


def outcome(pictures: Iterator[tuple[int, Picture]]) -> list[Any]:
    """What comes, and the error at the end if there is one."""
    found: list[Any] = []
    try:
        found += [(row, picture.form, digest(picture)) for row, picture in pictures]
    except DamagedClipError as error:
        found.append(error.reason)
    return found


class Both:
    """One stream after the other in one decoder of the native part, and in one of PyAV's."""

    def __init__(self) -> None:
        self._contexts = ReusableCodecContext(), ReusableCodecContext()
        self.packets = ctypes.c_int64()

    def __call__(self, encoded: EncodedSlice) -> tuple[list[Any], list[Any]]:
        pictures = decode_pictures(encoded, None, context=self._contexts[0], taken=self.packets)
        frames = decode_frames(encoded, context=self._contexts[1])
        return outcome(pictures), outcome((row, picture_of(frame)) for row, frame in frames)

    def same(self, encoded: EncodedSlice) -> list[Any]:
        native, by_pyav = self(encoded)
        assert native == by_pyav
        return native


@pytest.fixture
def both() -> Both:
    if native_decoder.compiled() is None:
        pytest.skip("streamvid's native part was not built")
    return Both()


@pytest.mark.parametrize("name", RECIPES)
def test_it_gives_what_pyav_gives(name: str, both: Both, tmp_path: Path) -> None:
    encoded, rng = stored(RECIPES[name], tmp_path), np.random.default_rng(7)
    assert sorted(row for row, *_ in both.same(encoded)) == list(range(len(encoded.frames)))
    assert both.packets.value == len(encoded.sizes)
    some = np.sort(rng.choice(encoded.frames, 3, replace=False))
    assert len(both.same(replace(encoded, frames=some))) == 3
    assert len(both.same(joined(encoded, encoded))) == 2 * len(encoded.frames)


@pytest.mark.parametrize("name", RECIPES)
def test_it_fails_where_pyav_fails(name: str, both: Both, tmp_path: Path) -> None:
    encoded, rng, errors = stored(RECIPES[name], tmp_path), np.random.default_rng(7), 0
    for _ in range(10):
        data = encoded.data.copy()
        places = rng.integers(0, len(data), int(rng.integers(1, 9)))
        data[places] ^= rng.integers(1, 256, len(places)).astype(np.uint8)
        native, by_pyav = both(replace(encoded, data=data))
        # FFmpeg shows whatever lies in memory where HEVC is damaged, and not the same twice.
        assert native == by_pyav or name.startswith("hevc")
        assert [found[:2] for found in native] == [found[:2] for found in by_pyav]
        errors += isinstance(native[-1], str)
    assert errors or name.startswith("vp")
    assert isinstance(both.same(replace(encoded, width=encoded.width + 2))[0], str)
    empty = replace(encoded, sizes=np.append(encoded.sizes[:-1], 0), data=encoded.data[: -encoded.sizes[-1]])
    for one in (empty, replace(encoded, stsd=encoded.stsd[:90])):
        for found in both(one):
            assert "FFmpeg" in found[-1]


def test_a_picture_larger_than_its_clip_says_is_not_decoded(both: Both, tmp_path: Path) -> None:
    """The bitstream alone says so: 320x192, of which a row claims 16x16."""
    encoded = stored(replace(SMALL, width=320, height=192), tmp_path)
    (error,) = both.same(replace(encoded, width=16, height=16))
    assert "FFmpeg" in error


@pytest.mark.usefixtures("both")
def test_a_decoder_is_kept_and_packets_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[bytes]()

    class Noted(native_decoder.NativeDecoder):
        def __init__(self, mp4: bytes, *, pixels: int) -> None:
            opened.append(mp4)
            super().__init__(mp4, pixels=pixels)

    monkeypatch.setattr("streamvid.video.codec_context.NativeDecoder", Noted)
    clip = store_clip(write(SMALL, tmp_path / "a.mp4"), tmp_path)
    decoder, packets = InThreadDecoder(), 0
    for numbers in ([3], [5, 20], range(30)):
        part = slice_of(clip, list(numbers))
        assert len(list(decoder.frames(part, limit_s=9))) == len(part.frames)
        packets += len(part.sizes)
        assert decoder.packets == packets
    assert len(opened) == 2  # the second reorders further


@pytest.mark.usefixtures("both")
def test_what_is_left_early_may_be_garbage(tmp_path: Path) -> None:
    """A cycle's parts are finalized in any order: the open decoder before what decodes, which must not use it."""
    clip = store_clip(write(SMALL, tmp_path / "a.mp4"), tmp_path)
    part, decoder = slice_of(clip, range(30)), InThreadDecoder()
    for _ in range(4):
        assert len(list(decoder.frames(part, limit_s=9))) == 30
        cycle: list[Any] = [decoder.frames(part, limit_s=9)]
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        gc.collect()


TRANSFORMS: dict[str, sv.Transform | sv.Views] = {
    "flips": sv.Transform(resize=40, crop=32, horizontal_flip=0.5, vertical_flip=0.5, dtype="float16"),
    "frames last": sv.Transform(crop=(30, 50), random_resized_crop=(0.3, 1.0), layout="THWC", dtype="uint8"),
    "as it is": sv.Transform(crop=24, random_crop=True, layout="TCHW", dtype="bfloat16"),
    "two views": sv.Views(
        big=sv.Transform(resize=48, crop=48), small=sv.Transform(resize=20, crop=20, horizontal_flip=0.5)
    ),
    "RGB first": sv.Transform(resize=40, crop=32, resize_in="rgb"),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of several codecs, sizes and formats of pixels; one lies on its side, and two share a decoder."""
    changes: list[dict[str, Any]] = [
        {}, {"seed": 1}, {"codec": "hevc", "pix_fmt": "yuv420p10le"}, {"pix_fmt": "yuv444p"}, {"rotation": 90},
        {"codec": "vp9", "container": "webm"}, {"codec": "hevc", "pix_fmt": "gray"}, {"width": 130, "height": 70},
        {"codec": "vp8", "container": "webm"}, {"codec": "mpeg4"}, {"codec": "av1"},
    ]  # fmt: skip
    recipes = {f"{number}": replace(SMALL, **change) for number, change in enumerate(changes)}
    return pack_recipes(recipes, tmp_path_factory.mktemp("native"), options=PackOptions("any"))


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("sampling", [sv.Window(8, fps=8), sv.Window(6, stride=1)], ids=["padded", "dense"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_pictures_rendered_below_python_are_the_same(
    name: str, sampling: sv.Window, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[int]()
    to_python = cpu_batch_writer._Sink.write

    def noted(self: Any, row: int, picture: Picture) -> None:
        given.append(row)
        to_python(self, row, picture)

    def batches() -> list[Any]:
        given.clear()
        with sv.StreamLoader(
            dataset, batch_size=11, sampling=sampling, transform=TRANSFORMS[name], device="cpu", num_threads=2, seed=4
        ) as loader:
            loader._repeats = -2  # begins no third epoch early, of which some pictures would be counted
            return [batch for _ in range(2) for batch in loader]

    monkeypatch.setattr(cpu_batch_writer._Sink, "write", noted)
    below, few = batches(), len(given)
    monkeypatch.setattr(native_decoder, "compiled", lambda: None)
    above = batches()
    for one, other in zip(below, above, strict=True):
        assert one["key"] == other["key"]
        for view in ("video", "big", "small"):
            assert (view in one) == (view in other)
            assert view not in one or torch.equal(one[view], other[view])
    # The first of a decoder, gray ones, and those that are shown twice.
    assert few == len(given) if name in ("two views", "RGB first") else few < len(given) // 2


@pytest.mark.parametrize("fault", ["not built", "another build", "another FFmpeg"])
def test_without_it_pyav_decodes(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    part = stored(SMALL, tmp_path)
    (tmp_path / "native").mkdir()
    monkeypatch.setattr(native_decoder, "__file__", str(tmp_path / "video/native_decoder.py"))
    if fault != "not built":
        text = SOURCE.read_text()
        changed = (
            text.replace("(void) { return 2; }", "(void) { return 0; }")
            if fault == "another build"
            else text.replace("AVCODEC = 62", "AVCODEC = 61")
        )
        assert changed != text
        (tmp_path / "ffmpeg.c").write_text(changed)
        compile_c([tmp_path / "ffmpeg.c"], tmp_path / "native/ffmpeg.abi3.so", "-shared", "-fPIC")
    assert native_decoder.compiled.__wrapped__() is None
    assert "threads wait" in caplog.text
    assert ("of PyAV" in caplog.text) == (fault == "another FFmpeg")
    monkeypatch.setattr(native_decoder, "compiled", lambda: None)
    assert len(list(InThreadDecoder().frames(part, limit_s=9))) == 30


UNDER_SANITIZERS = """
import sys
import pytest
from pathlib import Path
from streamvid.video import native_decoder

native_decoder.__file__ = sys.argv[1]
assert native_decoder.compiled() is not None
which = "larger or kept or garbage or (fails and avc3) or (below and flips-dense)"
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "tests/video/test_native_decoder.py", "-k", which]))
"""


def test_it_neither_leaves_its_memory_nor_computes_what_is_not_defined(tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC")
    compile_c([SOURCE], tmp_path / "native/ffmpeg.abi3.so", *flags)
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    # Leaks are Python's own, at its exit.
    settings = {
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", UNDER_SANITIZERS, str(tmp_path / "video/native_decoder.py")],
        env=os.environ | settings, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]


_TWO_THREADS = """
import sys, threading, time
from streamvid.video import native_decoder
assert "av" not in sys.modules
failed, first = [], threading.Thread(target=lambda: __import__("av"))
def second():
    while "av" not in sys.modules: time.sleep(1e-5)
    try: native_decoder.compiled()
    except Exception as error: failed.append(error)
threads = [first, *(threading.Thread(target=second) for _ in range(3))]
for one in threads: one.start()
for one in threads: one.join()
sys.exit(f"{failed[0]!r}" if failed else 0)
"""


def test_threads_that_import_pyav_at_the_same_time_wait_for_each_other() -> None:
    """The decode threads of a loader are the first to import it."""
    for _ in range(3):
        ran = subprocess.run([sys.executable, "-c", _TWO_THREADS], capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
