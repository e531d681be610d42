"""Clips of all kinds that are planned and read together: each gives the same as alone, and an error names only the
damaged one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamvid as sv
from streamvid.dataset import frame_indexes
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.frame_indexes import parse_index
from streamvid.fetch.encoded_batch import EncodedBatch, plan_parts, read_batches
from streamvid.fetch.plan_samples import SampleSpec
from streamvid.fetch.shard_access import ShardAccess
from streamvid.loader.clip_items import ResolvedItem, choose
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.plan.epoch import Step
from streamvid.plan.rng import AUGMENT, draws
from streamvid.plan.sample_id import MAX_REPEATS, row_of, sample_of
from streamvid.sampling.base import ClipTimes, FixedLengthSampler, FrameSampler, Selection, SlotLayout, lengthen, select
from streamvid.storage.turn import Turn
from streamvid.video import index_file
from tests.fetch.test_encoded_batch import flip
from tests.support.images import encode, picture
from tests.support.packed import make_videos
from tests.support.packet_selection_cases import plainly
from tools.clips import Recipe

SIZE: dict[str, Any] = {"width": 96, "height": 64}
ALT_REF = (("auto-alt-ref", "1"), ("lag-in-frames", "16"), ("cpu-used", "5"), ("b", "100k"))
RECIPES = {
    "avc.mp4": Recipe(**SIZE, frames=30, gop=10, b_frames=3),
    "open.mp4": Recipe(**SIZE, codec="hevc", frames=30, gop=6, b_frames=2, open_gop=True),
    "hidden.webm": Recipe(**SIZE, codec="vp9", container="webm", frames=40, gop=20, b_frames=0, options=ALT_REF),
    "cut.mp4": Recipe(**SIZE, frames=20, gop=9, trim=2, fps=Fraction(24)),
    "keyless.mkv": Recipe(
        **SIZE, container="mkv", frames=30, gop=12, b_frames=0, params=(("intra-refresh", "1"),), from_key=1
    ),
    "intra.avi": Recipe(codec="mjpeg", container="avi", width=64, height=64, frames=6, gop=1, b_frames=0),
    "part2.mp4": Recipe(**SIZE, codec="mpeg4", frames=30, gop=6, b_frames=2, open_gop=True),
    "single.mp4": Recipe(**SIZE, frames=1, gop=1, b_frames=0),
    "long.mp4": Recipe(**SIZE, codec="hevc", frames=90, gop=6, b_frames=2, open_gop=True),
}


@dataclass(frozen=True, repr=False)
class Backwards(FixedLengthSampler):
    """A user's sampler, whose frames fall, repeat, and are no int64."""

    def sample(self, clip: ClipTimes, random: Any, number: int) -> SlotLayout:
        frames = np.arange(self.frames)[::-1] // 2 % clip.frames
        return SlotLayout(frames.astype(np.int32), clip.frames, in_ticks=False)


