"""Changed bytes are noticed, from any storage or cache: no wrong frame is ever delivered."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import streamvid as sv
from streamvid.fetch.encoded_batch import bytes_of
from streamvid.fetch.plan_samples import Checksum
from streamvid.video.packet_selection import select_packets
from tests.support.batches import assert_same
from tests.support.faulty_s3 import FaultyS3
from tests.support.packed import edit_index, pack_recipes, reseal, upload
from tools.clips import Recipe

RECIPES = {
    "avc.mp4": Recipe(frames=40, gop=10, b_frames=2, width=160, height=144),
    "hevc.mp4": Recipe(codec="hevc", frames=30, gop=10, width=160, height=144),
    "vp9.webm": Recipe(codec="vp9", container="webm", frames=30, gop=10, b_frames=0, width=160, height=144),
    "mjpeg.avi": Recipe(codec="mjpeg", container="avi", frames=12, gop=1, b_frames=0, width=160, height=144),
}
FRAMES = [3, 11]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_recipes(RECIPES, tmp_path_factory.mktemp("bytes"))


def flip(path: str | Path, bit: int) -> None:
    """Change a bit of a file, and nothing of what tells that it was changed."""
    status = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@functools.cache
def places(packed: Path) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """By file and key: the byte ranges of which nothing may change, as (start, size)."""
    ds = sv.ClipDataset(packed)
    clips, found = ds.dataset.clips, {}
    for row, key in enumerate(clips.key):
        found["packets", key] = [(int(clips.index_offset[row]), int(clips.index_size[row]))]
        index = ds.dataset.index(row)
        needed = select_packets(index, np.array(FRAMES))
        assert len(needed.numbers) < len(index), "a part of the clip"
        origin = int(clips.mp4_offset[row])
        found["tar", key] = [(origin + int(index.offset[n]), int(index.size[n])) for n in needed.numbers.tolist()]
    return found


@given(st.data())
def test_a_flipped_bit_of_a_slice_or_an_index_is_noticed(packed: Path, data: st.DataObject) -> None:
    extension, key = data.draw(st.sampled_from(sorted(places(packed))))
    start, size = data.draw(st.sampled_from(places(packed)[extension, key]))
    bit = 8 * start + data.draw(st.integers(0, 8 * size - 1))
    path = packed / f"shards/00000000.{extension}"
    flip(path, bit)
    try:
        ds = sv.ClipDataset(packed)
        with pytest.raises(sv.ClipError, match=key) as error:
            ds.get(key, frames=FRAMES)
        found = error.value
        assert (found.key, found.shard, found.row) == (key, "00000000", ds.dataset.row(key))
        if extension == "tar":
            assert found.suspect == "shard"
            assert found.offset is not None
            assert found.packet is not None
            size = int(ds.dataset.index(found.row).size[found.packet])
            assert found.offset <= bit // 8 < found.offset + size
        else:
            assert (found.suspect, found.packet, found.offset) == ("index", None, start)
    finally:
        flip(path, bit)


def options(checksum: Checksum | None, **more: Any) -> dict[str, Any]:
    return {
        "sampling": sv.Frames(FRAMES),
        "batch_size": 1,
        "shuffle": False,
        "device": "cpu",
        "checksum": checksum,
    } | more


@pytest.mark.parametrize("loader", ["stream", "get"])
def test_what_each_checksum_notices(copy: Path, loader: str) -> None:
    """Bytes that no wanted frame needs are compared with "sha256" alone, and nothing is with None."""
    ds = sv.ClipDataset(copy)
    row = ds.dataset.row("mjpeg")
    unneeded = int(ds.dataset.clips.mp4_offset[row] + ds.dataset.index(row).offset[0]) + 200
    needed = int(ds.dataset.clips.mp4_offset[row] + ds.dataset.index(row).offset[FRAMES[0]]) + 600
    tar = ds.dataset.shard_path(0)

    def read(checksum: Checksum | None) -> None:
        if loader == "get":
            sv.ClipDataset(copy, checksum=checksum).get("mjpeg", frames=FRAMES)
        else:
            with sv.StreamLoader(copy, **options(checksum), on_error="raise") as stream:
                list(stream)

    flip(tar, 8 * unneeded)
    read("crc32c")
    with pytest.raises(sv.ClipError, match="SHA-256") as error:
        read("sha256")
    assert (error.value.packet, error.value.key) == (None, "mjpeg")
    flip(tar, 8 * unneeded)
    flip(tar, 8 * needed)
    read(None)
    for checksum in ("crc32c", "sha256"):
        with pytest.raises(sv.ClipError, match="CRC-32C") as error:
            read(checksum)
        assert error.value.packet == FRAMES[0]


def test_sha256_reads_whole_clips_and_gives_the_same_frames(packed: Path) -> None:
    with sv.StreamLoader(packed, **options("crc32c")) as some, sv.StreamLoader(packed, **options("sha256")) as whole:
        assert_same(some, whole)
        sizes = sv.Dataset.open(packed).clips.mp4_size.sum()
        assert some.stats().bytes_read < sizes == whole.stats().bytes_read


def test_the_option_is_checked(packed: Path) -> None:
    with pytest.raises(sv.InputError, match="checksum must be one of 'crc32c', 'sha256', None; it is"):
        sv.ClipDataset(packed, checksum="crc32")  # type: ignore[arg-type]
    with pytest.raises(sv.InputError, match="checksum must be one of 'crc32c', 'sha256', None; it is"):
        sv.StreamLoader(packed, **options("md5"))  # type: ignore[arg-type]


def test_bytes_are_counted_without_sums_of_places() -> None:
    samples: Any = [SimpleNamespace(spans=np.array([[2**62 - 1, 2**62 + 9]]))] * 2
    assert bytes_of(samples) == 20
    assert bytes_of([]) == 0


def test_packets_without_a_checksum_are_delivered(copy: Path) -> None:
    """As of files that were indexed by their tables alone; then SHA-256 is not known either."""
    opened = sv.Dataset.open(copy)
    expected = sv.ClipDataset(copy).get("avc", frames=FRAMES)["video"]
    row = opened.row("avc")
    edit_index(copy, row, crc32c=np.full(len(opened.index(row)), -1))
    reseal(copy)
    assert torch.equal(sv.ClipDataset(copy).get("avc", frames=FRAMES)["video"], expected)


def test_a_copy_in_the_cache_that_is_damaged_is_fetched_again(packed: Path, tmp_path: Path) -> None:
    """Where nothing tells that a cached file was changed, its packets and indexes do."""
    upload(packed, "memory://bytes/set")
    given = options("crc32c", fetch="shards", cache_dir=tmp_path / "cache", on_error="raise")
    with sv.StreamLoader("memory://bytes/set", **given) as loader:
        expected = {batch["key"][0]: batch["video"] for batch in loader}
    assert set(expected) == {Path(name).stem for name in RECIPES}
    digests = {hashlib.sha256(path.read_bytes()).hexdigest(): path.suffix for path in (packed / "shards").iterdir()}
    for extension in (".tar", ".packets"):
        copies = {digests[path.name]: path for path in (tmp_path / "cache").iterdir() if path.name in digests}
        start, _ = places(packed)[extension[1:], "hevc"][0]
        flip(copies[extension], 8 * start + 3)
        with sv.StreamLoader("memory://bytes/set", **given) as loader:
            check(loader, expected)


def check(batches: Iterable[Any], expected: dict[str, torch.Tensor]) -> None:
    for batch in batches:
        assert torch.equal(batch["video"], expected[batch["key"][0]])


def test_a_flipped_bit_of_every_range_of_a_bucket_is_noticed(packed: Path, s3: FaultyS3, tmp_path: Path) -> None:
    """Of slices and of indexes; a range may have bytes between its packets, which are not wanted."""
    expected = {name: sv.ClipDataset(packed).get(name, frames=FRAMES)["video"] for name in ("avc", "hevc", "vp9")}
    s3.fault = lambda method, key, before: "flip" if key.endswith((".tar", ".packets")) else None
    indexes, noticed = sv.ClipDataset("s3://bucket/set"), 0
    for key in list(expected) * 3:
        with pytest.raises(sv.ClipError, match=f"'{key}'.* its frame index is damaged"):
            indexes.get(key, frames=FRAMES)
    s3.fault = lambda method, key, before: "flip" if key.endswith(".tar") else None
    for key, video in [*expected.items()] * 15:
        try:
            assert torch.equal(indexes.get(key, frames=FRAMES)["video"], video)
        except sv.ClipError:
            noticed += 1
    assert noticed > 30
    # A loader reads once more, past its cache, where another bit may be another one's.
    expected["mjpeg"] = sv.ClipDataset(packed).get("mjpeg", frames=FRAMES)["video"]
    noticed = n = 0
    while noticed < 2:
        n += 1
        assert n < 60
        chosen = options("crc32c", fetch="ranges", on_error="raise", cache_dir=tmp_path / str(n))
        try:
            with sv.StreamLoader("s3://bucket/set", **chosen) as loader:
                for batch in loader:
                    assert torch.equal(batch["video"][0], expected[batch["key"][0]])
        except sv.ClipError:
            noticed += 1
