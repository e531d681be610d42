"""Small videos and packed datasets for the tests of packing and reading."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamvid.checksum import crc32c
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import SHARD_EXTENSIONS
from streamvid.inspection import verify
from streamvid.packing import run_local
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.revising import repair
from streamvid.storage import filesystem
from streamvid.video.index_file import encode_index
from tests.support.clips import write
from tools.clips import Recipe

SMALL = Recipe(width=96, height=64, frames=12, gop=6, b_frames=2)

# All of them suit a GPU, by their sizes too: they are copied.
VIDEOS: dict[str, Recipe] = {
    "a/one.mp4": SMALL,
    "a/two.mkv": Recipe(codec="vp9", container="mkv", width=128, height=128, frames=8, gop=8, b_frames=0),
    "b/clip10.mp4": Recipe(width=96, height=64, frames=5, gop=5, b_frames=0, rotation=90),
    "b/clip2.mov": Recipe(codec="hevc", container="mov", width=160, height=144, frames=12, gop=6, b_frames=2),
    "top.avi": Recipe(codec="mjpeg", container="avi", width=64, height=64, frames=4, gop=1, b_frames=0),
    "slow.mp4": Recipe(width=96, height=64, frames=9, gop=9, trim=2, fps=Fraction(24)),
}
NATURAL_ORDER = ["a/one.mp4", "a/two.mkv", "b/clip2.mov", "b/clip10.mp4", "slow.mp4", "top.avi"]


USERS_OF_WORKERS = (run_local, verify, repair)
"""The modules that start worker processes by `streamvid.workers.Workers`."""


class InlineWorkers:
    """In the place of `streamvid.workers.Workers`: makes the calls at once, and starts no process. What goes to
    a process and comes from it is pickled here, too."""

    def __init__(self, count: int, *, work: str = "") -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any, limit_s: float | None = None) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(_pickled(function(*(arg if callable(arg) else _pickled(arg) for arg in args))))
        except Exception as error:
            future.set_exception(error)
        return future

    def __enter__(self) -> InlineWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@contextlib.contextmanager
def packing_inline() -> Iterator[None]:
    """`pack`, `verify` and `repair` work in this process. Each call starts processes for all cores otherwise, and to
    start one, which imports NumPy, PyArrow and PyAV, takes longer than what tests have it do."""
    with pytest.MonkeyPatch.context() as patch:
        for user in USERS_OF_WORKERS:
            patch.setattr(user, "Workers", InlineWorkers)
        yield


def pack_with_columns(recipes: Mapping[str, Recipe], folder: Path, *, shard_size: int = 40_000) -> Path:
    """A dataset of these videos as they are, with labels and two columns, in several shards."""
    numbers = range(len(recipes))
    columns: dict[str, Sequence[object]] = {
        "label": [n % 3 for n in numbers],
        "score": [n / 4 for n in numbers],
        "place": [f"town {n}" for n in numbers],
    }
    return pack_recipes(recipes, folder, columns, shard_size=shard_size, options=PackOptions("any"))


def make_videos(folder: Path, recipes: Mapping[str, Recipe] = VIDEOS) -> Path:
    """Video files by name, in a new folder or one that is there; by default one small file of each kind. A name without
    an extension gets that of its container."""
    for name, recipe in recipes.items():
        path = folder / _file_name(name, recipe)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(recipe, path)
    return folder


def _file_name(name: str, recipe: Recipe) -> str:
    return name if "." in name else f"{name}.{recipe.container}"


def pack_recipes(
    recipes: Mapping[str, Recipe], folder: Path, columns: Mapping[str, Sequence[object]] | None = None, **options: Any
) -> Path:
    """A dataset of video files, given by name as in `make_videos`, packed in this process: `set` in a folder, beside
    their own, `videos`.

    Args:
        columns: of a list with a row for each video, in this order; None in it is an empty cell.
        options: as in `pack`.
    """
    videos = make_videos(folder / "videos", recipes)
    if columns:
        options["labels"] = folder / "labels.csv"
        with options["labels"].open("w", newline="") as file:
            names = [_file_name(*item) for item in recipes.items()]
            csv.writer(file).writerows([["path", *columns], *zip(names, *columns.values(), strict=True)])
    with packing_inline():
        pack([videos], folder / "set", progress=False, **options)
    return folder / "set"


def add_unreadable(folder: Path) -> dict[str, str]:
    """Files that cannot be packed; name → a word that the reason holds."""
    (folder / "text.mp4").write_text("this is not a video\n" * 100)
    (folder / "empty.mp4").write_bytes(b"")
    whole = (folder / "a/one.mp4").read_bytes()
    (folder / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    _write_sound(folder / "sound.mp4")
    return {"text.mp4": "it is text", "empty.mp4": "empty", "cut.mp4": "read", "sound.mp4": "no video"}


def _write_sound(path: Path) -> None:
    import av
    import numpy as np

    with av.open(str(path), "w") as output:
        stream = output.add_stream("aac", rate=48000, layout="mono")
        for start in range(0, 4096, 1024):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 48000, start
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def reseal(folder: Path, *, tars: bool = True) -> None:
    """Make dataset.json agree with the files again, so that only what lies deeper is wrong.

    Args:
        folder: of the dataset.
        tars: False: not with its tars, and their sizes.
    """
    manifest = json.loads((folder / "dataset.json").read_text())
    for shard in manifest["shards"]:
        for extension in SHARD_EXTENSIONS if tars else ("packets", "parquet"):
            path = folder / "shards" / f"{shard['name']}.{extension}"
            if not path.exists():
                continue  # of videos in place there is no tar
            data = path.read_bytes()
            prefix = "" if extension == "tar" else f"{extension}_"
            shard[f"{prefix}sha256"] = hashlib.sha256(data).hexdigest()
            if extension in ("tar", "packets"):
                shard[f"{prefix}bytes"] = len(data)
    manifest.pop("tables", None)
    manifest["bytes"] = sum(shard.get("bytes", 0) for shard in manifest["shards"])
    (folder / "dataset.json").write_text(json.dumps(manifest))


def edit_json(folder: Path, **fields: Any) -> None:
    """Change fields of dataset.json."""
    document = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps(document | fields))


def edit_parquet(path: Path, row: int, **values: Any) -> None:
    """Change cells of one row of a shard's parquet, and nothing else."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[row] |= values
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def edit_index(folder: Path, row: int, **columns: Any) -> None:
    """Change columns of a clip's frame index, as a writer would that has them wrong: its checksums agree."""
    _edit_index(Dataset.open(folder), folder, row, **columns)


