"""The code in the documentation for DALI users runs, with the documented results."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import streamvid as sv
from tests.support.packed import make_videos
from tools.clips import Recipe

ROOT = Path(__file__).parents[2]
VIDEOS = {
    "slow": Recipe(width=160, height=96, gop=12, fps=Fraction(20), frames=40, seed=1),
    "fast": Recipe(width=160, height=96, gop=30, fps=Fraction(60), frames=90, seed=2),
    "variable": Recipe(width=128, height=96, gop=12, jitter=3, frames=60, seed=3, container="mkv"),
    "ntsc": Recipe(codec="hevc", width=160, height=96, fps=Fraction(30000, 1001), frames=70, seed=4),
}


def indented(page: str) -> str:
    """The page's indented code, without what is to be typed into a shell."""
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    found = re.findall(r"(?:^|\n\n)((?:    .*(?:\n+(?=    )|\n))+)", text)
    blocks = [textwrap.dedent(block) for block in found]
    return "\n".join(block for block in blocks if not block.startswith(("python ", "streamvid ")))


def run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that it defines, run in that folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    names: dict[str, Any] = {"__name__": "page"}
    code = "from __future__ import annotations\n" + indented(page)
    exec(compile(code, page, "exec"), names)
    return names


def shown(batches: Any) -> Iterator[tuple[str, list[float], list[int]]]:
    """Of each sample its key, times and frame numbers as drawn into the frames, without padding."""
    for batch in batches:
        for key, mask, pts, video in zip(batch["key"], batch["mask"], batch["pts"], batch["video"], strict=True):
            assert mask.any()
            yield key, pts[mask].tolist(), [int(frame.sum()) for frame in video[mask]]


def on_screen(dataset: sv.Dataset, key: str, instant: float) -> float:
    """When the frame was shown that is on screen at an instant, rounded up to whole ticks of the clip's clock."""
    times = np.array([float(at) for at in VIDEOS[key].shown_at()])
    row = dataset.row(key)
    tick = dataset.clips.time_base_num[row] / dataset.clips.time_base_den[row]
    return float((times - times[0])[times - times[0] < instant + 0.99 * tick][-1])


def write_jpeg(path: Path, seed: int) -> None:
    """Noise of 160x96."""
    noise = np.random.default_rng(seed).integers(0, 256, (96, 160, 3)).astype(np.uint8)
    with av.open(str(path), "w", format="image2", options={"update": "1"}) as file:
        stream = file.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuvj420p"
        file.mux([*stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")), *stream.encode(None)])


def test_issue_5888(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_videos(tmp_path / "videos", VIDEOS)
    (tmp_path / "frames").mkdir()
    (tmp_path / "stills").mkdir()
    for number in range(12):
        write_jpeg(tmp_path / "frames" / f"{number:03}.jpg", seed=number)
    for name in ("cat", "dog"):
        write_jpeg(tmp_path / "stills" / f"{name}.jpg", seed=len(name))
    made = run("dali-5888.md", tmp_path, monkeypatch)

    dataset = sv.Dataset.open(tmp_path / "datasets" / "mine")

    # Rates that differ: each position shows what is on screen, a tenth of a second after the one before.
    (by_time,) = made["by_time"]
    assert sorted(by_time["key"]) == sorted(VIDEOS)
    for key, times, _ in shown([by_time]):
        assert times == pytest.approx([on_screen(dataset, key, times[0] + n / 10) for n in range(8)], abs=1.5e-3), key
    # Several rates in one clip.
    (two_rates,) = made["two_rates"]
    instants = [0, 0.2, 0.4, *(0.6 + n / 10 for n in range(6))]
    for key, times, _ in shown([two_rates]):
        assert times == pytest.approx([on_screen(dataset, key, at) for at in instants][: len(times)], abs=1.5e-3), key
        assert len(times) == 9
    # Frames by a Sampler.
    for batches in (made["by_workers"], made["by_main_process"]):
        samples = list(shown(batches))
        assert [key for key, _, _ in samples] == [key for key in ("slow", "fast", "variable") for _ in range(2)]
        for key, times, frames in samples[::2]:
            every = [float(at) for at in VIDEOS[key].shown_at()]
            assert times == pytest.approx([every[n] - every[0] for n in (0, 9, 4)], abs=1.5e-3)
            assert len(set(frames)) == 3
        for key, times, _ in samples[1::2]:
            assert times == pytest.approx([on_screen(dataset, key, at) for at in (0, 0.25, 0.3)], abs=1.5e-3)
    assert list(shown(made["by_workers"])) == list(shown(made["by_main_process"]))
    assert len([key for batch in made["one_rank"] for key in batch["key"]]) == 2
    # Images beside videos.
    seen = set()
    for batch in made["both"]:
        assert len(batch["key"]) == 8
        for n, key in enumerate(batch["key"]):
            times, mask = batch["pts"][n].tolist(), batch["mask"][n].tolist()
            if key in ("cat", "dog"):
                assert mask == [True, False, False, False]
            if key == "frames":
                assert times == pytest.approx([times[0] + n / 10 for n in range(4)], abs=1 / 24)
                assert times[0] < times[1] < times[2] < times[3]
            seen.add(key)
    assert seen == {*VIDEOS, "frames", "cat", "dog"}
    # Several GPUs.
    keys = [[key for batch in rank for key in batch["key"]] for rank in made["ranks"]]
    assert len(keys[0]) == len(keys[1]) == 2
    assert sorted(keys[0] + keys[1]) == sorted(VIDEOS)


def test_dali_proxy_is_shown_as_the_example_has_it() -> None:
    page = (ROOT / "docs" / "dali-5888.md").read_text()
    (excerpt,) = re.findall(r"```python\n(def __getitem__\(self, item: .*?)```", page, flags=re.DOTALL)
    assert textwrap.indent(excerpt, "    ") in (ROOT / "examples" / "dali_proxy.py").read_text()


def test_super_resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(width=160, height=96, fps=Fraction(12), frames=36, scene=12)
    make_videos(tmp_path / "films", {f"{n}": replace(recipe, seed=n) for n in range(2)})
    epoch = run("super-resolution.md", tmp_path, monkeypatch)["epoch"]
    dataset = sv.Dataset.open(tmp_path / "datasets" / "scenes")
    assert dataset.clips.frames.tolist() == [12] * 6
    assert set(dataset.clips.height.tolist()) == {72}
    # Two sequences of three frames of each scene; the last batch has what is left.
    assert [len(low) for low, _, _ in epoch] == [4, 4, 4]
    assert sorted(key for _, _, keys in epoch for key in keys) == sorted(
        dataset.clips.key[n] for n in range(6) for _ in "ab"
    )
    for low, high, _ in epoch:
        assert (low.shape[1:], high.shape[1:]) == ((3, 3, 32, 32), (3, 3, 64, 64))
        means = high.unflatten(3, (32, 2)).unflatten(5, (32, 2)).mean(dim=(4, 6))
        assert (low - means).abs().mean() < 0.03
