"""The whole path on a small packed dataset: every clip once, the right frames, errors in words, nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamvid.dataset.dataset import Dataset
from streamvid.dataset.selection import select_rows
from streamvid.decode.cpu import CpuDecoder, decode_with_pyav
from streamvid.errors import InputError, StreamvidError, VideoError
from streamvid.fetch import encoded_batch, epoch_reader
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.loader.stream_loader import StreamLoader
from streamvid.packing.options import PackOptions
from streamvid.sampling.base import FrameSampler
from streamvid.sampling.explicit import Frames
from streamvid.sampling.spread import All, Uniform
from streamvid.sampling.windows import Window
from streamvid.transform.spec import Transform
from tests.support import shown
from tests.support.batches import same
from tests.support.packed import pack_recipes, replace_packets
from tests.support.sampling import padded
from tests.support.views import upright
from tools.clips import Recipe, read_frame_number

pytestmark = pytest.mark.usefixtures("no_threads_of_other_modules")

BASE = Recipe(width=96, height=64, gop=12)
RECIPES: dict[str, Recipe] = {
    "a/h264_30.mp4": replace(BASE, frames=40),
    "a/h264_25.mp4": replace(BASE, frames=33, fps=Fraction(25), b_frames=3, seed=1),
    "a/h264_ntsc.mkv": replace(BASE, frames=36, fps=Fraction(30000, 1001), container="mkv", seed=2),
    "a/h264_vfr.mp4": replace(BASE, frames=30, jitter=3, seed=3),
    "a/h264_trimmed.mp4": replace(BASE, frames=40, trim=15, b_frames=3, seed=4),
    "b/hevc.mp4": replace(BASE, codec="hevc", frames=30, b_frames=3, seed=5),
    "b/hevc_open.mp4": replace(BASE, codec="hevc", frames=36, b_frames=3, open_gop=True, seed=6),
    "b/vp9.webm": replace(BASE, codec="vp9", container="webm", frames=30, seed=7),
    "b/vp9_slow.webm": replace(BASE, codec="vp9", container="webm", frames=20, fps=Fraction(12), seed=8),
    "b/vp8_hidden.webm": replace(BASE, codec="vp8", container="webm", frames=35, hidden=7, seed=9),
    "c/mpeg4.avi": replace(BASE, codec="mpeg4", container="avi", frames=25, seed=10),
    "c/mjpeg.avi": replace(BASE, codec="mjpeg", container="avi", frames=14, fps=Fraction(10), seed=11),
    "c/five.mp4": replace(BASE, frames=5, seed=12),
    "c/one.mp4": replace(BASE, frames=1, seed=13),
}
RAW = Transform(layout="THWC", dtype="uint8")
WINDOW = Window(6, fps=15)


@dataclass(frozen=True)
class Packed(shown.Packed):
    """The dataset, and the recipe and label of each of its rows."""

    labels: list[int]

    def seconds(self, row: int) -> list[float]:
        return [float(t) for t in self.recipes[row].shown_at()]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    labels = [n % 3 if n % 5 else None for n in range(len(RECIPES))]
    path = pack_recipes(
        RECIPES, tmp_path_factory.mktemp("loader"), {"label": labels}, shard_size=60_000, options=PackOptions("any")
    )
    dataset = Dataset.open(path)
    assert len(dataset) == len(RECIPES)
    assert len(dataset.shards) > 2
    sources = [dataset.clips.source[row] for row in range(len(dataset))]
    label_of = dict(zip(RECIPES, labels, strict=True))
    given = [-100 if (label := label_of[source]) is None else label for source in sources]
    return Packed(path, [RECIPES[source] for source in sources], given)


def loader(packed: Packed | Path, **options: Any) -> StreamLoader:
    path = packed.path if isinstance(packed, Packed) else packed
    return StreamLoader(path, **{"batch_size": 4, "sampling": WINDOW, "num_threads": 2, "device": "cpu", **options})


def clips_of(batches: list[dict[str, Any]]) -> list[int]:
    return [clip for batch in batches for clip in batch["clip"][batch["valid"]].tolist()]


def test_labels_that_are_missing_are_left_out_of_a_loss(packed: Packed) -> None:
    labels = torch.cat([batch["label"] for batch in loader(packed)])
    assert (labels == -100).any()
    assert torch.isfinite(torch.nn.functional.cross_entropy(torch.zeros(len(labels), 3), labels))
    # Rows keep what was packed.
    dataset = Dataset.open(packed.path)
    (missing,) = np.nonzero([label == -100 for label in packed.labels])
    assert select_rows(dataset, where="label is None").tolist() == missing.tolist()
    assert dataset.to_arrow()["label"].null_count == len(missing)


def check_frames(packed: Packed, batch: dict[str, Any]) -> None:
    """Every slot shows the frame that its pts, clip and key say. The batch is uint8 FHWC, untransformed."""
    for i, row in enumerate(batch["clip"].tolist()):
        assert batch["label"][i] == packed.labels[row]
        shown.shown(packed, batch, i)


@pytest.mark.parametrize(
    ("sampling", "pad"),
    [
        (WINDOW, "edge"),
        (Window(8, stride=3), "reflect_101"),
        (Window(9, fps=29.97, start="center"), "constant"),
        (Uniform(5), "edge"),
        (Uniform(7, pick="random"), "edge"),
        (Frames([9, 2, 2, 30]), "reflect_1001"),
        (All(), "edge"),
        (All(), "constant"),
    ],
)
def test_the_frames_are_the_right_ones(packed: Packed, sampling: FrameSampler, pad: Any) -> None:
    with loader(packed, sampling=padded(sampling, pad)) as batches:
        got = list(batches)
        assert sorted(clips_of(got)) == list(range(len(RECIPES)))
        assert len(got) == len(batches) == 4
        dataset = batches.dataset
        for batch in got:
            count = len(batch["clip"])
            slots = sampling.num_frames or max(len(packed.recipes[row].shown()) for row in batch["clip"].tolist())
            assert batch["video"].shape == (count, slots, 64, 96, 3)
            assert batch["video"].dtype == torch.uint8
            assert (batch["mask"].shape, batch["mask"].dtype) == ((count, slots), torch.bool)
            assert (batch["pts"].shape, batch["pts"].dtype) == ((count, slots), torch.float64)
            for name, kind in (("label", torch.int64), ("clip", torch.int64), ("valid", torch.bool)):
                assert (batch[name].shape, batch[name].dtype) == ((count,), kind)
            assert batch["key"] == [dataset.key(row) for row in batch["clip"].tolist()]
            assert batch["valid"].all()
            check_frames(packed, batch)
            for i, row in enumerate(batch["clip"].tolist()):
                frames, end = len(packed.recipes[row].shown()), dataset.clips.duration[row]
                short = sampling.is_too_short(np.array([frames]), np.array([end]), _tick(dataset, row))
                if isinstance(sampling, All):
                    assert batch["mask"][i].tolist() == [n < frames for n in range(slots)]
                else:
                    assert batch["mask"][i].all() == (not short[0])


def _tick(dataset: Dataset, row: int) -> Fraction:
    return Fraction(int(dataset.clips.time_base_num[row]), int(dataset.clips.time_base_den[row]))


def test_all_gives_whole_clips(packed: Packed) -> None:
    with loader(packed, sampling=All(), batch_size=1) as batches:
        for batch in batches:
            row = int(batch["clip"])
            assert [read_frame_number(f.numpy()) for f in batch["video"][0]] == packed.recipes[row].shown()
            np.testing.assert_allclose(batch["pts"][0], packed.seconds(row), atol=0.0011)


@pytest.mark.parametrize(
    ("layout", "dtype", "shape"),
    [("THWC", "uint8", (6, 40, 32, 3)), ("TCHW", "float16", (6, 3, 40, 32)), ("CTHW", "float32", (3, 6, 40, 32))],
)
def test_shapes_and_dtypes(packed: Packed, layout: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    with loader(
        packed, transform=Transform(resize=48, crop=(40, 32), horizontal_flip=0.5, layout=layout, dtype=dtype)
    ) as batches:
        for batch in batches:
            assert batch["video"].shape == (len(batch["clip"]), *shape)
            assert batch["video"].dtype == getattr(torch, dtype)
            assert batch["video"].is_contiguous()
            assert batch["video"].device.type == "cpu"


def test_the_same_seed_gives_the_same_batches(packed: Packed) -> None:
    transform = Transform(resize=48, crop=32, horizontal_flip=0.5)
    with (
        loader(packed, transform=transform, seed=5) as one,
        loader(packed, transform=transform, seed=5, num_threads=1) as two,
    ):
        first, second = list(one), list(one)
        assert same(first, list(two))
        assert not same(first, second)
        assert clips_of(first) != clips_of(second)
        assert same(second, list(two))
    with loader(packed, transform=transform, seed=6) as three:
        assert not same(first, list(three))


def test_a_clip_looks_the_same_whoever_decodes_it(packed: Packed) -> None:
    """However many ranks, and whatever the batch: what a clip becomes in an epoch depends on seed, epoch and clip."""
    transform = Transform(resize=48, crop=32, horizontal_flip=0.5)
    looks: list[dict[int, bytes]] = []
    for options in (
        {"batch_size": 4},
        {"batch_size": 3, "rank": 0, "world_size": 2},
        {"batch_size": 5, "shuffle": False},
    ):
        with loader(packed, transform=transform, **options) as batches:
            videos = [(batch["clip"].tolist(), batch["video"]) for batch in batches]
        looks.append(
            {clip: v.numpy().tobytes() for clips, video in videos for clip, v in zip(clips, video, strict=True)}
        )
    assert len(looks[0]) == len(looks[2]) == len(RECIPES)
    assert looks[0] == looks[2]
    assert looks[1].items() <= looks[0].items()


def test_a_clip_looks_otherwise_in_another_epoch(packed: Packed) -> None:
    transform = Transform(resize=80, crop=(16, 90), horizontal_flip=0.5, layout="THWC", dtype="uint8")
    options = {"batch_size": 1, "sampling": Frames([0]), "shuffle": False}
    with loader(packed, transform=transform, **options) as batches:
        epochs = [torch.cat([batch["video"] for batch in batches]) for _ in range(2)]
    differ = (epochs[0] != epochs[1]).flatten(1).any(1)
    assert differ.sum() >= len(RECIPES) - 2  # chance may repeat itself
    with loader(packed, sampling=Window(3), batch_size=1, shuffle=False) as batches:
        starts = [[batch["pts"][0, 0].item() for batch in batches] for _ in range(2)]
    assert starts[0] != starts[1]


def test_set_epoch(packed: Packed) -> None:
    with loader(packed) as one, loader(packed) as two:
        assert one.epoch == 0
        list(one)
        assert one.epoch == 1
        second = list(one)
        two.set_epoch(1)
        assert two.epoch == 1
        assert same(list(two), second)
        assert two.epoch == 2
        for wrong in (-1, 1.5, None, True):
            with pytest.raises(InputError, match="epoch"):
                two.set_epoch(wrong)  # type: ignore[arg-type]


def test_without_shuffling_in_the_datasets_order(packed: Packed) -> None:
    with loader(packed, shuffle=False) as batches:
        assert clips_of(list(batches)) == list(range(len(RECIPES)))
        assert clips_of(list(batches)) == list(range(len(RECIPES)))


@pytest.mark.parametrize("taken", [1, 2, 4])
def test_an_epoch_left_early_does_no_harm(packed: Packed, taken: int) -> None:
    with loader(packed, seed=3) as left, loader(packed, seed=3) as whole:
        iterator = iter(left)
        for _ in range(taken):
            next(iterator)
        iterator.close()  # type: ignore[attr-defined]
        list(whole)
        for _ in range(2):
            assert same(list(left), list(whole))


def test_an_epoch_left_but_still_held_does_no_harm(packed: Packed) -> None:
    """`first = iter(loader)`, a look at one batch, and on to the training loop, while `first` is still there."""
    with loader(packed, seed=3) as left, loader(packed, seed=3) as whole:
        held = iter(left)
        next(held)
        list(whole)
        expected = list(whole)
        got = list(left)
        assert clips_of(got) == clips_of(expected)
        assert same(got, expected)
        del held


def test_two_iterators_of_one_loader(packed: Packed) -> None:
    """Either each gives its own epoch, or one of them says that it cannot."""
    with loader(packed, seed=3) as one, loader(packed, seed=3) as other:
        expected = [clips_of([batch]) for epoch in range(2) for batch in other]
        got: list[list[list[int]]] = [[], []]
        try:
            for first, second in zip(one, one, strict=True):
                got[0].append(clips_of([first]))
                got[1].append(clips_of([second]))
        except StreamvidError:
            return
        assert got[0] + got[1] == expected


def test_two_loaders_at_once(packed: Packed) -> None:
    with loader(packed) as one, loader(packed, sampling=Uniform(3)) as two, loader(packed) as alone:
        got = [(a, b) for a, b in zip(one, two, strict=True)]
        assert same([a for a, _ in got], list(alone))
        for _, batch in got:
            check_frames(packed, batch)
    dataset = Dataset.open(packed.path)
    with loader(packed) as one, StreamLoader(dataset, batch_size=4, sampling=WINDOW, device="cpu") as two:
        assert same(list(one), list(two))


def test_batches_are_not_overwritten_by_later_ones(packed: Packed) -> None:
    with loader(packed) as batches:
        kept, copies = [], []
        for batch in batches:
            kept.append(batch)
            copies.append({name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in batch.items()})
        list(batches)
        assert same(kept, copies)


def test_stats(packed: Packed) -> None:
    with loader(packed, sampling=Frames([0]), batch_size=5) as sparse:
        assert sparse.stats().batches == 0
        list(sparse)
        stats = sparse.stats()
        assert (stats.batches, stats.clips, stats.frames) == (3, len(RECIPES), len(RECIPES))
        assert 0 < stats.bytes_read < sum(shard.bytes for shard in sparse.dataset.shards) / 2
        assert stats.wait_seconds > 0
        list(sparse)
        again = sparse.stats()
        assert (again.batches, again.clips) == (6, 2 * len(RECIPES))
        assert again.bytes_read == 2 * stats.bytes_read
    with loader(packed, sampling=All(), batch_size=5, last_batch="fill") as whole:
        list(whole)
        assert whole.stats().clips == len(RECIPES)
        assert whole.stats().frames == sum(len(recipe.shown()) for recipe in RECIPES.values())
        assert whole.stats().bytes_read > stats.bytes_read


def test_short_clips_are_skipped_and_counted(packed: Packed, caplog: pytest.LogCaptureFixture) -> None:
    window = Window(20)
    long = [row for row, recipe in enumerate(packed.recipes) if len(recipe.shown()) >= 20]
    with loader(packed, sampling=padded(window, "none")) as batches:
        assert batches.skipped == len(RECIPES) - len(long) > 0
        assert f"{batches.skipped} of {len(RECIPES)} clips are too short for {padded(window, 'none')}" in caplog.text
        assert len(batches) == -(-len(long) // 4)
        got = list(batches)
        assert sorted(clips_of(got)) == long
        assert all(batch["mask"].all() for batch in got)
    caplog.clear()
    StreamLoader(ClipDataset(packed.path, sampling=padded(window, "none")), batch_size=4, device="cpu")
    assert f"clips are too short for {padded(window, 'none')}" in caplog.text
    with loader(packed, sampling=window) as all_of_them:
        assert all_of_them.skipped == 0
    with pytest.raises(InputError, match="too short"):
        loader(packed, sampling=Window(1000, pad="none"))


@pytest.mark.parametrize(("world", "batch"), [(1, 4), (2, 3), (3, 4), (5, 2), (4, 16), (20, 1)])
@pytest.mark.parametrize("last_batch", ["partial", "drop", "fill"])
def test_ranks_share_the_clips(packed: Packed, world: int, batch: int, last_batch: Any) -> None:
    options = {"batch_size": batch, "last_batch": last_batch, "sampling": Frames([0]), "world_size": world}
    count, share = len(RECIPES), world * batch
    if last_batch == "drop" and count < share:
        with pytest.raises(InputError, match="drop"):
            loader(packed, rank=0, **options)
        return
    steps = count // share if last_batch == "drop" else -(-count // share)
    seen: list[int] = []
    ranks = range(world) if world < 10 else (0, 7, 13, 19)
    for rank in ranks:
        with loader(packed, rank=rank, **options) as batches:
            got = list(batches)
        assert len(got) == len(batches) == steps
        assert all(1 <= len(b["clip"]) <= batch for b in got)
        if last_batch != "partial":
            assert all(len(b["clip"]) == batch for b in got)
        for b in got:
            check_frames(packed, b)
        seen += clips_of(got)
    assert len(seen) == len(set(seen))
    if last_batch == "drop":
        assert len(seen) == steps * share
    elif world < 10:
        assert sorted(seen) == list(range(count))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": -1, "world_size": 2}, "rank"),
        ({"rank": 0}, "together"),
        ({"world_size": 0, "rank": 0}, "world_size"),
        ({"sampling": 16}, "sampling"),
        ({"sampling": "window"}, "sampling"),
        ({"last_batch": "keep"}, "last_batch"),
        ({"num_threads": 0}, "threads"),
        ({"num_threads": 1.5}, "threads"),
        ({"seed": "x"}, "seed"),
        ({"device": "tpu"}, "device"),
        ({"transform": Transform(crop=65)}, "crop of 65x65.*resize"),
        ({"transform": Transform(resize=30, crop=(31, 10))}, "crop"),
        ({"batch_size": 50_000_000}, r"a batch of [0-9]+ frames takes .* GB.*smaller batch_size"),
        ({"sampling": Window(2_000_000_000)}, "takes .* GB, and this process may use .*fewer frames"),
    ],
)
def test_options_that_cannot_be(packed: Packed, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        loader(packed, **options)
    assert "\n" not in str(error.value)


def copy(packed: Packed, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed.path, tmp_path / "copy"))


def damage(packed: Packed, tmp_path: Path, name: str, data: Callable[[int], bytes]) -> tuple[Path, int]:
    """Overwrite all packets of one clip: the path of a copy of the dataset, and the clip's row."""
    path = copy(packed, tmp_path)
    dataset = Dataset.open(path)
    row = next(n for n in range(len(dataset)) if dataset.clips.source[n] == name)
    replace_packets(path, row, data)
    return path, row


