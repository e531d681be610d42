"""`sv.dali.export` on a GPU: H.264 through the serialized pipeline, bit for bit what `engine="dali"` gives."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import streamvid as sv
from streamvid.packing.options import PackOptions
from tests.support.packed import pack_recipes
from tools.clips import hard_recipes

# Of a width that no other test has: DALI's decoder cache, and the guard before it, outlive a test.
BASE = replace(hard_recipes()["h264"], width=368)
CLIPS = {"a": replace(BASE, frames=45), "b": replace(BASE, frames=20, seed=1), "c": replace(BASE, frames=28, seed=2)}
TRANSFORMS = [
    sv.Transform(resize=128, crop=112, mean=0.45, std=0.225, horizontal_flip=0.5),
    sv.Transform(random_resized_crop=(0.2, 1), crop=(96, 80), dtype="float16", layout="TCHW"),
    sv.Transform(resize=100, dtype="uint8", layout="THWC"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("triton")
    pack_recipes(CLIPS, made, options=PackOptions("any"))
    return made


def served(model: Path, folder: Path) -> npt.NDArray[Any]:
    from nvidia.dali import Pipeline

    graph = Pipeline.deserialize(filename=str(model / "1" / "model.dali"), device_id=0)
    graph.build()
    graph.feed_input("encoded", [np.fromfile(folder / "videos" / f"{name}.mp4", dtype=np.uint8) for name in CLIPS])
    (output,) = graph.run()
    return np.concatenate([np.array(output.as_cpu().at(n)) for n in range(len(CLIPS))])


AS_THE_BACKEND = """
import sys, numpy as np
from nvidia.dali import Pipeline
graph = Pipeline.deserialize(filename=sys.argv[1], device_id=0, exec_dynamic=False, prefetch_queue_depth=1)
graph.build()
graph.feed_input("encoded", [np.fromfile(path, dtype=np.uint8) for path in sys.argv[3:]])
(output,) = graph.run()
np.save(sys.argv[2], np.concatenate([np.array(output.as_cpu().at(n)) for n in range(len(sys.argv) - 3)]))
"""


def test_as_the_backend_makes_pipelines(folder: Path, tmp_path: Path) -> None:
    """With the older executor."""
    model = sv.dali.export(tmp_path, transform=TRANSFORMS[0], frames=7, stride=2, device="cuda")
    videos = [str(folder / "videos" / f"{name}.mp4") for name in CLIPS]
    files = [str(model / "1" / "model.dali"), str(tmp_path / "made.npy")]
    command = [sys.executable, "-c", AS_THE_BACKEND, *files, *videos]
    subprocess.run(command, check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "made.npy"), served(model, folder))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=range(len(TRANSFORMS)))
def test_the_tensors_are_those_of_the_engine(folder: Path, tmp_path: Path, transform: sv.Transform) -> None:
    model = sv.dali.export(tmp_path, transform=transform, frames=7, stride=2, device="cuda")
    sampling = sv.TiledWindows(7, stride=2, pad="constant")
    options: dict[str, Any] = {"batch_size": 16, "shuffle": False, "sampling": sampling, "device": "cuda"}
    with sv.StreamLoader(folder / "set", transform=transform.for_evaluation(), engine="dali", **options) as loader:
        (batch,) = loader
    made = served(model, folder)
    np.testing.assert_array_equal(made, batch["video"].cpu().numpy())
    with sv.StreamLoader(folder / "set", transform=transform.for_evaluation(), **options) as loader:
        (default,) = loader
    difference = np.abs(made.astype(float) - default["video"].cpu().numpy())
    print(f"default engine: {difference.max():.5f} at most, {difference.mean():.6f} on average")
