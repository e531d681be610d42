"""The loader on a GPU: right frames through all stages, clear refusals at the start, several ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.nvdec_library import native_library
from streamvid.packing.options import PackOptions
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.packed import pack_recipes
from tests.support.reference import whole
from tests.support.stock_dali import stock_frames
from tools.clips import Recipe, hard_recipes, read_frame_number

HARD = hard_recipes()
FULL = pytest.mark.full


@dataclass(frozen=True)
class Demo:
    """A run of tools.demo.

    Attributes:
        process: it, started.
        folder: where its log and its dataset are.
    """

    process: subprocess.Popen[bytes]
    folder: Path


def packed(names: Sequence[str], folder: Path) -> str:
    return str(pack_recipes({name: HARD[name] for name in names}, folder, options=PackOptions("any")))


def stored(sources: Iterable[Path], folder: Path) -> list[StoredClip]:
    """As packing stores them."""
    for source in (sources := list(sources)):
        (folder / "stored" / source.stem).mkdir(parents=True)
    return [store_clip(source, folder / "stored" / source.stem) for source in sources]


def test_every_frame_through_all_stages(tmp_path: Path) -> None:
    names = ["h264", "hevc", "hevc_10bit", "vp9", "h264_vfr", "hevc_open_gop", "h264_trimmed", "h264_five_frames"]
    dataset = packed(names, tmp_path)
    clips = stored((tmp_path / "videos" / f"{name}.{HARD[name].container}" for name in names[:4]), tmp_path)
    reference = dict(zip(names, stock_frames(clips), strict=False))
    as_dali = sv.Transform(layout="THWC", dtype="uint8", color="bt601")
    with sv.StreamLoader(
        dataset, batch_size=3, sampling=sv.Window(8, fps=10), transform=as_dali, device="cuda"
    ) as loader:
        for _ in range(2):
            seen = []
            for batch in loader:
                assert batch["video"].is_cuda
                for video, seconds, key in zip(batch["video"], batch["pts"].tolist(), batch["key"], strict=True):
                    seen.append(key)
                    times = [float(t) for t in HARD[key].shown_at()]
                    numbers = [int(np.argmin(np.abs(np.array(times) - second))) for second in seconds]
                    shown = HARD[key].shown()
                    assert [read_frame_number(frame) for frame in video.cpu().numpy()] == [shown[n] for n in numbers]
                    if key in reference:
                        np.testing.assert_array_equal(video.cpu().numpy(), reference[key][numbers])
            assert sorted(seen) == sorted(names)


@pytest.mark.full
@pytest.mark.parametrize("codec", ["vp8", pytest.param("mpeg4", marks=FULL)])
def test_heights_that_dali_mixes_up(codec: str, tmp_path: Path) -> None:
    """Clips of 192 rows beside clips of 180, which are coded with 192: none comes out stretched, in any order.

    What goes to decode sessions is not concerned: test_sessions.py has their test.
    """
    container = "webm" if codec == "vp8" else "mp4"
    recipes = {
        f"{n}-{height}": Recipe(codec=codec, container=container, height=height, frames=20, seed=n)  # type: ignore[arg-type]
        for n, height in enumerate((192, 180, 180, 192, 180, 184, 192))
    }
    dataset = pack_recipes(recipes, tmp_path, options=PackOptions("any"))
    script = f"""
import numpy as np
import streamvid as sv
from streamvid.decode import gpu
gpu.open_session_pool = lambda *given, **options: None
crop = sv.Transform(crop=(176, 320), random_crop=False, layout="THWC", dtype="uint8", color="bt601")
dataset = {str(dataset)!r}
loader = sv.StreamLoader(dataset, batch_size=3, sampling=sv.Frames([0, 7, 19]), transform=crop, device="cuda")
for epoch in range(4):
    for batch in loader:
        for key, video in zip(batch["key"], batch["video"]):
            np.save({str(tmp_path)!r} + f"/{{epoch}}-{{key}}.npy", video.cpu().numpy())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "3 of 7 clips are decoded by" in done.stderr
    clips = stored((tmp_path / "videos" / f"{name}.{container}" for name in recipes), tmp_path)
    for key, clip, frames in zip(recipes, clips, stock_frames(clips), strict=True):
        height = int(key.split("-")[1])
        top = (height - 176) // 2
        on_gpu = frames[[0, 7, 19], top : top + 176]
        on_cpu = decode_with_pyav(whole(clip))[[0, 7, 19], top : top + 176]
        for epoch in range(4):
            got = np.load(tmp_path / f"{epoch}-{key}.npy")
            # In DALI the four lower clips outvote the three of 192 rows, which therefore come from the CPU.
            np.testing.assert_array_equal(got, on_cpu if height == 192 else on_gpu)


CPU_DECODED = [
    "h264_interlaced", "h264_10bit", "h264_422_10bit", "h264_444_odd", "hevc_444", "vp9_odd", "vp9_444", "av1",
    "h264_open_gop_from_recovery",
]  # fmt: skip