@pytest.mark.parametrize(
    "name", ["a/h264_30.mp4", "b/hevc.mp4", "b/vp9.webm", "b/vp8_hidden.webm", "c/mpeg4.avi", "c/mjpeg.avi"]
)
def test_a_damaged_clip_is_named(packed: Packed, tmp_path: Path, name: str) -> None:
    path, row = damage(packed, tmp_path, name, bytes)
    with loader(path, shuffle=False, batch_size=1, on_error="raise") as batches:
        key = batches.dataset.key(row)
        counts = []
        for _ in range(2):
            got: list[dict[str, Any]] = []
            with pytest.raises(VideoError, match=rf"\b{key}\b") as error:
                got.extend(batches)
            assert "\n" not in str(error.value)
            counts.append(len(got))
            for batch in got:
                check_frames(packed, batch)
        # The second epoch gets as far as the first: what failed did not take the decoder with it. Batches that were
        # being made may be lost.
        assert row - 3 <= counts[1] <= row
        assert row - 3 <= counts[0] <= row
    assert not streamvid_threads()


def test_random_bytes_never_crash(packed: Packed, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a/h264_30.mp4", "b/hevc.mp4", "b/vp9.webm", "c/mjpeg.avi"):
        path, row = damage(packed, tmp_path / name.replace("/", "_"), name, rng.bytes)
        with loader(path, shuffle=False, batch_size=1, on_error="raise") as batches:
            told, rows = "", []
            try:
                rows = clips_of(list(batches))
            except VideoError as error:
                told = str(error)
            assert rows == list(range(len(RECIPES))) or batches.dataset.key(row) in told


def streamvid_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("streamvid")]


