"""A reader written from docs/format.md alone, with nothing but pyarrow and PyAV."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import pyarrow.parquet as pq
import pytest

from streamvid.packing.index import index
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.video import index_file
from tests.support.clips import hard_clips, write
from tests.support.foreign import CLIP, encoded, write_tar
from tests.support.packed import make_videos

HARD = hard_clips()


def clips(dataset: Path) -> Iterator[tuple[dict[str, Any], Path, Path]]:
    """The rows of a dataset, each with the file of its bytes and that of its frame index."""
    document = json.loads((dataset / "dataset.json").read_text())
    assert (document["format"], document["version"]) == ("streamvid", 2)
    for shard in document["shards"]:
        files = dataset / "shards" / shard["name"]
        for row in pq.read_table(files.with_suffix(".parquet")).to_pylist():
            whole = files.with_suffix(".tar")
            if "sha256" not in shard:  # a clip outside of shards
                whole = dataset / document["roots"][row["root"]] / row["file"]
                status = whole.stat()
                assert (status.st_size, status.st_mtime_ns) == (row["file_size"], row["file_mtime_ns"])
            yield row, whole, files.with_suffix(".packets")


def frames(row: dict[str, Any], file: Path, packets: Path) -> list[Any]:
    """All visible frames of a clip, in order."""
    with packets.open("rb") as stored, file.open("rb") as bytes_of:
        stored.seek(row["index_offset"] + 24 * row["index_blocks"])  # the directory is for those who want fewer frames
        index = [struct.unpack("<qqIII", stored.read(28)) for _ in range(row["packets"])]
        context = av.CodecContext.create(row["codec"].replace("av1", "libdav1d"), "r")
        context.extradata = configuration(row["stsd"])
        decoded: dict[int, Any] = {}
        for pts, offset, size, _, _ in index:
            bytes_of.seek(row["mp4_offset"] + offset)
            packet = av.Packet(bytes_of.read(size))
            packet.pts = pts
            decoded.update((frame.pts, frame) for frame in context.decode(packet))
        decoded.update((frame.pts, frame) for frame in context.decode(None))
    return [decoded[pts] for pts, _, _, _, flags in sorted(index) if not flags & 8]


def one_frame(row: dict[str, Any], file: Path, packets: Path, number: int) -> Any:
    """A visible frame by its number, by as few bytes as its blocks and packets have, with all checksums compared."""
    with packets.open("rb") as stored, file.open("rb") as bytes_of:
        stored.seek(row["index_offset"])
        head = stored.read(24 * row["index_blocks"])
        assert crc32c(head) == row["index_crc32c"]
        directory = list(struct.iter_unpack("<qIIII", head))
        block = before = 0
        while before + directory[block][2] <= number:
            before += directory[block][2]
            block += 1
        first = block - (directory[block][4] & 1)
        stored.seek(row["index_offset"] + len(head) + 28 * sum(entry[1] for entry in directory[:first]))
        index: list[tuple[int, ...]] = []
        for _, count, _, checksum, _ in directory[first : block + 1]:
            rows = stored.read(28 * count)
            assert crc32c(rows) == checksum
            index += struct.iter_unpack("<qqIII", rows)
        number -= sum(entry[2] for entry in directory[:first])
        wanted = sorted((pts, n) for n, (pts, _, _, _, flags) in enumerate(index) if not flags & 8)[number][1]
        accesses = [n for n, one in enumerate(index[: wanted + 1]) if one[4] & 1]
        start = ([0, 0, *accesses])[-2 if index[wanted][4] & 4 else -1]
        following = next((n for n in range(start + 1, wanted + 1) if index[n][4] & 1), wanted + 1)
        fed = []
        for n in range(start, wanted + 1):
            lost = start < n < following and index[n][4] & 4 and index[start][4] & 1
            if n == wanted or not (index[n][4] & 2 or lost):
                fed.append(n)
        rank = {n: place for place, n in enumerate(sorted(fed, key=lambda n: (index[n][0], n)))}
        context = av.CodecContext.create(row["codec"].replace("av1", "libdav1d"), "r")
        context.extradata = configuration(row["stsd"])
        context.thread_count = 1
        found = []
        for n in fed:
            _, offset, size, checksum, flags = index[n]
            bytes_of.seek(row["mp4_offset"] + offset)
            data = bytes_of.read(size)
            assert not flags & 16 or crc32c(data) == checksum
            packet = av.Packet(data)
            packet.pts = rank[n]
            found += context.decode(packet)
        found += context.decode(None)
    return next(frame for frame in found if frame.pts == rank[wanted])


def crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state = TABLE[(state ^ byte) & 0xFF] ^ state >> 8
    return state ^ 0xFFFFFFFF


def _table() -> Iterator[int]:
    for state in range(256):
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
        yield state


TABLE = list(_table())


def configuration(stsd: bytes) -> bytes:
    """The codec's configuration, out of the box that follows the fixed fields of the sample entry."""
    at = 16 + 86
    while at < len(stsd):
        size, kind = struct.unpack_from(">I4s", stsd, at)
        if kind in (b"avcC", b"hvcC", b"av1C"):
            return stsd[at + 8 : at + size]
        at += size
    return b""


