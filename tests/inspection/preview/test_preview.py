"""`preview`: the contents of strips, bad clips, and the size of pages."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import streamvid as sv
from streamvid.dataset import frame_indexes
from streamvid.dataset.columns import Columns
from streamvid.decode import isolated
from streamvid.errors import DatasetError, InputError, StreamvidError, VideoError
from streamvid.fetch.plan_samples import SamplePlan
from streamvid.inspection.preview import preview as module
from streamvid.inspection.preview import table as table_module
from streamvid.inspection.preview.charts import dataset_charts, svg
from streamvid.inspection.preview.pictures import MOST_PICTURES, Strip
from streamvid.inspection.preview.preview import PreviewReport, draw_strips, preview
from streamvid.loader.sample_renderer import SampleRenderer
from streamvid.loader.sample_set import SampleSet
from streamvid.packing.index import index
from streamvid.packing.options import PackOptions
from streamvid.sampling.base import FrameSampler
from streamvid.transform.spec import Transform
from streamvid.video import index_file
from tests.dataset.test_forgotten import forget
from tests.support import hostile
from tests.support.bad_clips import make_dataset, with_zeroed
from tests.support.packed import make_videos, pack_recipes, upload
from tests.support.previews import hostile_dataset, multiplied
from tests.support.tables import dataset_of
from tools.clips import Recipe

CLIP = Recipe(width=96, height=64, frames=12, gop=6, b_frames=2)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clips in several shards."""
    return make_dataset(
        tmp_path_factory.mktemp("preview"), [("h264", "mp4")] * 3 + [("vp9", "mkv")] * 3, shard_size=20_000
    )


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not of bad clips: a decoder's process takes half a second to start."""
    monkeypatch.setattr(module, "SampleRenderer", lambda spec, isolate: SampleRenderer(spec))


@pytest.fixture(scope="module")
def hostile_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_dataset(tmp_path_factory.mktemp("hostile"))


def strips(
    dataset: Path, sampling: FrameSampler, transform: Transform | sv.Views | None = None, seed: int = 0
) -> list[Strip]:
    samples = SampleSet.open(dataset, sampling=sampling, transform=transform, columns=(), seed=seed)
    return list(draw_strips(samples, samples.pools.pools[0].sample_ids.tolist()))


def decoded(jpeg: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), dtype=float)


def data_of(page: Path) -> dict[str, dict[str, object]]:
    """The columns that the page's script reads, by name."""
    text = page.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return {column["name"]: column for column in json.loads(data)["columns"]}


def test_a_strip_for_each_view(packed: Path, tmp_path: Path, in_this_process: None) -> None:
    """Of each clip the views in their order, named, and counted as one."""
    views = sv.Views(low=Transform(crop=16), high=Transform(crop=32), share=("crop",))
    drawn = strips(packed, sv.Uniform(2), views)
    assert [(strip.row, strip.facts) for strip in drawn] == [
        (row, (name,)) for row in range(6) for name in ("low", "high")
    ]
    assert [strip.pictures[0].width for strip in drawn[:2]] == [16, 32]
    report = preview(packed, tmp_path / "page.html", sampling=sv.Uniform(2), transform=views, clips=4)
    assert (report.strips, report.clips, report.bad, report.full) == (4, 6, 0, False)
    page = (tmp_path / "page.html").read_text()
    assert page.count('<article class="clip">') == 8