def test_no_threads_are_left(packed: Packed) -> None:
    batches = loader(packed)
    assert not streamvid_threads()
    list(batches)
    assert not [
        name for name in streamvid_threads() if not name.startswith(("streamvid-decode_", "streamvid-decode-watch"))
    ]
    for batch in batches:
        assert "streamvid-read" in streamvid_threads() or batch
        break
    del batch
    assert not [
        name for name in streamvid_threads() if not name.startswith(("streamvid-decode_", "streamvid-decode-watch"))
    ]
    batches.close()
    assert not streamvid_threads()
    batches.close()


@pytest.mark.parametrize("end", ["whole", "early", "error"])
def test_a_loader_that_is_dropped_leaves_nothing_to_the_garbage_collector(packed: Packed, end: str) -> None:
    """It may come late: files, threads and memory of a loader that nobody has closed go with the last reference."""

    def run() -> weakref.ref[Any]:
        batches = loader(packed, batch_size=2)
        with contextlib.suppress(ZeroDivisionError):
            for _ in batches:
                if end == "early":
                    break
                if end == "error":
                    1 / 0  # noqa: B018
        return weakref.ref(batches.dataset)

    run()  # what is imported only now may fail to import something, and keep that error
    gc.collect()
    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["whole", "early", "error"])
