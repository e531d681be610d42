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
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support.clips import write
from tests.support.foreign import CLIP, encoded, write_tar
from tests.support.packed import packing_inline


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
    videos = tmp_path / "videos"
    videos.mkdir()
    recipes = {"a.mp4": CLIP, "b.mp4": replace(CLIP, codec="hevc"), "c.mp4": replace(CLIP, codec="av1")}
    for name, recipe in recipes.items():
        write(recipe, videos / name)
    if kind != "packed":
        recipes["d.mp4"] = replace(CLIP, frames=5)
        write_tar(videos / "t.tar", [("d.txt", b"text"), ("d.mp4", encoded(recipes["d.mp4"], tmp_path))])
    with packing_inline():
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