SAMPLERS: tuple[FrameSampler, ...] = (
    sv.Window(4, stride=3),
    sv.Window(5, fps=11.5, pad="reflect_101"),
    sv.Window(40, fps=10, pad="constant", jitter=0.1),
    sv.Window(3, stride=2, start="even", windows=3),
    sv.TiledWindows(7, fps=20),
    sv.Uniform(4, pick="random"),
    sv.Keyframes(3),
    sv.RandomFrames(5),
    sv.Frames([60, 2, 70], pad="constant"),
    sv.All(),
    Backwards(5),
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In several shards; the index of the longest clip is read by blocks of 24 packets."""
    folder = tmp_path_factory.mktemp("mixed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_indexes, "WHOLE_BYTES", 2000)
        patch.setattr(index_file, "BLOCK_PACKETS", 24)
        make_videos(folder / "videos", RECIPES)
        (folder / "image.jpg").write_bytes(encode(picture(), "JPEG"))
        sources = [folder / "videos", folder / "image.jpg"]
        pack(sources, folder / "set", shard_size=30_000, options=PackOptions("any"), progress=False)
        yield folder / "set"


@dataclass(frozen=True)
class Alone:
    """A sample of a step, made by itself."""

    clip: int
    selection: Selection
    columns: dict[str, list[int]]
    data: bytes
    random: Any


def alone(dataset: Dataset, spec: SampleSpec, sample_id: int, number: int) -> Alone:
    """A sample, of whole files and by one call for each clip, packet and frame."""
    rows, row = dataset.clips, row_of(sample_id)
    s = int(rows.shard[row])
    packets, tar = (Path(dataset.shard_path(s, kind)).read_bytes() for kind in ("packets", "tar"))
    start, size = int(rows.index_offset[row]), int(rows.index_size[row])
    index = parse_index(np.frombuffer(packets, dtype=np.uint8)[start : start + size], rows, row)
    tick = Fraction(int(rows.time_base_num[row]), int(rows.time_base_den[row]))
    times = ClipTimes(index.frame_pts, int(rows.duration[row]), tick, rows.key[row], lambda: index.keyframes)
    random = draws(spec.seed, number, sample_id, spec.sampling.num_random)
    selection = select(spec.sampling, times, random, number=sample_of(sample_id))
    columns = plainly(index, sorted({n for n in selection.frames.tolist() if n >= 0}) or [0])
    places = [int(rows.mp4_offset[row]) + offset for offset in columns["offsets"]]
    data = b"".join(tar[at : at + size] for at, size in zip(places, columns["sizes"], strict=True))
    return Alone(row, selection, columns, data, draws(spec.seed, number, sample_id, spec.num_random, purpose=AUGMENT))


def alone_of(dataset: Dataset, spec: SampleSpec, step: Step) -> list[Alone]:
    samples = zip(step.sample_ids.tolist(), step.passes.tolist(), strict=True)
    return [alone(dataset, spec, *one) for one in samples]


def check(batch: EncodedBatch, step: Step, every: Sequence[Alone], spec: SampleSpec) -> None:
    """Hold a batch against its samples, each by itself."""
    length = max(len(one.selection.frames) for one in every)
    assert batch.gather.dtype == np.int64
    np.testing.assert_array_equal(batch.clips, [one.clip for one in every])
    for name, column in (("epochs", step.passes), ("valid", step.valid), ("absent", step.stands_for)):
        np.testing.assert_array_equal(getattr(batch, name), column)
    for n, (one, got) in enumerate(zip(every, batch.slices, strict=True)):
        padded = lengthen(one.selection, length, spec.sampling.pad)
        np.testing.assert_array_equal(batch.mask[n], padded.mask)
        np.testing.assert_array_equal(batch.seconds[n], padded.seconds)
        ranks = {frame: rank for rank, frame in enumerate(sorted({*padded.frames.tolist()} - {-1}))} | {-1: -1}
        np.testing.assert_array_equal(batch.gather[n], [ranks[frame] for frame in padded.frames.tolist()])
        np.testing.assert_array_equal(batch.random[n], one.random)
        assert got.data.tobytes() == one.data
        for name in ("sizes", "display_order", "frames", "starts"):
            np.testing.assert_array_equal(getattr(got, name), one.columns[name], name)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[FrameSampler, list[list[tuple[int, int, int, int]]]]:
    """A sampler, and for each step of a chunk its samples: clip, sample of that, repeat and pass. Some come again."""
    sample = st.tuples(
        st.integers(0, len(RECIPES)), st.integers(0, 2), st.integers(0, MAX_REPEATS - 1), st.integers(0, 2)
    )
    steps = draw(st.lists(st.lists(sample, min_size=1, max_size=6), min_size=1, max_size=4))
    for step in steps:
        step += draw(st.lists(st.sampled_from(steps[0]), max_size=2))
    return draw(st.sampled_from(SAMPLERS)), steps


def steps_of(dataset: Dataset, sampler: FrameSampler, chunk: list[list[tuple[int, int, int, int]]]) -> list[Step]:
    steps = []
    for number, samples in enumerate(chunk):
        row, which, again, passes = np.array(samples, dtype=np.int64).T
        tick = [Fraction(int(dataset.clips.time_base_num[n]), int(dataset.clips.time_base_den[n])) for n in row]
        has = [
            int(sampler.num_samples(dataset.clips.frames[[n]], dataset.clips.duration[[n]], one)[0])
            for n, one in zip(row.tolist(), tick, strict=True)
        ]
        ids = row | np.minimum(which, np.array(has) - 1) << 32 | again << 52
        steps.append(Step(ids, passes, again % 2 == 0, number, absent=np.where(which == 2, row, -1)))
    return steps


@given(chunks(), st.sampled_from(["crc32c", "sha256", None]), st.booleans())
def test_each_clip_of_a_chunk_is_what_it_is_alone(packed: Path, chunk: Any, checksum: Any, known: bool) -> None:
    dataset = Dataset.open(packed)
    spec = SampleSpec(chunk[0], seed=7, num_random=3, checksum=checksum)
    steps = steps_of(dataset, *chunk)
    every = [alone_of(dataset, spec, step) for step in steps]
    if known:  # some indexes, and some blocks of the long one
        dataset.indexes(sorted({row_of(int(steps[0].sample_ids[0])), 1}))
    access = ShardAccess(dataset, cache=None, limit_bytes=1 << 30)
    for batch, step, own in zip(read_batches(dataset, steps, spec, access), steps, every, strict=True):
        check(batch, step, own, spec)
    for part, step, own in zip(
        plan_parts(dataset, [[step] for step in steps], spec, access, Event(), Turn()), steps, every, strict=True
    ):
        check(part(Turn())[0], step, own, spec)
    for step, own in zip(steps, every, strict=True):
        ids = step.sample_ids.tolist()
        items = [ResolvedItem(one.clip, number, None) for one, number in zip(own, ids, strict=True)]
        for n, plan in enumerate(choose(dataset, items, spec, epoch=int(step.passes[0]))):
            if step.passes[n] == step.passes[0]:
                np.testing.assert_array_equal(plan.selection.frames, own[n].selection.frames)
                np.testing.assert_array_equal(plan.packets.numbers, own[n].columns["numbers"])
                np.testing.assert_array_equal(plan.random, own[n].random)


@given(chunks(), st.dictionaries(st.integers(0, len(RECIPES)), st.integers(0, 2**15), min_size=1, max_size=3))
def test_damaged_indexes_are_named_and_others_are_read(packed: Path, chunk: Any, damage: dict[int, int]) -> None:
    dataset, spec = Dataset.open(packed), SampleSpec(chunk[0], seed=7, num_random=3)
    steps, rows = steps_of(dataset, *chunk), dataset.clips
    access = ShardAccess(dataset, cache=None, limit_bytes=1 << 30)
    # Of the index that is read by blocks, the directory.
    sizes = [size if size <= 2000 else 24 for size in rows.index_size.tolist()]
    bits = [
        (dataset.shard_path(int(rows.shard[row]), "packets"), int(8 * rows.index_offset[row] + at % (8 * sizes[row])))
        for row, at in damage.items()
    ]
    for bit in bits:
        flip(*bit)
    try:
        bad = [[row_of(n) in damage for n in step.sample_ids.tolist()] for step in steps]
        if any(map(any, bad)):
            with pytest.raises(sv.ClipError, match="its frame index is damaged") as error:
                read_batches(dataset, steps, spec, access)
            assert error.value.row in damage
            assert error.value.key == rows.key[error.value.row]
        left = [
            Step(step.sample_ids[good], step.passes[good], step.valid[good], step.number)
            for step, good in zip(steps, (~np.array(one) for one in bad), strict=True)
            if good.any()
        ]
        batches = read_batches(dataset, left, spec, access) if left else []
    finally:
        for bit in bits:
            flip(*bit)
    for batch, step in zip(batches, left, strict=True):
        check(batch, step, alone_of(dataset, spec, step), spec)
