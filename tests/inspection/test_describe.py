"""The statistics of `info`, against plain counting; and the cost of a sampling, against slicing every clip."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.bitstream import annexb
from streamvid.cli.main import main
from streamvid.dataset.dataset import Dataset
from streamvid.inspection.describe import describe, histogram
from streamvid.inspection.sampling_cost import sampling_cost
from streamvid.packing.options import PackOptions
from streamvid.sampling.spread import Keyframes, Uniform
from streamvid.sampling.windows import Window
from tests.support.packed import NATURAL_ORDER, VIDEOS, pack_recipes
from tests.support.tables import dataset_of
from tools.clips import Recipe


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("info")
    rows = "".join(f"{name},{name[0]},{i / 2},t{i}\n" for i, name in enumerate(NATURAL_ORDER))
    (root / "list.csv").write_text("path,label,score,[red]text\x1b\n" + rows)
    return pack_recipes(VIDEOS, root, labels=root / "list.csv", shard_size=40_000, options=PackOptions("any"))


def parameter_sets(codec: str, stsd: bytes) -> bytes:
    return annexb.parameter_sets(codec, stsd).annex_b if codec in ("h264", "hevc") else b""


def test_numbers_of_a_dataset(packed: Path) -> None:
    info, dataset = describe(packed), Dataset.open(packed)
    packets = int(dataset.clips.packets.sum())
    assert info.labels == (("a", 2), ("b", 2), ("s", 1), ("t", 1))
    assert (info.labelled, info.classes) == (6, 4)
    assert info.codecs == (("h264", 3), ("hevc", 1), ("mjpeg", 1), ("vp9", 1))
    sizes = zip(dataset.clips.width.tolist(), dataset.clips.height.tolist(), strict=True)
    assert dict(info.sizes) == Counter(f"{width} x {height}" for width, height in sizes)
    clips = dataset.clips
    streams = {
        (clips.width[row], clips.height[row], clips.codec[row], parameter_sets(clips.codec[row], clips.stsds[stsd]))
        for row, stsd in enumerate(clips.stsd_id.tolist())
    }
    assert info.decoder_configurations == len(streams) == 6
    assert info.hidden == pytest.approx(1 - 48 / packets)
    assert info.hidden > 0
    assert dict(info.columns) == {"score": "double", "[red]text\x1b": "string"}
    assert sum(info.durations.counts) == 6
    assert info == describe(dataset)


def test_clips_that_a_gpu_does_not_decode_are_described() -> None:
    dataset = dataset_of([{}] * 6, width=[96, 96, 95, 96, 96, 96], height=[64, 60, 64, 64, 1080, 64],
                         frames=[9] * 6, packets=[9] * 6, random_access=[1] * 6)  # fmt: skip
    codes = np.array([0, 0, 0, 1, 2, 0], dtype=np.int32)
    columns = dataset.clips
    for name, names in (("codec", ("h264", "mjpeg", "vp9")), ("pix_fmt", ("yuv420p", "yuvj422p", "yuv420p"))):
        object.__setattr__(columns, name, type(columns.codec)(codes, names))
    object.__setattr__(columns, "traits", type(columns.codec)(codes // 2, ("", "lead-in,unordered")))
    gpu = describe(dataset).gpu
    reasons = {note.what.split()[0]: (note.clips, note.why) for note in gpu.on_cpu}
    assert sorted(reasons) == ["h264", "mjpeg", "vp9"]
    assert reasons["h264"][0] == reasons["mjpeg"][0] == reasons["vp9"][0] == 1
    assert "odd width" in reasons["h264"][1]
    assert "order" in reasons["vp9"][1]
    # 60 rows are coded as 64; VP9's 1080 need no cropping in DALI.
    assert [(note.what, note.clips) for note in gpu.slow] == [("h264 96 x 60", 1)]


def test_metadata_that_are_json_alone() -> None:
    assert describe(dataset_of([{"a": 1, "b": "x"}, {"a": 2.5}])).columns == (("a", "double"), ("b", "large_string"))
    assert describe(dataset_of([{}, {}])).columns == ()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_every_value_is_in_one_bar(values: list[float]) -> None:
    found = histogram(np.array(values))
    assert sum(found.counts) == len(values)
    assert len(found.edges) == len(found.counts) + 1
    assert (found.edges[0], found.edges[-1]) == (min(values), max(values))
    assert len(found.counts) <= 15
    if len(found.counts) > 1:
        assert all(a < b for a, b in zip(found.edges, found.edges[1:], strict=False))


def test_edges_and_counts_of_histograms() -> None:
    assert histogram(np.array([3.0, 3.0])).counts == (2,)
    even = histogram(np.array([1.0, 5.0, 9.0]))
    assert even.edges == tuple(range(1, 10))
    assert even.counts == (1, 0, 0, 0, 1, 0, 0, 1)
    far = histogram(np.array([0.5, 3.0, 40.0]))
    assert far.edges == (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
    assert far.counts == (1, 0, 1, 0, 0, 1)


def test_costs_counted_by_hand(tmp_path: Path) -> None:
    """20 frames, GOPs of 5 without B-frames: which packets a frame needs is plain."""
    dataset = Dataset.open(pack_recipes({"clip": Recipe(width=96, height=64, frames=20, gop=5, b_frames=0)}, tmp_path))
    index = dataset.index(0)
    assert np.flatnonzero(index.flags & 1).tolist() == [0, 5, 10, 15]
    assert not (index.flags & 2).any()
    centres = sampling_cost(dataset, Uniform(4))  # frames 2, 7, 12, 17: three packets each
    assert (centres.clips, centres.frames, centres.packets, centres.whole_packets) == (1, 4, 12, 20)
    assert centres.decoded_per_frame == 3
    keys = sampling_cost(dataset, Keyframes(4))
    assert (keys.frames, keys.packets) == (4, 4)
    start = sampling_cost(dataset, Window(3, stride=4, start="first"))  # frames 0, 4, 8: packets 0 to 8
    assert (start.frames, start.packets, start.reads) == (3, 9, 1)
    assert start.bytes == index.offset[8] + index.size[8] - index.offset[0]
    assert start.whole_bytes == dataset.clips.mp4_size[0]
    short = sampling_cost(dataset, Window(40, start="first"))  # repeats its last frame, which is decoded once
    assert (short.frames, short.packets) == (20, 20)
    black = sampling_cost(dataset, Window(40, start="first", pad="constant"))  # shows black frames behind it
    assert (black.frames, black.packets) == (20, 20)


def test_few_shards_are_read_and_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import streamvid.inspection.sampling_cost as cost

    dataset = Dataset.open(pack_recipes(VIDEOS, tmp_path, shard_size=1))
    monkeypatch.setattr(cost, "_SHARDS", 2)
    read: set[int] = set()
    indexes = dataset.indexes
    monkeypatch.setattr(dataset, "indexes", lambda rows: (read.update(rows), indexes(rows))[1])
    first = sampling_cost(dataset, Window(4))
    assert first.clips == len(read) == 2
    assert sampling_cost(dataset, Window(4)) == first
    monkeypatch.setattr(cost, "_SHARDS", 100)
    monkeypatch.setattr(cost, "_CLIPS", 3)
    assert sampling_cost(dataset, Window(4)).clips == 3


def test_the_command(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(packed), "--sampling", "Window(4, stride=2)"]) == 0
    out = capsys.readouterr().out
    for text in (
        "6 clips, 4 classes: a (2), b (2), s (1), t (1)", "score (double)", "[red]text", "non-displayed packets",
        "Window(4, stride=2); means over 6 clips", "whole clip", "per frame; whole clips: ",
    ):  # fmt: skip
        assert text in out
    assert "\x1b" not in out
    assert "#" * 40 in out


def test_json_for_scripts(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(packed), "--json", "--sampling", "Window(4, fps=7.5)"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["clips"] == 6
    assert found["codecs"][0] == ["h264", 3]
    assert sum(found["durations"]["counts"]) == 6
    wanted = sampling_cost(Dataset.open(packed), Window(4, fps=7.5))
    assert found["sampling"] == pytest.approx(asdict(wanted))
    assert main(["info", str(packed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sampling"] is None


def test_no_heavy_import(packed: Path) -> None:
    script = (
        "import sys; from streamvid.cli.main import main; main(['info', sys.argv[1], '--sampling', 'Window(4)'])\n"
        "assert not {'av', 'torch', 'nvidia.dali', 'webdataset'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", script, str(packed)], check=True, timeout=120, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "values",
    [
        [-5.0, -1.0, 3.0],
        [-1e308, 1e308],
        [0.0, 5e-324],
        [0.0, 1.7e308],
        [-4.0, -0.001],
        [0.0, 1e-310, 1e-300],
        [0, 1e15],
    ],
)
def test_any_finite_values_have_a_histogram(values: list[float]) -> None:
    """Scores and other metadata may be negative, or nearly too large for a float: log10 of them failed."""
    found = histogram(np.array(values))
    assert sum(found.counts) == len(values)
    assert (found.edges[0], found.edges[-1]) == (min(values), max(values))
