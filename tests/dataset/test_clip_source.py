"""Frame indexes of long clips are read by blocks: the samples are the same, with fewer bytes read, together for many
clips."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamvid as sv
from streamvid.dataset import frame_indexes
from streamvid.dataset.dataset import Dataset
from streamvid.fetch.plan_samples import SamplePlan, SampleSpec, plan_samples
from streamvid.loader.clip_items import At, choose, resolve
from streamvid.packing.options import PackOptions
from streamvid.plan.epoch import Step
from streamvid.sampling.base import ClipTimes, FrameSampler
from streamvid.storage.byte_range import ByteRange
from streamvid.storage.range_reader import RangeReader
from streamvid.video import index_file
from tests.support.packed import pack_recipes
from tools.clips import Recipe
from tools.damage import flip_bytes

SMALL = Recipe(width=96, height=64, frames=60, gop=6, b_frames=2)
CLIPS = {
    "h264": SMALL,
    "variable": Recipe(width=96, height=64, frames=60, gop=7, b_frames=0, jitter=3),
    "hevc": Recipe(codec="hevc", width=160, height=144, frames=60, gop=6, b_frames=2),
    "short": Recipe(width=96, height=64, frames=3, gop=3, b_frames=0),
    "trimmed": Recipe(width=96, height=64, frames=50, gop=9, trim=2, fps=Fraction(24)),
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips whose indexes have several blocks, of six packets and more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "BLOCK_PACKETS", 6)
        return pack_recipes(CLIPS, tmp_path_factory.mktemp("blocks"), options=PackOptions("any"))


def keyframes_by_hand(clip: ClipTimes) -> list[int]:
    return [int(clip.keyframes[-1]), len(clip.pts) - 1, int(np.searchsorted(clip.pts, clip.pts[-1] // 2))]


SAMPLERS: tuple[FrameSampler, ...] = (
    sv.Window(4, stride=3),
    sv.Window(5, fps=11.5),
    sv.Window(5, fps=100, start="center"),
    sv.Window(4, fps=25, start="even", windows=3, pad="reflect_101"),
    sv.Window(40, fps=10, pad="constant", jitter=0.1),
    sv.Window(3, span=(0.1, 1.5)),
    sv.TiledWindows(7, fps=20),
    sv.MultiRate([(3, 10), (4, 20)]),
    sv.Uniform(4, pick="random"),
    sv.Keyframes(3),
    sv.RandomFrames(5),
    sv.Frames([0, 2, 1, 2]),
    sv.All(),
    sv.ByClip(3, frames=keyframes_by_hand),
    sv.ByClip(2, seconds=lambda clip: [0.2, 0.9]),
)


def same(one: SamplePlan, other: SamplePlan) -> None:
    for field in ("frames", "mask", "seconds"):
        np.testing.assert_array_equal(getattr(one.selection, field), getattr(other.selection, field))
    for field in ("offsets", "sizes", "display_order", "frames", "starts", "numbers", "crc32c"):
        np.testing.assert_array_equal(getattr(one.packets, field), getattr(other.packets, field))
    np.testing.assert_array_equal(one.spans, other.spans)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda one: type(one).__name__)
def test_samples_are_the_same(packed: Path, sampler: FrameSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = Dataset.open(str(packed)), Dataset.open(str(packed))
    rows = np.tile(np.arange(len(whole)), 3)
    step = Step(rows, np.repeat(np.arange(3), len(whole)), np.ones(len(rows), dtype=bool))
    spec = SampleSpec(sampler, seed=3, num_random=0)
    wanted = plan_samples(whole, step, spec)
    monkeypatch.setattr(frame_indexes, "WHOLE_BYTES", 0)
    for one, other in zip(plan_samples(parts, step, spec), wanted, strict=True):
        same(one, other)


def test_frames_by_hand_are_the_same(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = Dataset.open(str(packed)), Dataset.open(str(packed))
    spec = SampleSpec(sv.All(), seed=0, num_random=0)
    asked = [At("h264", frames=[41, 3, 59]), At("hevc", seconds=[0.0, 1.2, 0.7]), At("variable", seconds=[0.3])]
    last = whole.clips.seconds[whole.row("trimmed")]
    asked.append(At("trimmed", seconds=[float(last) - 1e-4]))

    def chosen(dataset: Dataset, item: Any) -> list[SamplePlan]:
        return choose(dataset, [resolve(dataset, None, item, can_sample=False)], spec, 0)

    wanted = [chosen(whole, item)[0] for item in asked]
    monkeypatch.setattr(frame_indexes, "WHOLE_BYTES", 0)
    for item, other in zip(asked, wanted, strict=True):
        same(chosen(parts, item)[0], other)
    for wrong in (At("h264", frames=[60]), At("h264", seconds=[60.0])):
        messages = []
        for dataset in (whole, parts):
            with pytest.raises(IndexError) as caught:
                chosen(dataset, wrong)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


class Counted(RangeReader):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[int]] = []

    def read(self, ranges: Any, versions: Any = None, **more: Any) -> Any:
        wanted: list[ByteRange] = list(ranges)
        self.calls.append([one.end - one.start for one in wanted])
        return super().read(wanted, versions, **more)


def test_a_window_reads_the_directory_and_its_block(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of many clips at once."""
    monkeypatch.setattr(frame_indexes, "WHOLE_BYTES", 0)
    dataset, reader = Dataset.open(str(packed)), Counted()
    rows = np.array([dataset.row(name) for name in ("h264", "hevc", "trimmed")])
    step = Step(rows, np.zeros(3, dtype=np.int64), np.ones(3, dtype=bool))
    spec = SampleSpec(sv.Window(2, start="center"), seed=0, num_random=0)
    plan_samples(dataset, step, spec, reader=reader)
    directories, blocks = reader.calls
    assert directories == (dataset.clips.index_size[rows] - 28 * dataset.clips.packets[rows]).tolist()
    assert min(directories) > 24
    assert 3 <= len(blocks) <= 5  # an open group of pictures takes the block before, too
    assert sum(blocks) < 0.5 * 28 * dataset.clips.packets[rows].sum()
    plan_samples(dataset, step, spec, reader=reader)
    assert len(reader.calls) == 2  # they are kept
    assert len(dataset.indexes(rows.tolist())[0]) == 60


