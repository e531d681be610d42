"""Clips of a dataset whose packets or sample descriptions claim other pictures than its rows: memory stays bounded, and
they are bad."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

import streamvid as sv
from streamvid.errors import DatasetError
from streamvid.inspection.verify import verify
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support import bombs
from tests.support.bounded import outcomes
from tests.support.packed import change_packets, edit_parquet, reseal

CODECS = ("h264", "hevc", "av1", "vp9", "vp8", "mjpeg", "mpeg4")
SIDES = (16000, 8192)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bombs")
    for side in ("true", *SIDES):
        (folder / "in" / str(side)).mkdir(parents=True)
    bombs.source("h264", folder / "in/true", width=320, height=240, frames=10)
    for side, codec in itertools.product(SIDES, CODECS):
        bombs.source(codec, folder / "in" / str(side), frames=10)
    pack([folder / "in"], folder / "set", options=PackOptions("any"), progress=False)
    return folder / "set"


def load(path: str) -> None:
    """Load all its clips. Raises DatasetError, with the keys of those that are bad."""
    options = {"batch_size": 2, "sampling": sv.All(), "transform": sv.Transform(resize=(64, 64)), "num_threads": 2}
    bad: list[str] = []
    with sv.StreamLoader(path, **options, max_errors=100, quarantine=f"{path}.quarantine") as loader:  # type: ignore[arg-type]
        good = [key for batch in loader for key, valid in zip(batch["key"], batch["valid"], strict=True) if valid]
        bad = sorted({one.key for one in loader.stats().bad})
    raise DatasetError(f"good: {' '.join(good)}, bad: {' '.join(bad)}")


def check(path: str) -> None:
    """`streamvid verify --decode`."""
    found = verify(path, decode=True, workers=1, progress=False)
    raise DatasetError(" ".join(map(str, found.problems)))


def test_packets_that_claim_other_pictures_than_their_rows(whole: Path, tmp_path: Path, forked_python: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "set"))
    opened = sv.Dataset.open(path)
    (good,) = (key for key in map(opened.key, range(len(opened))) if "320" in key)
    rows = {row: opened.clips.codec[row] for row in range(len(opened)) if opened.key(row) != good}
    assert len(rows) == len(SIDES) * len(CODECS)
    for row, codec in rows.items():
        side = int(opened.clips.source[row].partition("/")[0])
        # Of H.264, HEVC and MPEG-4 the sample description has the parameter sets, of AV1 the packets in as many bits.
        if codec in ("h264", "hevc", "mpeg4"):
            _lie_in_row(path, opened, row, codec, side)
        elif codec == "av1":
            change_packets(path, row, lambda data: bombs.lie("av1", data, 512, 512))
        else:
            change_packets(path, row, lambda data, codec=codec, side=side: bombs.lie(codec, data, side, side))  # type: ignore[misc]
    reseal(path)
    keys = sorted(map(opened.key, rows))
    assert outcomes(forked_python, load, [str(path)]) == [f"good: {good}, bad: {' '.join(keys)}"]
    (told,) = outcomes(forked_python, check, [str(path)])
    assert all(key in told for key in keys), told


def _lie_in_row(path: Path, opened: sv.Dataset, row: int, codec: str, side: int) -> None:
    shard = int(opened.clips.shard[row])
    stsd = bytes(opened.clips.stsds[opened.clips.stsd_id[row]])
    edit_parquet(
        path / "shards" / f"{opened.shards[shard].name}.parquet", row - opened.rows(shard).start,
        stsd=bombs.lie_in_description(codec, stsd, side, side),
    )  # fmt: skip