@pytest.mark.parametrize(
    ("sampling", "transform"),
    [
        (sv.Window(6, fps=10), None),
        (sv.Window(20, pad="constant"), None),
        (sv.RandomFrames(3), Transform(resize=64, crop=48, horizontal_flip=0.5, mean=0.4, std=0.2, dtype="float16")),
        (sv.TiledWindows(5, pad="reflect_101"), Transform(resize=(32, 48), layout="TCHW", dtype="uint8")),
    ],
)
def test_strips_are_what_a_loader_gives(packed: Path, sampling: FrameSampler, transform: Transform | None) -> None:
    clips = sv.ClipDataset(packed, sampling=sampling, transform=transform, seed=3)
    drawn = strips(packed, sampling, transform, seed=3)
    assert len(drawn) == len(clips)
    for number, strip in enumerate(drawn):
        sample = clips[number]
        mean, std = (0.4, 0.2) if transform is not None and transform.mean else (0, 1 / 255)
        layout = "THWC" if transform is None else transform.layout
        video = sample["video"].double().permute([layout.index(axis) for axis in "THWC"]).numpy() * std + mean
        assert strip.title == sample["key"]
        shown = (
            np.linspace(0, len(video) - 1, MOST_PICTURES).round().astype(int) if len(video) > 16 else range(len(video))
        )
        assert strip.positions == len(video)
        for picture, place in zip(strip.pictures, shown, strict=True):
            assert picture.real == bool(sample["mask"][place])
            assert picture.seconds == (None if sample["pts"][place] < 0 else float(sample["pts"][place]))
            wanted = Image.fromarray(np.clip(np.rint(video[place] * 255), 0, 255).astype(np.uint8))
            wanted = wanted.resize((picture.width, picture.height), Image.Resampling.BOX)
            assert np.abs(decoded(picture.jpeg) - np.asarray(wanted)).mean() < 6


def test_long_samples_decode_no_more_than_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(codec="mjpeg", container="avi", width=64, height=64, frames=100, gop=1, b_frames=0)
    pack_recipes({"long": recipe}, tmp_path, options=PackOptions("any"))
    read: list[SamplePlan] = []
    whole = module.read_slices
    monkeypatch.setattr(module, "read_slices", lambda *a, **k: (read.extend(a[1]), whole(*a, **k))[1])
    (strip,) = strips(tmp_path / "set", sv.All())
    assert len(strip.pictures) == 16
    assert strip.positions == 100
    assert (strip.pictures[0].seconds, strip.pictures[-1].seconds) == (0.0, pytest.approx(99 / 30, abs=1e-3))
    assert sum(len(one.packets.sizes) for one in read) == 16