def test_short_clips_are_read_whole_in_one_call(packed: Path) -> None:
    dataset, reader = Dataset.open(str(packed)), Counted()
    rows = np.arange(len(dataset))
    step = Step(rows, np.zeros(len(rows), dtype=np.int64), np.ones(len(rows), dtype=bool))
    plan_samples(dataset, step, SampleSpec(sv.Window(2, fps=5), seed=0, num_random=0), reader=reader)
    assert reader.calls == [dataset.clips.index_size.tolist()]


def test_a_damaged_block_is_told(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    shutil.copytree(packed, tmp_path / "set")
    dataset = Dataset.open(str(tmp_path / "set"))
    row = dataset.row("h264")
    (path,) = (tmp_path / "set").glob("shards/*.packets")
    flip_bytes(path, int(dataset.clips.index_offset[row] + dataset.clips.index_size[row]) - 1)
    monkeypatch.setattr(frame_indexes, "WHOLE_BYTES", 0)
    step = Step(np.array([row]), np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool))
    plan_samples(dataset, step, SampleSpec(sv.Window(2, start="first"), seed=0, num_random=0))
    with pytest.raises(sv.errors.ClipError, match=r"'h264'.* index is damaged: the checksum of block"):
        plan_samples(dataset, step, SampleSpec(sv.Frames([59]), seed=0, num_random=0))


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("suspect", [None, "index", "source"])
def test_an_error_suspects_the_copy_in_the_cache_that_was_read(packed: Path, suspect: Any, copied: bool) -> None:
    source = Dataset.open(packed)
    row, in_index = source.row("hevc"), suspect == "index"
    own = source.shard_path(0, "packets") if in_index else source.location(row)
    error = source.clip_error(row, "it is torn", "/cache/4711" if copied else None, suspect=suspect)
    assert (error.suspect, error.path) == (("cache", "/cache/4711") if copied else (suspect or "shard", own))
    assert error.offset == int((source.clips.index_offset if in_index else source.clips.mp4_offset)[row])