def test_dalis_pipelines_are_freed_by_close(packed: Packed, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the garbage collector: it may run in a forked process, where DALI's threads are not."""
    from nvidia.dali import Pipeline

    def pipelines() -> set[int]:
        return {id(one) for one in gc.get_objects() if type(one) is Pipeline}

    gc.collect()
    before = pipelines()
    gc.disable()
    try:
        with loader(packed, batch_size=2, transform=Transform(resize=(32, 32), rotate=5)) as batches:
            if end == "error":
                monkeypatch.setattr(CpuDecoder, "write", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    list(batches)
            elif end == "early":
                for _ in batches:
                    break
            else:
                list(batches)
            assert end != "whole" or pipelines() - before
        assert not pipelines() - before
    finally:
        gc.enable()


def test_a_loader_can_be_used_after_close(packed: Packed) -> None:
    with loader(packed, seed=3) as one, loader(packed, seed=3) as two:
        assert same(list(one), list(two))
        one.close()
        assert same(list(one), list(two))


@pytest.mark.parametrize("stage", ["plan_samples", "read_batches", "decode"])
def test_errors_of_the_stages_reach_the_consumer(packed: Packed, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def fail(true: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise ZeroDivisionError(stage)
            return true(*args, **kwargs)

        return failing

    owner: Any = {"plan_samples": encoded_batch, "read_batches": epoch_reader, "decode": CpuDecoder}[stage]
    name = "write" if stage == "decode" else stage
    monkeypatch.setattr(owner, name, fail(getattr(owner, name)))
    with loader(packed, batch_size=2) as batches:
        got: list[dict[str, Any]] = []
        with pytest.raises(ZeroDivisionError, match=stage):
            got.extend(batches)
        got.extend(batches)  # the rest of the epoch
        assert sorted(clips_of(got)) == list(range(len(RECIPES)))
    assert not streamvid_threads()


def test_len_before_during_and_after(packed: Packed) -> None:
    with loader(packed, batch_size=3) as batches:
        assert len(batches) == 5
        assert sum(len(batches) == 5 for _ in batches) == 5
        assert len(batches) == 5


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of several sizes, some of which lie on their side."""
    sizes = [(96, 64, 0), (64, 96, 90), (128, 72, 0), (80, 80, 180), (64, 96, 630)]
    recipes = {
        f"{n}": Recipe(width=width, height=height, rotation=rotation, frames=8, gop=8, seed=n)
        for n, (width, height, rotation) in enumerate(sizes)
    }
    return pack_recipes(recipes, tmp_path_factory.mktemp("mixed"))


def test_clips_of_mixed_sizes_in_one_batch(mixed: Path) -> None:
    sampling = Frames([0, 3])
    with loader(mixed, sampling=sampling, batch_size=5, transform=Transform(resize=64, crop=(56, 60))) as batches:
        (batch,) = list(batches)
        assert batch["video"].shape == (5, 3, 2, 56, 60)
    for transform in (None, Transform(), Transform(resize=64)):
        with pytest.raises(InputError, match="different sizes"):
            loader(mixed, sampling=sampling, transform=transform)
    # Upright, all are 96 or more wide and 64 or more high, but for the square one.
    with pytest.raises(InputError, match="crop of 64x90"):
        loader(mixed, sampling=sampling, transform=Transform(crop=(64, 90)))


def test_turned_clips_stand_upright(mixed: Path) -> None:
    transform = Transform(crop=64, random_crop=False, layout="THWC", dtype="uint8")
    with loader(mixed, sampling=Frames([0, 5]), batch_size=2, transform=transform, shuffle=False) as batches:
        got = torch.cat([batch["video"] for batch in batches]).numpy()
    dataset = Dataset.open(mixed)
    for row in range(len(dataset)):
        height, width = int(dataset.clips.height[row]), int(dataset.clips.width[row])
        raw = _raw(mixed, row)
        assert raw.shape == (2, height, width, 3)
        shown = upright(raw, int(dataset.clips.rotation[row]))
        top, left = round((shown.shape[1] - 64) / 2), round((shown.shape[2] - 64) / 2)
        np.testing.assert_array_equal(got[row], shown[:, top : top + 64, left : left + 64])


def _raw(path: Path, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    from streamvid.fetch.encoded_batch import read_batches
    from streamvid.fetch.plan_samples import SampleSpec as What
    from streamvid.fetch.shard_access import ShardAccess
    from streamvid.plan.epoch import Step

    dataset = Dataset.open(path)
    what = What(Frames([0, 5]), seed=0, num_random=0)
    step = Step(np.array([row]), np.array([0]), np.array([True]))

    (batch,) = read_batches(dataset, [step], what, ShardAccess(dataset, cache=None, limit_bytes=0))
    return decode_with_pyav(batch.slices[0], color="auto")


def test_iterating_is_lazy(packed: Packed) -> None:
    """Neither making a loader nor asking for an iterator starts anything."""
    batches = loader(packed)
    iterator: Iterator[Any] = iter(batches)
    assert not streamvid_threads()
    assert len(list(iterator)) == 4
    batches.close()


def test_dalis_own_name_of_a_policy_is_understood(packed: Packed) -> None:
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy

    sizes = {}
    for policy in (LastBatchPolicy.DROP, LastBatchPolicy.PARTIAL, LastBatchPolicy.FILL):
        with loader(packed, batch_size=4, last_batch=policy) as batches:
            sizes[policy] = [len(batch["clip"]) for batch in batches]
    whole, rest = divmod(len(RECIPES), 4)
    assert sizes[LastBatchPolicy.DROP] == [4] * whole
    assert sizes[LastBatchPolicy.PARTIAL] == [4] * whole + [rest]
    assert sizes[LastBatchPolicy.FILL] == [4] * (whole + 1)