def test_a_strip_of_a_long_clip_needs_only_its_own_part_of_the_frame_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: None
) -> None:
    recipe = Recipe(codec="mjpeg", container="avi", width=64, height=64, frames=100, gop=1, b_frames=0)
    monkeypatch.setattr(index_file, "BLOCK_PACKETS", 20)
    monkeypatch.setattr(frame_indexes, "WHOLE_BYTES", 200)
    pack_recipes({"long": recipe}, tmp_path, options=PackOptions("any"))
    with open(tmp_path / "set/shards/00000000.packets", "r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"damaged")
    for frame in (0, 50, 99):
        (strip,) = strips(tmp_path / "set", sv.Frames([frame]))
        assert (len(strip.pictures), bool(strip.bad)) == ((0, True) if frame == 99 else (1, False))


def test_bad_clips_are_shown_as_bad(packed: Path, tmp_path: Path) -> None:
    """Damaged before and after packing, and a shard that has just gone: the others are drawn."""
    damaged = with_zeroed(packed, tmp_path / "a", 1)
    damaged = with_zeroed(damaged, tmp_path / "b", 4, source=False)
    dataset = sv.Dataset.open(damaged)
    Path(dataset.shard_path(int(dataset.clips.shard[0]))).unlink()
    lost = set(np.flatnonzero(dataset.clips.shard == dataset.clips.shard[0]).tolist())
    report = preview(dataset, tmp_path / "page.html", sampling=sv.Window(4))
    text = (tmp_path / "page.html").read_text()
    assert report.bad == len(lost | {1, 4})
    assert report.strips == 6
    cards = text.split('<article class="clip">')[1:]
    for row, card in enumerate(cards):
        assert ("bad clip:" in card) == (row in lost | {1, 4})
        assert ("<img" in card) == (row not in lost | {1, 4})
    assert "CRC-32C" in cards[4]
    assert "00000000.tar" in cards[0]
    assert f"{report.bad} clips of these are bad: 00, 01, " in text


def test_a_clip_that_crashes_the_decoder_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a process, and no other clip."""
    dataset = make_dataset(tmp_path, [("h264", "mp4")] * 10)
    monkeypatch.setattr(isolated, "_decode_into", hostile.decode_into)
    report = preview(dataset, tmp_path / "page.html", sampling=sv.Uniform(2))
    assert (report.strips, report.bad) == (10, 1)
    cards = (tmp_path / "page.html").read_text().split('<article class="clip">')[1:]
    assert [number for number, card in enumerate(cards) if "SIGSEGV" in card] == [8]


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("after", ["when it is built", "when it runs"])
def test_a_transform_that_fails_makes_no_clip_bad(packed: Path, tmp_path: Path, after: str) -> None:
    from nvidia.dali import fn

    def fails(frames: Any) -> Any:
        if after == "when it runs":
            return fn.crop(frames, crop=(1000, 1000))
        raise ValueError("not this way")

    words = "the transform fails on clip .*out of bounds" if after == "when it runs" else "not this way"
    with pytest.raises((StreamvidError, ValueError), match=words):
        preview(packed, tmp_path / "page.html", sampling=sv.Uniform(2), transform=sv.Transform(dali=fails))
    dataset = sv.ClipDataset(packed, sampling=sv.Uniform(2), transform=sv.Transform(dali=fails))
    with pytest.raises((StreamvidError, ValueError), match=words) as caught:
        dataset[0]
    assert not isinstance(caught.value, VideoError)


@pytest.mark.parametrize("transform", [sv.Transform(crop=500), sv.Views(a=sv.Transform(), b=sv.Transform(crop=500))])
def test_a_crop_larger_than_the_frames_is_refused(
    packed: Path, tmp_path: Path, transform: Transform | sv.Views
) -> None:
    with pytest.raises(InputError, match=r"the crop of 500x500 .* is larger than the frames of .* clips?, such as"):
        preview(packed, tmp_path / "page.html", sampling=sv.Uniform(2), transform=transform)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.usefixtures("in_this_process")
def test_clips_that_the_dataset_does_not_deliver_are_nowhere(packed: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(packed, tmp_path / "set"))
    dataset = sv.Dataset.open(copy)
    forget(copy, [dataset.place_in_shard(2)])
    report = preview(copy, tmp_path / "page.html", sampling=sv.Uniform(2))
    assert (report.clips, report.strips) == (5, 5)
    keys = data_of(tmp_path / "page.html")["key"]["values"]
    assert keys == [dataset.key(row) for row in range(6) if row != 2]
    text = (tmp_path / "page.html").read_text()
    assert "5 clips, " in text
    assert f"<bdi>{dataset.key(2)}</bdi>" not in text
    assert f"{dataset.key(2)}.mp4" not in text


@pytest.mark.usefixtures("in_this_process")
def test_where_clips_and_seed(packed: Path, tmp_path: Path) -> None:
    def drawn(**options: object) -> tuple[PreviewReport, list[str]]:
        report = preview(packed, tmp_path / "page.html", sampling=sv.Uniform(2), **options)  # type: ignore[arg-type]
        return report, re.findall("<h3><bdi>(.*?)</bdi>", (tmp_path / "page.html").read_text())

    report, keys = drawn(where="codec == 'vp9'")
    assert (report.clips, report.strips, len(keys)) == (3, 3, 3)
    assert data_of(tmp_path / "page.html")["codec"]["names"] == ("vp9",) or ["vp9"]
    choices = [drawn(clips=3, seed=seed)[1] for seed in (0, 0, 1)]
    assert choices[0] == choices[1] == sorted(choices[0])
    assert choices[1] != choices[2]
    assert drawn(clips=0)[0].strips == 0
    for wrong in ({"clips": -1}, {"seed": -1}, {"where": "nothing == 1"}, {"where": "seconds > 100"}):
        with pytest.raises(InputError):
            drawn(**wrong)


@pytest.mark.usefixtures("in_this_process")
def test_several_samples_of_a_clip(packed: Path, tmp_path: Path) -> None:
    preview(packed, tmp_path / "page.html", sampling=sv.TiledWindows(4))
    facts = re.findall(r"sample (\d) of (\d)", (tmp_path / "page.html").read_text())
    assert len(facts) == 6
    assert {of for _, of in facts} == {"3"}
    assert len({number for number, _ in facts}) > 1


@pytest.mark.usefixtures("in_this_process")
def test_other_files_are_not_replaced(packed: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("<html>my notes</html>")
    with pytest.raises(InputError, match="no page of streamvid"):
        preview(packed, target, sampling=sv.Uniform(2))
    assert target.read_text() == "<html>my notes</html>"
    with pytest.raises(InputError, match="no page of streamvid"):
        preview(packed, tmp_path, sampling=sv.Uniform(2))
    target.unlink()
    for clips in (1, 2):
        assert preview(packed, target, sampling=sv.Uniform(2), clips=clips).bytes == target.stat().st_size
    assert target.read_text().count('class="clip"') == 2
    with pytest.raises((DatasetError, InputError)):
        preview(packed, target / "below.html", sampling=sv.Uniform(2))


@pytest.mark.usefixtures("in_this_process")
def test_hostile_columns(hostile_set: Path, tmp_path: Path) -> None:
    preview(hostile_set, tmp_path / "page.html", sampling=sv.Uniform(1))
    columns = data_of(tmp_path / "page.html")
    assert columns["score"]["values"][:5] == [0.5, None, None, "inf", "-inf"]
    assert columns["huge"]["values"][9] == str((1 << 62) + 9)  # JavaScript's numbers would be others
    assert columns["huge"]["kind"] == "text"
    assert columns["lists"]["values"][3] == "[[3, null], []]"
    assert str(columns["vector"]["values"][3]).endswith("(1,000)")
    assert columns["fixed"]["values"][:2] == ["[0.0, 0.5]", "[1.0, 1.5]"]
    assert columns["flag"]["kind"] == "choice"
    assert columns["caption"]["values"].count(None) == 1
    text = (tmp_path / "page.html").read_text()
    body = text.partition("<body")[2]
    assert len(re.findall("<script", body)) == 2
    assert not re.search(r"<img src=x|<svg onload|<b>", body)
    assert len(text) < 600_000


def test_a_thousand_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_CELLS", 100_000)
    texts = {f"column{n}": "x" * 50 for n in range(1000)}
    dataset = dataset_of([texts | {"long": "long " * 1000} for _ in range(200)])
    table = table_module.make_table(dataset, np.arange(200), [5, 199], np.random.default_rng(0))
    assert len(table.columns) > 1000
    assert {5, 199} <= set(table.rows.tolist())
    assert len(table.rows) * len(table.columns) <= 100_000
    assert len(table.to_json([5, 199])) <= table_module.TABLE_BYTES
    assert "of 200 clips" in table.notes[0]
    assert all(len(one.text(0)) <= 2001 for one in table.columns)
    charts = dataset_charts(dataset, None)
    assert len(charts) < 30


@pytest.mark.usefixtures("in_this_process")
def test_a_page_is_bounded(hostile_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = multiplied(hostile_set, tmp_path / "many", 2000, caption=[f"{n} " + "\U0001f600" * 300 for n in range(2000)])
    monkeypatch.setattr(module, "STRIP_BYTES", 60_000)
    monkeypatch.setattr(table_module, "TABLE_BYTES", 400_000)
    report = preview(many, tmp_path / "page.html", sampling=sv.Uniform(4), clips=500)
    assert report.full
    assert 2 <= report.strips < 100
    assert report.bytes == (tmp_path / "page.html").stat().st_size < 700_000
    text = (tmp_path / "page.html").read_text()
    assert "More clips would make this page too large." in text
    assert re.search(r"[\d,]+ of 2,000 clips, drawn at random\.", text)
    assert "cut after 300 characters" in text


@pytest.mark.usefixtures("in_this_process")
def test_columns_that_cannot_be_read_are_named(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Columns.get

    def get(columns: Columns, name: str) -> pa.Array:
        if name == "profile":
            raise DatasetError("its types differ")
        return whole(columns, name)

    monkeypatch.setattr(Columns, "get", get)
    preview(packed, tmp_path / "page.html", sampling=sv.Uniform(2), clips=1)
    assert "The column profile cannot be shown: its types differ" in (tmp_path / "page.html").read_text()
    assert "profile" not in data_of(tmp_path / "page.html")


def test_histograms_are_of_all_clips() -> None:
    count = 1000
    dataset = dataset_of(
        [{"": n, "score": n / count - 0.5, "place": f"town {n % 4}", "text": f"{n} <i>"} for n in range(count)],
        labels=[n % 3 if n % 5 else None for n in range(count)],
        packets=[30] * count,
        random_access=[1 + n % 2 for n in range(count)],
        width=[640 if n % 4 else 320 for n in range(count)],
    )
    made = dataset_charts(dataset, None)
    charts = {chart.title: chart for chart in made}
    assert len(charts) == len(made)
    assert charts["Frame size"].bars == (("640 x 1", 750), ("320 x 1", 250))
    assert charts["label"].none == 200
    assert [n for _, n in charts["label"].bars] == [267, 267, 266]
    assert sum(n for _, n in charts["GOP: packets per random access"].bars) == count
    assert dict(charts["place"].bars) == {f"town {n}": 250 for n in range(4)}
    assert sum(n for _, n in charts["score"].bars) == count
    assert "text" not in charts
    some = {chart.title: chart for chart in dataset_charts(dataset, np.arange(0, 100, 2))}
    assert dict(some["place"].bars) == {"town 0": 25, "town 2": 25}
    drawn = svg(charts["place"])
    assert "town 3, 250 clips" in drawn
    assert drawn.count("<rect") == 4


@pytest.mark.filterwarnings("error")
def test_a_histogram_of_numbers_that_are_far_apart() -> None:
    """Their difference, as of hashes, is no int64."""
    (chart,) = [one for one in dataset_charts(dataset_of([{"hash": -(1 << 62)}, {"hash": 3 << 61}] * 3), None)
                if one.title == "hash"]  # fmt: skip
    assert len(chart.bars) == 8
    assert [count for _, count in chart.bars if count] == [3, 3]


@pytest.mark.usefixtures("in_this_process")
def test_clips_in_place(tmp_path: Path) -> None:
    make_videos(tmp_path / "in", dict.fromkeys("012", CLIP))
    index([tmp_path / "in"], tmp_path / "set", progress=False)
    (tmp_path / "in/1.mp4").unlink()
    dataset = sv.Dataset.open(tmp_path / "set", roots=[tmp_path / "in"])
    report = preview(dataset, tmp_path / "page.html", sampling=sv.Uniform(2))
    assert (report.strips, report.bad) == (3, 1)
    assert "1 clip of these is bad" in (tmp_path / "page.html").read_text()


@pytest.mark.usefixtures("in_this_process")
def test_on_s3(packed: Path, tmp_path: Path, s3_bucket: str) -> None:
    from streamvid.storage import filesystem

    remote = upload(packed, f"s3://{s3_bucket}/preview")
    report = preview(remote, tmp_path / "page.html", sampling=sv.Uniform(2))
    here = preview(packed, tmp_path / "here.html", sampling=sv.Uniform(2))
    assert (report.strips, report.bad) == (6, 0)
    pictures = [
        re.findall('data:image/jpeg[^"]*', (tmp_path / name).read_text()) for name in ("page.html", "here.html")
    ]
    assert pictures[0] == pictures[1]
    assert here.bad == 0
    # A page may be put there, too.
    preview(packed, f"{remote}/page.html", sampling=sv.Uniform(2))
    preview(packed, f"{remote}/page.html", sampling=sv.Uniform(2), clips=1)
    assert b"streamvid preview" in filesystem.read_bytes(f"{remote}/page.html")