def test_what_the_gpu_cannot_decode_is_decoded_by_cores_or_refused_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """AV1, which an H100 and an H200 lack, is found out by trying: the table knows no chip. The native module takes
    what PyNvVideoCodec would deinterlace."""
    on_cores = [name for name in CPU_DECODED if name != "h264_interlaced" or native_library() is None]
    dataset = packed(["h264", *CPU_DECODED], tmp_path)
    size = sv.Transform(resize=(64, 64))
    with pytest.raises(sv.InputError) as error:
        sv.StreamLoader(dataset, batch_size=1, sampling=sv.Frames([0]), transform=size, device="cuda", fallback="error")
    messages = [str(error.value)]
    assert "device='cpu'" in messages[0]
    videos = {}
    for device in ("cuda", "cpu"):
        with sv.StreamLoader(
            dataset, batch_size=4, sampling=sv.Frames([0, 3]), shuffle=False, transform=size, device=device
        ) as loader:
            batches = list(loader)
        assert all(batch["video"].device.type == device for batch in batches)
        videos[device] = {
            key: frames.cpu().numpy()
            for batch in batches
            for key, frames in zip(batch["key"], batch["video"], strict=True)
        }
    assert videos["cuda"].keys() == videos["cpu"].keys() == {"h264", *CPU_DECODED}
    for key, frames in videos["cuda"].items():
        assert np.abs(frames.astype(int) - videos["cpu"][key]).mean() < 2, key
    (warning,) = [record.getMessage() for record in caplog.records if "copied to the GPU" in record.getMessage()]
    assert f"{len(on_cores)} of {len(CPU_DECODED) + 1} clips" in warning
    assert warning.count("frames/s") == len(on_cores)
    clips = sv.ClipDataset(dataset, sampling=sv.Frames([0, 3]), transform=size)
    with sv.GpuDataLoader(clips, batch_size=5, num_workers=2, device="cuda") as random_access:
        for batch in random_access:
            for key, frames in zip(batch["key"], batch["video"], strict=True):
                np.testing.assert_array_equal(frames.cpu().numpy(), videos["cuda"][key])
    # A clause for each, and none for those that can be decoded.
    for message in [*messages, warning]:
        assert message.count(" such as ") == len(on_cores)
        for name in on_cores:
            assert f"such as {name} (" in message
        assert "\n" not in message


@pytest.mark.full
@pytest.mark.parametrize("pad", [pytest.param("edge", marks=FULL), "constant"])
def test_transforms_agree_with_the_cpu(pad: str, tmp_path: Path) -> None:
    names = ["h264", "hevc", "vp9", "h264_rotated_90", "h264_rotated_180", "h264_rotated_270", "h264_five_frames"]
    dataset = packed(names, tmp_path)
    transform = sv.Transform(resize=128, crop=112, horizontal_flip=0.5, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    batches = {}
    for device in ("cuda", "cpu"):
        with sv.StreamLoader(
            dataset,
            batch_size=4,
            sampling=sv.Window(16, fps=8, pad=pad),  # type: ignore[arg-type]
            transform=transform,
            device=device,  # type: ignore[arg-type]
        ) as loader:
            batches[device] = list(loader)
    for on_gpu, on_cpu in zip(batches["cuda"], batches["cpu"], strict=True):
        assert on_gpu["key"] == on_cpu["key"]
        for name in ("mask", "pts", "label", "clip", "valid"):
            assert torch.equal(on_gpu[name].cpu(), on_cpu[name])
        # 0.05 is 2.5 levels at a deviation of 0.2; the devices round chroma differently.
        assert (on_gpu["video"].cpu() - on_cpu["video"]).abs().mean() < 0.05


@pytest.mark.full
def test_same_seed_same_batches(tmp_path: Path) -> None:
    dataset = packed(["h264", "hevc", "vp9", "h264_vfr"], tmp_path)
    runs = []
    for _ in range(2):
        transform = sv.Transform(resize=100, crop=80, horizontal_flip=0.5)
        with sv.StreamLoader(dataset, batch_size=2, sampling=sv.Window(6), transform=transform, seed=5) as loader:
            runs.append([batch["video"].clone() for _ in range(2) for batch in loader])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert not torch.equal(runs[0][0], runs[0][2])


@pytest.fixture(scope="module", autouse=True)
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo | None]:
    """The demo, which runs beside the other tests, as it takes long."""
    if not any(item.name == "test_the_demo" for item in request.session.items):
        yield None
        return
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "tools.demo", "--out", str(folder / "demo")]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        yield Demo(process, folder)
        process.kill()


@FULL
def test_the_demo(demo: Demo) -> None:
    """Packs, verifies, and streams on two ranks; on one GPU they share it."""
    code = demo.process.wait()
    printed = (demo.folder / "log").read_text()
    print(printed)
    assert code == 0, printed
    assert (demo.folder / "demo" / "batch.html").exists()
