"""Datasets with damaged clips, and what loaders give of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamvid as sv
from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import VideoError
from streamvid.packing.options import PackOptions
from streamvid.video.packet_selection import EncodedSlice
from tests.support.batches import same
from tests.support.packed import pack_recipes, replace_packets, reseal
from tools.clips import Recipe

FRAMES = 12
Batch = Mapping[str, Any]


def make_dataset(folder: Path, codecs: Iterable[tuple[str, str]], *, shard_size: int = 100_000) -> Path:
    """Packed clips of one size, in several shards; codec and container of each."""
    recipes = {
        f"{n:02}": Recipe(
            codec=codec, container=container, width=160, height=144, frames=FRAMES, gop=1 if codec == "mjpeg" else 6,
            b_frames=0, seed=n,
        )
        for n, (codec, container) in enumerate(codecs)
    }  # fmt: skip
    return pack_recipes(recipes, folder, shard_size=shard_size, options=PackOptions("any"))


def with_zeroed(dataset: Path, target: Path, *rows: int, source: bool = True) -> Path:
    """A copy in which all packets of these clips are zeros.

    Args:
        dataset: the original.
        target: the copy.
        rows: of the clips.
        source: as if they had been zeros when they were packed: all checksums agree. Else the shard is damaged.
    """
    if not target.exists():
        shutil.copytree(dataset, target)
    if source:
        replace_packets(target, rows, bytes)
        return target
    opened = sv.Dataset.open(target)
    for row in rows:
        index = opened.index(row)
        with open(opened.shard_path(int(opened.clips.shard[row])), "r+b") as file:
            for offset, size in zip(index.offset.tolist(), index.size.tolist(), strict=True):
                file.seek(int(opened.clips.mp4_offset[row]) + offset)
                file.write(bytes(size))
    reseal(target)
    return target


def samples(batches: Iterable[Batch]) -> dict[tuple[int, int], dict[str, Any]]:
    """The valid samples of batches, by pass and row. No sample may come twice."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for batch in batches:
        for n in range(len(batch["clip"])):
            if batch["valid"][n]:
                place = int(batch["epoch"][n]), int(batch["clip"][n])
                assert place not in found, place
                found[place] = {name: value[n] for name, value in batch.items()}
    return found


def assert_good_ones(
    got: Mapping[tuple[int, int], Mapping[str, Any]], whole: Mapping[tuple[int, int], Mapping[str, Any]], bad: set[int]
) -> None:
    """Every good clip came once in each pass, with the frames of the dataset before it was damaged."""
    assert set(got) == {place for place in whole if place[1] not in bad}
    for place, sample in got.items():
        assert same(sample, whole[place]), place


def decode_here(slices: Sequence[EncodedSlice], **_: object) -> list[VideoError | None]:
    """In the place of `decode_isolated`, whose processes take a second to start."""
    found: list[VideoError | None] = []
    for one in slices:
        try:
            decode_with_pyav(one)
            found.append(None)
        except VideoError as error:
            found.append(error.with_traceback(None))
    return found
