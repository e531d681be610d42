"""examples/super_resolution.py on videos that it makes: above bicubic interpolation on held-out scenes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import av
import numpy as np

import streamvid as sv

ROOT = Path(__file__).parents[2]


def test_it_ends_above_bicubic(tmp_path: Path, forked_python: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [str(forked_python), "examples/super_resolution.py", "--out", str(tmp_path), "--steps", "200", "--crop", "48",
         "--batch-size", "4"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step  200" in done.stdout
    bicubic, network, scenes = map(
        float, re.findall(r"bicubic (.+) dB, the network (.+) dB, on (\d+) held-out scenes", done.stdout)[0]
    )
    assert scenes == 6
    assert 20 < bicubic < 35
    assert network > bicubic + 0.3
    # Split by scene: four videos of three scenes of a second each.
    dataset = sv.Dataset.open(tmp_path / "train")
    assert dataset.clips.frames.tolist() == [16] * 12
    # Low, bicubic, ours and high side by side; ours is nearer to high than bicubic is.
    with av.open(str(tmp_path / "low-bicubic-ours-high.png")) as file:
        picture = next(file.decode(video=0)).to_ndarray(format="rgb24").astype(float)
    assert picture.shape[1] == 4 * 48
    low, enlarged, ours, high = np.split(picture, 4, axis=1)
    assert ((ours - high) ** 2).mean() < ((enlarged - high) ** 2).mean() < ((low - high) ** 2).mean()
