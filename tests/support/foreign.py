"""Datasets of others, made by hand as their formats are documented: WebDataset shards and LeRobot datasets."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.clips import write
from tools.clips import Recipe

CLIP = Recipe(width=96, height=64, frames=12, gop=6, b_frames=2)
CAMERA = "observation.images.top"


def write_tar(path: Path, members: Sequence[tuple[str, bytes]], *, format: int = tarfile.USTAR_FORMAT) -> Path:
    """A tar of these files, in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def npy(values: object, dtype: str = "float32") -> bytes:
    """A .npy file."""
    stream = io.BytesIO()
    np.save(stream, np.asarray(values, dtype=dtype))
    return stream.getvalue()


def encoded(recipe: Recipe, folder: Path) -> bytes:
    """The bytes of a clip."""
    path = folder / f"made-{abs(hash(recipe))}.{recipe.container}"
    data = write(recipe, path).read_bytes()
    path.unlink()
    return data


def write_lerobot(
    folder: Path,
    episodes: Sequence[int],
    *,
    per_file: int = 2,
    cameras: Sequence[str] = (CAMERA,),
    rate: int = 30,
    recipe: Recipe | None = None,
    lengths: Mapping[int, int] | None = None,
) -> Path:
    """A LeRobot dataset, v3.0.

    Args:
        folder: where to.
        episodes: how many frames each has.
        per_file: how many of them share a video file.
        cameras: features of dtype video.
        rate: frames per second.
        recipe: of the videos, but for their length.
        lengths: what the table of episodes says instead, by episode.
    """
    recipe = recipe or Recipe(codec="av1", width=128, height=96, gop=2, b_frames=0)
    (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    info = {
        "codebase_version": "v3.0",
        "fps": rate,
        "total_episodes": len(episodes),
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "features": {
            **{camera: {"dtype": "video", "shape": [recipe.height, recipe.width, 3]} for camera in cameras},
            "action": {"dtype": "float32", "shape": [6]},
        },
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    rows = []
    for number, frames in enumerate(episodes):
        first = number - number % per_file
        start = sum(episodes[first:number]) / rate
        row: dict[str, object] = {
            "episode_index": number,
            "tasks": [f"task {number % 2}"],
            "length": (lengths or {}).get(number, frames),
            "stats/action/max": [1.0],
        }
        for camera in cameras:
            at = f"videos/{camera}"
            row |= {
                f"{at}/chunk_index": 0,
                f"{at}/file_index": number // per_file,
                f"{at}/from_timestamp": start,
                f"{at}/to_timestamp": start + frames / rate,
            }
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows), folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    for camera in cameras:
        for number in range(0, len(episodes), per_file):
            path = folder / "videos" / camera / "chunk-000" / f"file-{number // per_file:03d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            frames = sum(episodes[number : number + per_file])
            write(Recipe(**{**vars(recipe), "frames": frames, "fps": Fraction(rate)}), path)
    return folder
