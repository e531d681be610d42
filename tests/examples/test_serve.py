"""examples/serve: trained, exported, and asked, with a stand-in for the server."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import streamvid as sv
from examples.serve.client import answer, encoded, infer, request
from examples.serve.train import FRAMES, SIDE, STRIDE, TRANSFORM
from streamvid.packing.options import PackOptions
from tests.support.packed import pack_recipes
from tests.support.triton_server import serving
from tools.clips import Recipe

VP9 = Recipe(codec="vp9", container="mp4", width=128, height=96, gop=8, frames=50)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, forked_python: Path) -> Path:
    """`videos`, `set` and `models`."""
    folder = tmp_path_factory.mktemp("serve")
    recipes = {f"{n}.mp4": replace(VP9, seed=n, frames=50 + 9 * n) for n in range(4)}
    pack_recipes(recipes, folder, {"label": ["right", "left"] * 2}, options=PackOptions("any"))
    options = ["--models", str(folder / "models"), "--steps", "3", "--batch-size", "2", "--server", "cpu"]
    command = [str(forked_python), "examples/serve/train.py", str(folder / "set"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "step 3  loss" in done.stdout
    return folder


def test_the_client_names_classes(trained: Path) -> None:
    with serving(trained / "models") as url:
        videos = [str(trained / "videos" / f"{n}.mp4") for n in range(4)]
        command = [sys.executable, "examples/serve/client.py", *videos, "--url", url]
        done = subprocess.run(
            [*command, "--classes", str(trained / "models" / "classes.txt")],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == videos
    assert {row[1] for row in rows} <= {"left", "right"}
    assert [row[2] for row in rows] == [f"{-(-(50 + 9 * n) // (STRIDE * FRAMES))} sub-sequences" for n in range(4)]


def test_several_videos_in_a_request(trained: Path) -> None:
    """The server has the tensors that the model is evaluated with."""
    batch = encoded([trained / "videos" / f"{n}.mp4" for n in range(4)])
    with serving(trained / "models") as url:
        made = infer(url, "clips", "encoded", batch, "video")
    assert made.shape[1:] == (3, FRAMES, SIDE, SIDE)
    with sv.StreamLoader(
        trained / "set",
        batch_size=64,
        shuffle=False,
        device="cpu",
        engine="dali",
        sampling=sv.TiledWindows(FRAMES, stride=STRIDE, pad="constant"),
        transform=TRANSFORM.for_evaluation(),
    ) as loader:
        (expected,) = loader
    np.testing.assert_array_equal(made, expected["video"].numpy())


def test_requests_and_answers() -> None:
    tensor = np.arange(6, dtype=np.float16).reshape(2, 3)
    body, header = request("x", tensor, "y")
    assert body[header:] == tensor.tobytes()
    text = b'{"outputs": [{"name": "y", "shape": [2, 3], "datatype": "FP16"}]}'
    np.testing.assert_array_equal(answer(text + tensor.tobytes(), len(text)), tensor)