@pytest.mark.parametrize("kind", ["packed", "indexed", "fast"])
def test_a_reader_of_one_page(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))
    recipes = {"a.mp4": CLIP, "b.mp4": replace(CLIP, codec="hevc"), "c.mp4": replace(CLIP, codec="av1")}
    videos = make_videos(tmp_path / "videos", recipes)
    if kind != "packed":
        recipes["d.mp4"] = replace(CLIP, frames=5)
        write_tar(videos / "t.tar", [("d.txt", b"text"), ("d.mp4", encoded(recipes["d.mp4"], tmp_path))])
    if kind == "packed":
        pack(videos, tmp_path / "set", options=PackOptions("any"), progress=False)
    else:
        index(videos, tmp_path / "set", fast=kind == "fast", progress=False)
    found = {row["key"]: frames(row, *files) for row, *files in clips(tmp_path / "set")}
    assert found.keys() == {name[0] for name in recipes}
    for name, recipe in recipes.items():
        with av.open(str(write(recipe, tmp_path / name))) as container:
            pictures = [frame.to_ndarray() for frame in container.decode(video=0)]
        assert len(found[name[0]]) == len(pictures)
        assert all((frame.to_ndarray() == one).all() for frame, one in zip(found[name[0]], pictures, strict=True))


@pytest.mark.parametrize("name", ["hevc_open_gop", "h264_trimmed", "vp8_hidden_frames", "av1", "cut"])
def test_single_frames_by_the_rules_of_the_page(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the whole clip decodes to them, whatever is left out; with blocks so short that there are several."""
    monkeypatch.setattr(index_file, "BLOCK_PACKETS", 9)
    recipe = {"cut": HARD["hevc_open_gop"], "av1": replace(CLIP, codec="av1", frames=40, gop=10)}.get(name) or HARD[
        name
    ]
    write(recipe, tmp_path / f"a.{recipe.container}")
    cutting = FixedLength(11, "frames") if name == "cut" else None
    options = PackOptions("any", cutting=cutting)
    pack(tmp_path / f"a.{recipe.container}", tmp_path / "set", options=options, progress=False)
    blocks = 0
    for row, *files in clips(tmp_path / "set"):
        blocks += row["index_blocks"]
        whole = frames(row, *files)
        assert len(whole) == row["frames"]
        for number in {0, 1, row["frames"] // 2, row["frames"] - 2, row["frames"] - 1} & set(range(len(whole))):
            assert (one_frame(row, *files, number).to_ndarray() == whole[number].to_ndarray()).all(), number
    assert blocks > 1