def _edit_index(dataset: Dataset, folder: Path, row: int, **columns: Any) -> None:
    encoded = encode_index(replace(dataset.index(row), **{k: np.asarray(v) for k, v in columns.items()}))
    s = int(dataset.clips.shard[row])
    with open(dataset.shard_path(s, "packets"), "r+b") as file:
        file.seek(int(dataset.clips.index_offset[row]))
        file.write(encoded.data)
    edit_parquet(Path(dataset.shard_path(s, "parquet")), row - dataset.rows(s).start, index_crc32c=encoded.crc32c)


def replace_packets(folder: Path, rows: int | Sequence[int], data: Callable[[int], bytes]) -> None:
    """Overwrite packets of clips by bytes of their sizes, as of videos that were damaged when they were packed: all
    checksums agree."""
    change_packets(folder, rows, lambda packet: data(len(packet)))


def change_packets(folder: Path, rows: int | Sequence[int], change: Callable[[bytes], bytes]) -> None:
    """Make other packets of those of clips, of the same sizes; all checksums agree."""
    dataset = Dataset.open(folder)
    for row in [rows] if isinstance(rows, int) else rows:
        index, crcs = dataset.index(row), []
        with open(dataset.shard_path(int(dataset.clips.shard[row])), "r+b") as file:
            for offset, size in zip(index.offset.tolist(), index.size.tolist(), strict=True):
                file.seek(int(dataset.clips.mp4_offset[row]) + offset)
                packet = change(file.read(size))
                assert len(packet) == size
                crcs.append(crc32c(packet))
                file.seek(-size, os.SEEK_CUR)
                file.write(packet)
        _edit_index(dataset, folder, row, crc32c=crcs)
    reseal(folder)


def without(dataset: Dataset, *rows: int) -> Dataset:
    """The same dataset, which has forgotten some clips."""
    return Dataset(**(dataset.__getstate__() | {"forgotten": np.array(rows, dtype=np.int64)}))


def upload(folder: Path, url: str) -> str:
    """Copy the files of a folder to a URL; returns that."""
    for path in folder.rglob("*"):
        if path.is_file():
            filesystem.put_file(path, f"{url}/{path.relative_to(folder)}")
    return url


def touch(folder: Path, *names: str) -> Path:
    """Make empty files; returns the folder."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return folder
