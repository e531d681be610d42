"""A dataset of which some clips are damaged, one for every codec in every way that we know; for tests, and for
`python -m tools.bench.faults`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import streamvid as sv
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support.packed import edit_parquet, replace_packets, reseal
from tools.clips import Recipe, write
from tools.recipes import Codec, Container

CODECS: Final[dict[Codec, Container]] = {
    "h264": "mp4", "hevc": "mp4", "vp9": "webm", "vp8": "webm", "av1": "mp4", "mpeg4": "mp4", "mjpeg": "avi",
}  # fmt: skip
"""The codecs of the clips, and their containers."""
FRAMES: Final = 12
"""Frames of a clip."""
IN_PLACE: Final = ("source", "vanished")
STAND_INS: Final = ("hangs", "crashes")
WAYS: Final = {
    "zeros": "packets of zeros, packed so: all checksums agree",
    "bit": "a bit of a packet flipped in the shard",
    "sector": "512 bytes of the shard zeroed",
    "index": "64 bytes of its frame index overwritten",
    "offset": "a row that names another place in the shard",
    "description": "a row whose sample description is nonsense",
    "source": "a file in place, of which a bit has flipped, at its old size and time",
    "vanished": "a file in place that is gone",
    "hangs": "a stand-in: its decoder hangs",
    "crashes": "a stand-in: its decoder crashes",
}
SHARD_BYTES: Final = 60_000
DIFFERENT: Final = 5
"""Clips of a codec that are no copies."""


@dataclass(frozen=True)
class Corpus:
    """Two datasets of the same clips.

    Attributes:
        whole, damaged: their folders.
        bad: rows of the damaged clips, and in which of `WAYS` each is.
        stand_ins: keys of those clips for which the decoder is to hang or crash, and which.
    """

    whole: Path
    damaged: Path
    bad: Mapping[int, str]
    stand_ins: Mapping[str, str]


def make(
    folder: Path,
    clips: int,
    *,
    codecs: Sequence[Codec] = tuple(CODECS),
    ways: Sequence[str] = tuple(WAYS),
    seed: int = 0,
) -> Corpus:
    """Make a corpus: of every codec one clip is damaged in each way; a stand-in takes one clip in all.

    Args:
        folder: an empty one.
        clips: how many. One of eight stays in place, if there are ways for such; the others are in shards.
        codecs, ways: of `CODECS` and `WAYS`.
        seed: where damage is done.
    """
    whole, damaged, rng = folder / "whole", folder / "damaged", np.random.default_rng(seed)
    in_place = 0
    if set(ways) & set(IN_PLACE):
        in_place = max(len(IN_PLACE) * len(codecs), clips // 8)
        _write_clips(whole / "videos", range(in_place), codecs)
        sv.index([whole / "videos"], whole, workers=1, progress=False)
    _write_clips(folder / "videos", range(in_place, clips), codecs)
    options = PackOptions("any")
    pack(
        [folder / "videos"], whole, shard_size=SHARD_BYTES, options=options, workers=1, append=in_place > 0,
        progress=False,
    )  # fmt: skip
    opened = sv.Dataset.open(whole)
    shutil.copytree(whole, damaged)  # with the times of files in place, which rows name
    bad: dict[int, str] = {}
    for way in ways:
        for codec in codecs[-1:] if way in STAND_INS else codecs:
            free = [
                row
                for row, (name, shard) in enumerate(zip(opened.clips.codec, opened.clips.shard.tolist(), strict=True))
                if name == codec and row not in bad and (way in IN_PLACE) != opened.shards[shard].has_tar
            ]
            row = int(rng.choice(free))
            bad[row] = way
            if way in CHANGES:
                CHANGES[way](damaged, opened, row, rng)
    reseal(damaged, tars=False)
    return Corpus(whole, damaged, bad, {opened.key(row): way for row, way in bad.items() if way in STAND_INS})


def _write_clips(folder: Path, numbers: Iterable[int], codecs: Sequence[Codec]) -> None:
    """Clips of all codecs in turn: copies of a few different ones."""
    folder.mkdir(parents=True)
    for n in numbers:
        codec, seed = codecs[n % len(codecs)], n // len(codecs) % DIFFERENT
        path = folder / f"{n:04}-{codec}.{CODECS[codec]}"
        same = folder / f"{n - DIFFERENT * len(codecs):04}-{codec}.{CODECS[codec]}"
        if same.exists():
            shutil.copyfile(same, path)
            continue
        gop = 1 if codec == "mjpeg" else FRAMES // 2
        write(Recipe(codec, CODECS[codec], width=160, height=144, frames=FRAMES, gop=gop, b_frames=0, seed=seed), path)


def _zeros(damaged: Path, opened: sv.Dataset, row: int, rng: np.random.Generator) -> None:
    replace_packets(damaged, row, bytes)


def _bit(damaged: Path, opened: sv.Dataset, row: int, rng: np.random.Generator) -> None:
    at = _byte(opened, row, rng)
    _overwrite(_inside(damaged, opened.location(row)), at, lambda old: bytes([old[0] ^ 1 << int(rng.integers(8))]), 1)


def _sector(damaged: Path, opened: sv.Dataset, row: int, rng: np.random.Generator) -> None:
    at = _byte(opened, row, rng)
    _overwrite(_inside(damaged, opened.location(row)), at - at % 512, lambda old: bytes(512), 512)


def _index(damaged: Path, opened: sv.Dataset, row: int, rng: np.random.Generator) -> None:
    path = opened.shard_path(int(opened.clips.shard[row]), "packets")
    at = int(opened.clips.index_offset[row]) + 24
    _overwrite(_inside(damaged, path), at, lambda old: rng.bytes(64), 64)


def _offset(damaged: Path, opened: sv.Dataset, row: int, rng: np.random.Generator) -> None:
    _edit_row(damaged, opened, row, mp4_offset=int(opened.clips.mp4_offset[row]) + 512)


def _description(damaged: Path, opened: sv.Dataset, row: int, rng: np.random.Generator) -> None:
    stsd = bytes(opened.clips.stsds[opened.clips.stsd_id[row]])
    _edit_row(damaged, opened, row, stsd=stsd[:8] + b"\xff" * (len(stsd) - 8))


def _source(damaged: Path, opened: sv.Dataset, row: int, rng: np.random.Generator) -> None:
    path = _inside(damaged, opened.location(row))
    before = path.stat()
    _bit(damaged, opened, row, rng)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _vanished(damaged: Path, opened: sv.Dataset, row: int, rng: np.random.Generator) -> None:
    _inside(damaged, opened.location(row)).unlink()


CHANGES: Final[Mapping[str, Callable[[Path, sv.Dataset, int, np.random.Generator], None]]] = {
    "zeros": _zeros, "bit": _bit, "sector": _sector, "index": _index, "offset": _offset, "description": _description,
    "source": _source, "vanished": _vanished,
}  # fmt: skip
"""Functions that damage a dataset in each way; arguments: its folder, the undamaged one, row, and place."""


def _byte(opened: sv.Dataset, row: int, rng: np.random.Generator) -> int:
    """Where in its file some byte of a clip's packets lies."""
    index = opened.index(row)
    packet = int(rng.integers(len(index.size)))
    return int(opened.clips.mp4_offset[row] + index.offset[packet] + rng.integers(index.size[packet]))


def _inside(damaged: Path, path: str) -> Path:
    """The file of the damaged dataset for one of the whole one, which lies beside it."""
    return damaged / Path(path).relative_to(damaged.with_name("whole"))


def _overwrite(path: Path, at: int, new: Callable[[bytes], bytes], size: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        data = new(file.read(size))
        file.seek(at)
        file.write(data)


def _edit_row(damaged: Path, opened: sv.Dataset, row: int, **values: object) -> None:
    shard = int(opened.clips.shard[row])
    edit_parquet(_inside(damaged, opened.shard_path(shard, "parquet")), row - opened.rows(shard).start, **values)
