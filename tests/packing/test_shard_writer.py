"""A shard's files: what others make of them, and what docs/format.md says of their bytes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamvid.checksum import crc32c
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import Manifest
from streamvid.dataset.schema import SCHEMA
from streamvid.mp4.sample_entry import sample_description
from streamvid.packing.options import PreparedClip
from streamvid.packing.shard_writer import ShardWriter
from streamvid.video.remux import store_clip
from tests.support.packed import NATURAL_ORDER, VIDEOS, pack_recipes
from tests.support.tables import metadata_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of one shard."""
    columns = {"label": range(len(VIDEOS)), "text": [f"é{n}" for n in range(len(VIDEOS))]}
    recipes = {name: VIDEOS[name] for name in NATURAL_ORDER}
    return pack_recipes(recipes, tmp_path_factory.mktemp("shards"), columns)


def members(folder: Path) -> list[tuple[str, bytes, tarfile.TarInfo]]:
    with tarfile.open(folder / "shards/00000000.tar", "r:") as tar:
        return [(info.name, tar.extractfile(info).read(), info) for info in tar]  # type: ignore[union-attr]


def test_the_tar_is_plain_ustar(folder: Path) -> None:
    data = (folder / "shards/00000000.tar").read_bytes()
    found = members(folder)
    assert [name.partition(".")[2] for name, _, _ in found] == ["mp4", "json"] * 6
    for name, content, info in found:
        header = data[info.offset : info.offset + 512]
        assert header[257:265] == b"ustar\x0000"
        assert header[156:157] == b"0"
        assert info.offset_data == info.offset + 512
        assert info.mtime == 0
        assert data[info.offset_data : info.offset_data + info.size] == content
        assert name.partition(".")[0] == found[found.index((name, content, info)) // 2 * 2][0].partition(".")[0]
    content = sum(512 + -(-info.size // 512) * 512 for _, _, info in found)
    assert len(data) == -(-(content + 1024) // 10240) * 10240, "two zero blocks, padded to whole records"


def test_the_idx(folder: Path) -> None:
    lines = (folder / "shards/00000000.idx").read_text().split("\n")
    found = members(folder)
    assert lines[0] == "v1.2 6"
    assert lines[-1] == ""
    for row, line in enumerate(lines[1:-1]):
        fields = line.split(" ")
        expected = [
            text
            for name, _, info in found[2 * row : 2 * row + 2]
            for text in (name.partition(".")[2], str(info.offset_data), str(info.size), name)
        ]
        assert fields == expected


def test_the_parquet_says_what_the_tar_holds(folder: Path) -> None:
    file = pq.ParquetFile(folder / "shards/00000000.parquet")
    assert file.schema_arrow.equals(SCHEMA.append(pa.field("meta_text", pa.string())))
    assert file.metadata.num_row_groups == 1
    assert "pandas" not in str(file.schema_arrow.metadata)
    found = members(folder)
    packets = (folder / "shards/00000000.packets").read_bytes()
    for row, values in enumerate(file.read().to_pylist()):
        (name, mp4, video), (_, text, meta) = found[2 * row : 2 * row + 2]
        assert name == f"{values['key']}.mp4"
        for kind, info in (("mp4", video), ("json", meta)):
            assert (values[f"{kind}_offset"], values[f"{kind}_size"]) == (info.offset_data, info.size)
        assert json.loads(text) == {
            "key": values["key"], "source": NATURAL_ORDER[row], "label": row, **json.loads(values["meta"]),
        }  # fmt: skip
        assert json.loads(values["meta"]) == {"text": f"é{row}"}
        rows = packets[values["index_offset"] + 24 :][: 28 * values["packets"]]
        table = np.frombuffer(rows, "<i8,<i8,<u4,<u4,<u4")
        for offset, size, crc in table[["f1", "f2", "f3"]].tolist():
            assert crc32c(mp4[offset : offset + size]) == crc
        assert values["index_size"] == 24 + len(rows)
        assert values["index_blocks"] == 1
        assert crc32c(packets[values["index_offset"] :][:24]) == values["index_crc32c"]
        assert values["stsd"] == sample_description(mp4)
        assert values["frames"] == int((table["f4"] & 8 == 0).sum())
        assert values["random_access"] == int((table["f4"] & 1 != 0).sum())
        assert (table["f4"] & 16 != 0).all()
    assert len(packets) == values["index_offset"] + values["index_size"]


def test_pyav_decodes_the_mp4s(folder: Path) -> None:
    rows = Dataset.open(folder).clips
    videos = [content for name, content, _ in members(folder) if name.endswith(".mp4")]
    for row, content in enumerate(videos):
        with av.open(io.BytesIO(content)) as container:
            assert len(container.streams) == 1
            shown = list(container.decode(video=0))
        assert (shown[0].width, shown[0].height) == (rows.width[row], rows.height[row])
        if "slow" not in rows.source[row]:  # its edit list hides packets that a player decodes and drops
            assert len(shown) == rows.frames[row]


def test_webdataset_reads_them(folder: Path) -> None:
    import webdataset as wds

    samples = list(wds.WebDataset(str(folder / "shards/00000000.tar"), shardshuffle=False))
    dataset = Dataset.open(folder)
    assert [sample["__key__"] for sample in samples] == dataset.clips.key
    for i, sample in enumerate(samples):
        assert json.loads(sample["json"])["label"] == i
        assert len(sample["mp4"]) == dataset.clips.mp4_size[i]


def test_packing_imports_little(folder: Path, tmp_path: Path) -> None:
    """PyTorch alone takes longer to import than to pack a few small clips; and what finds videos, which worker
    processes do not, a fourth of the time in which these start."""
    scripts = (
        "from streamvid.cli.main import main; assert not main(['reshard', *sys.argv[1:]])\n"
        "left = {'webdataset', 'torch', 'nvidia.dali', 'ray'}",
        "import streamvid.packing.process_source\nleft = {'natsort', 'pyarrow.json', 'streamvid.packing.inputs'}",
    )
    for script in scripts:
        command = [sys.executable, "-c", f"import sys\n{script}\nassert not left & set(sys.modules)"]
        subprocess.run([*command, str(folder), str(tmp_path / "resharded")], check=True, timeout=120)


def test_dali_reads_them_by_our_index(folder: Path) -> None:
    fn = pytest.importorskip("nvidia.dali.fn")
    from nvidia.dali import pipeline_def, types

    @pipeline_def(batch_size=6, num_threads=1, device_id=None)
    def read() -> object:
        videos, texts = fn.readers.webdataset(
            paths=[str(folder / "shards/00000000.tar")],
            index_paths=[str(folder / "shards/00000000.idx")],
            ext=["mp4", "json"],
            dtypes=[types.UINT8, types.UINT8],
            missing_component_behavior="error",
        )
        return videos, texts

    pipeline = read()
    videos, texts = pipeline.run()
    dataset = Dataset.open(folder)
    by_name = {name: content for name, content, _ in members(folder)}
    for i, key in enumerate(dataset.clips.key):
        assert videos.at(i).tobytes() == by_name[f"{key}.mp4"]
        assert json.loads(texts.at(i).tobytes())["key"] == key


def test_packets_lie_where_the_index_says(folder: Path) -> None:
    dataset = Dataset.open(folder)
    tar = (folder / "shards/00000000.tar").read_bytes()
    row = NATURAL_ORDER.index("top.avi")
    start = int(dataset.clips.mp4_offset[row])
    index = dataset.index(row)
    for offset, size in zip(index.offset.tolist(), index.size.tolist(), strict=True):
        packet = tar[start + offset : start + offset + size]
        assert packet[:2] == b"\xff\xd8"  # each packet of an MJPEG track is a JPEG
        assert packet.rstrip(b"\0")[-2:] == b"\xff\xd9"


def test_a_writer_knows_the_size_beforehand(folder: Path, tmp_path: Path) -> None:
    source = folder.parent / "videos/slow.mp4"
    (tmp_path / "clip").mkdir()
    clip = store_clip(source, tmp_path / "clip")
    with closing(ShardWriter(3, tmp_path, metadata=metadata_of(pa.table({})))) as writer:
        sizes = []
        for n in range(5):
            one = f"k{n}", "slow.mp4", PreparedClip(clip, "", (), {})
            sizes.append(writer.size_with(*one))
            writer.add(*one)
        entry = writer.commit(str(tmp_path / "ds"))
    assert entry.bytes == sizes[-1] == (tmp_path / "ds/shards/00000003.tar").stat().st_size
    assert sizes == sorted(sizes)
    assert (entry.name, entry.clips, entry.frames) == ("00000003", 5, 35)
    assert not list(tmp_path.glob("*.tar"))


def test_nothing_appears_before_commit(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    (tmp_path / "work").mkdir()
    clip = store_clip(folder.parent / "videos/slow.mp4", tmp_path / "clip")
    with closing(ShardWriter(0, tmp_path / "work", metadata=metadata_of(pa.table({})))) as writer:
        writer.add("k", "slow.mp4", PreparedClip(clip, "", (), {}))
        assert not (tmp_path / "ds").exists()


def test_the_longest_key_is_still_one_header(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    clip = store_clip(folder.parent / "videos/slow.mp4", tmp_path / "clip")
    with closing(ShardWriter(0, tmp_path, metadata=metadata_of(pa.table({"a": [1]})))) as writer:
        writer.add("k" * 80, "s", PreparedClip(clip, "", (0,), {}, 1))
        writer.commit(str(tmp_path / "ds"))
    with tarfile.open(tmp_path / "ds/shards/00000000.tar") as tar:
        assert tar.getnames()[1] == "k" * 80 + ".json"


def test_dataset_json_survives_a_round_trip(folder: Path) -> None:
    data = (folder / "dataset.json").read_bytes()
    manifest = Manifest.from_json(data, path="dataset.json")
    assert manifest.to_json() == data
    assert json.loads(data)["bytes"] == (folder / "shards/00000000.tar").stat().st_size
