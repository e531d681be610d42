"""Requests of videos of many lengths: the DALI backend's example by hand, and the model that `sv.dali.export` writes.

    python -m tools.bench.serve [--quick] [--device cpu] [--json FILE]

A request has 16 videos of 320x180, of 8 to 240 frames, H.264, on a CPU VP9. Both pipelines are serialized and read
again, as a server has them, by DALI's older executor: every frame, resized to 224x224, uint8, in sub-sequences of 16.
Of each the sub-sequences that the model behind it gets, those of black frames alone, and the median time of a request.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

import streamvid as sv
from tools.bench.report import Report, Row, arguments, finish
from tools.clips import Recipe, write

SIDE, FRAMES, VIDEOS, THREADS = 224, 16, 16, 4
TRANSFORM: Final = sv.Transform(resize=(SIDE, SIDE), dtype="uint8", layout="THWC", color="bt601")
H264: Final = Recipe(width=320, height=180, gop=30, number=False)
VP9: Final = replace(H264, codec="vp9")


def by_hand(device: str) -> bytes:
    """The backend's example of video decoding, with our numbers."""
    from nvidia.dali import fn, pipeline_def, types

    on_gpu = device != "cpu"

    @pipeline_def(batch_size=VIDEOS, num_threads=THREADS, device_id=0 if on_gpu else None, exec_dynamic=False)
    def pipeline() -> Any:
        video = fn.external_source(device="cpu", name="encoded", ndim=1, dtype=types.UINT8)
        frames = fn.decoders.video(video, device="mixed" if on_gpu else "cpu")
        frames = fn.resize(frames, resize_x=SIDE, resize_y=SIDE)
        frames = fn.pad(frames, axis_names="F", align=FRAMES)
        return fn.reshape(frames, shape=[-1, FRAMES, SIDE, SIDE, 3], layout="")

    return bytes(pipeline().serialize())


def answer(pipeline: Any, files: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The sub-sequences of each file."""
    pipeline.feed_input("encoded", list(files))
    (made,) = pipeline.run()
    made = made.as_cpu()
    return [np.asarray(made.at(n)) for n in range(len(files))]


def measure(folder: Path, device: str, *, rounds: int) -> list[Row]:
    """A row for each way."""
    from nvidia.dali import Pipeline

    lengths = np.geomspace(8, 240, VIDEOS).astype(int).tolist()
    recipe = VP9 if device == "cpu" else H264
    recipes = {folder / f"{n}.mp4": replace(recipe, frames=frames, seed=n) for n, frames in enumerate(lengths)}
    with ThreadPoolExecutor(4) as pool:
        files = [np.fromfile(path, dtype=np.uint8) for path in pool.map(write, recipes.values(), recipes)]
    model = sv.dali.export(
        folder, transform=TRANSFORM, frames=FRAMES, device="cpu" if device == "cpu" else "cuda", num_threads=THREADS
    )
    ways = {"by hand": by_hand(device), "sv.dali.export": (model / "1" / "model.dali").read_bytes()}
    options = {"batch_size": VIDEOS, "num_threads": THREADS, "device_id": None if device == "cpu" else 0}
    pipelines = {
        name: Pipeline.deserialize(serialized, exec_dynamic=False, **options) for name, serialized in ways.items()
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    rows: list[Row] = []
    for number in range(1 + rounds):
        for name, pipeline in pipelines.items():
            began = time.perf_counter()
            made = answer(pipeline, files)
            took[name] += [time.perf_counter() - began] if number else []
            if number == rounds:
                black = sum(not one.any() for several in made for one in several)
                rows.append(
                    {
                        "way": name, "sub-sequences": sum(map(len, made)), "of these black": black,
                        "ms a request": 1000 * median(took[name]), "requests": rounds,
                    }
                )  # fmt: skip
    return rows


def main() -> int:
    """Measure and report."""
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.device, rounds=3 if options.quick else 9)
    return finish(Report("serve", rows, []), options)


if __name__ == "__main__":
    sys.exit(main())
