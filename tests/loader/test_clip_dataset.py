"""ClipDataset: the right frames of any clip, in any order and any process, with bounded handles and small pickles."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, default_collate

import streamvid as sv
from streamvid.fetch.encoded_batch import row_color
from streamvid.packing.options import PackOptions
from streamvid.storage import range_reader
from tests.support.batches import assert_same
from tests.support.clips import hard_clips, write
from tests.support.clock import Clock
from tests.support.packed import edit_index, edit_parquet, pack_recipes, pack_with_columns, replace_packets, reseal
from tests.support.reference import sequential
from tests.support.views import upright
from tools.clips import Recipe


def _coded(one: Recipe) -> tuple[object, ...]:
    """How frames are coded, coloured and shown; in which container they lie is nothing to a dataset."""
    looks = one.codec, one.pix_fmt, one.colour, one.full_range, one.rotation, one.width % 2, one.params, one.options
    return *looks, one.open_gop, one.hidden, one.variable, one.trim > 0


HARD = dict({_coded(one): (name, one) for name, one in hard_clips().items()}.values())
SMALL = Recipe(width=96, height=64, gop=12, frames=30)
RECIPES: dict[str, Recipe] = {
    "b_frames": replace(SMALL, b_frames=3),
    "hevc_open": replace(SMALL, codec="hevc", frames=36, b_frames=3, open_gop=True, seed=1),
    "vp9": replace(SMALL, codec="vp9", container="webm", seed=2),
    "vp8_hidden": replace(SMALL, codec="vp8", container="webm", hidden=7, seed=3),
    "mjpeg": replace(SMALL, codec="mjpeg", container="avi", frames=14, seed=4),
    "vfr": replace(SMALL, jitter=3, seed=5),
    "trimmed": replace(SMALL, frames=40, trim=15, seed=6),
    "turned": replace(SMALL, rotation=90, seed=7),
    "five": replace(SMALL, frames=5, seed=8),
    "one": replace(SMALL, frames=1, seed=9),
}
PLAIN = sv.Transform(layout="THWC", dtype="uint8")
AUGMENTED = sv.Transform(
    resize=64,
    crop=(48, 56),
    horizontal_flip=0.5,
    brightness=0.3,
    erase=0.5,
    mean=(0.4,) * 3,
    std=(0.2,) * 3,
    dtype="float16",
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    pack_with_columns(RECIPES, folder)
    opened = sv.Dataset.open(folder / "set")
    assert len(opened.shards) >= 4
    assert set(opened.clips.codec.names) == {"h264", "hevc", "vp9", "vp8", "mjpeg"}
    return folder / "set"


def open_tars() -> int:
    """How many descriptors of this process are open on shards."""
    paths = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return sum(path.endswith((".tar", ".packets")) for path in paths)


def stored(opened: sv.Dataset, row: int, path: Path) -> Path:
    """A clip's mp4, cut out of its shard."""
    start, size = int(opened.clips.mp4_offset[row]), int(opened.clips.mp4_size[row])
    path.write_bytes(Path(opened.shard_path(int(opened.clips.shard[row]))).read_bytes()[start : start + size])
    return path


def test_dali_is_left_alone_where_it_has_nothing_to_do(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all ways to a clip give the same numbers still, upright and normalised."""
    monkeypatch.setattr("streamvid.transform.render.DaliRenderer", None)
    options: dict[str, Any] = {
        "sampling": sv.Window(4),
        "transform": sv.Transform(
            resize=64, crop=(48, 56), horizontal_flip=0.5, mean=(0.4,) * 3, std=(0.2,) * 3, dtype="float16"
        ),
    }
    ds = sv.ClipDataset(dataset, **options)
    with (
        sv.StreamLoader(dataset, batch_size=4, device="cpu", last_batch="partial", **options) as stream,
        sv.GpuDataLoader(ds, batch_size=4, device="cpu") as proxy,
    ):
        for loader in (stream, proxy):
            keys = []
            for batch in loader:
                keys += batch["key"]
                for got, key in zip(batch["video"], batch["key"], strict=True):
                    assert torch.equal(got, ds[key]["video"])
            assert sorted(keys) == sorted(RECIPES)


@pytest.mark.parametrize("interpolation", ["bicubic", "nearest"])
def test_what_only_dali_resizes(dataset: Path, interpolation: Any) -> None:
    options: dict[str, Any] = {
        "sampling": sv.Window(4),
        "transform": sv.Transform(resize=40, crop=(36, 30), interpolation=interpolation, dtype="uint8"),
    }
    ds = sv.ClipDataset(dataset, **options)
    with sv.StreamLoader(dataset, batch_size=4, device="cpu", **options) as loader:
        for batch in loader:
            for got, key in zip(batch["video"], batch["key"], strict=True):
                assert torch.equal(got, ds[key]["video"])


def test_frames_of_every_hard_clip(tmp_path: Path) -> None:
    """Random frames, in any order and repeated, are bit for bit those of a full decode of the stored clip, as DALI has
    their colours, and by the clip's tags."""
    pack_recipes(HARD, tmp_path, options=PackOptions("any"))
    ds = sv.ClipDataset(tmp_path / "set")
    as_dali = sv.ClipDataset(tmp_path / "set", transform=sv.Transform(layout="THWC", dtype="uint8", color="bt601"))
    rng = np.random.default_rng(0)
    seen = set()
    for row in range(len(ds)):
        name, full_range = ds.dataset.key(row), ds.dataset.clips.color_range[row] == "pc"
        seen.add(name)
        file = stored(ds.dataset, row, tmp_path / "stored.mp4")
        by_tags = sequential(file, color=row_color(ds.dataset.clips, row))
        wanted = rng.integers(0, len(by_tags), 5)
        rotation = int(ds.dataset.clips.rotation[row])
        for clips, expected in ((ds, by_tags), (as_dali, sequential(file, full_range=full_range))):
            got = clips.get(name, frames=wanted)
            for slot, frame in zip(got["video"].numpy(), wanted.tolist(), strict=True):
                np.testing.assert_array_equal(slot, upright(expected[frame][None], rotation)[0], err_msg=name)
            assert got["mask"].all()
    assert len(seen) > 0.9 * len(HARD)


@pytest.fixture(scope="module")
def opened(dataset: Path) -> sv.ClipDataset:
    return sv.ClipDataset(dataset)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_frames_and_seconds_agree(opened: sv.ClipDataset, data: st.DataObject) -> None:
    """An instant shows the last frame that began before it or less than a tick after it, whatever the rate."""
    row = data.draw(st.integers(0, len(opened) - 1))
    clips = opened.dataset.clips
    tick = float(clips.time_base_num[row] / clips.time_base_den[row])
    pts = opened.dataset.index(row).frame_pts
    end = float(clips.duration[row]) * tick
    share = st.floats(0, 0.999, allow_subnormal=False)
    instants = [value * end for value in data.draw(st.lists(share, min_size=1, max_size=6))]
    on_frames = data.draw(
        st.lists(st.tuples(st.integers(0, len(pts) - 1), st.sampled_from([0.0, 0.3, 0.9])), max_size=4)
    )
    instants += [max(0.0, float(pts[n] - before) * tick) for n, before in on_frames]
    got = opened.get(row, seconds=instants)
    numbers = [int(np.flatnonzero(pts < at / tick + 1 - 1e-6)[-1]) for at in instants]
    assert numbers[len(instants) - len(on_frames) :] == [n for n, _ in on_frames]
    assert_same(got, opened.get(row, frames=numbers))
    np.testing.assert_array_equal(got["pts"].numpy(), pts[numbers] * tick)


@pytest.mark.parametrize("pad", ["edge", "constant"])
@pytest.mark.parametrize("transform", [PLAIN, AUGMENTED], ids=["plain", "augmented"])
def test_samples_are_those_of_a_stream_loader(dataset: Path, transform: sv.Transform, pad: Any) -> None:
    options: dict[str, Any] = {
        "sampling": sv.Window(6, fps=12, pad=pad), "transform": transform, "seed": 5, "columns": ["score", "place"],
    }  # fmt: skip
    subset = sv.Subset(dataset, where="width == 96 and rotation == 0")
    ds = sv.ClipDataset(subset, **options)
    assert len(ds) == len(RECIPES) - 1
    with sv.StreamLoader(subset, batch_size=4, shuffle=False, device="cpu", num_threads=2, **options) as loader:
        for epoch in range(2):
            ds.set_epoch(epoch)
            for number, batch in enumerate(loader):
                assert_same(default_collate([ds[i] for i in range(4 * number, min(4 * number + 4, len(ds)))]), batch)


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_samples_are_on_the_cpu_whatever_pytorchs_default_device_is(dataset: Path, dtype: Any) -> None:
    """As after `torch.set_default_device("cuda")`, in whose place "meta" is: a forked worker must not use CUDA."""
    transform = sv.Transform(resize=64, crop=48, dtype=dtype)
    options: dict[str, Any] = {"sampling": sv.Window(4), "transform": transform, "columns": ["score"]}
    expected = sv.ClipDataset(dataset, **options)[0]
    with torch.device("meta"):
        opened = sv.ClipDataset(dataset, **options)
        assert_same(opened[0], expected)
        opened.set_epoch(1)
        assert opened.get(0, frames=[0])["video"].device.type == "cpu"


def test_turned_clips_and_views_as_from_a_stream_loader(dataset: Path) -> None:
    views = {
        "small": sv.Transform(resize=(32, 32), horizontal_flip=0.5),
        "raw": sv.Transform(resize=(40, 60), dtype="uint8"),
    }
    options: dict[str, Any] = {"sampling": sv.Uniform(3, pick="random"), "transform": views}
    ds = sv.ClipDataset(dataset, **options)
    with sv.StreamLoader(dataset, batch_size=len(ds), shuffle=False, device="cpu", **options) as loader:
        (batch,) = loader
    assert_same(default_collate([ds[i] for i in range(len(ds))]), batch)


def test_items(dataset: Path) -> None:
    ds = sv.ClipDataset(dataset, sampling=sv.Frames([0]))
    keys = [ds[i]["key"] for i in range(len(ds))]
    assert sorted(keys) == sorted(RECIPES)
    for row, key in enumerate(keys):
        assert_same(ds[key], ds[row])
        assert_same(ds[row - len(ds)], ds[row])
        assert_same(ds[sv.At(key, frames=[0])], ds[torch.tensor(row)])  # type: ignore[index]
        assert all(item in ds for item in (key, row, sv.At(key, frames=[0])))
    for missing in (len(ds), -len(ds) - 1, "none", None, 1.5, sv.At("none", frames=[0])):
        assert missing not in ds
    for wrong in (len(ds), -len(ds) - 1):
        with pytest.raises(IndexError, match=f"no item {wrong}: the dataset has {len(ds)}, numbered from 0"):
            ds[wrong]
        with pytest.raises(IndexError, match=f"no clip {wrong}: the dataset has {len(ds)}, numbered from 0"):
            ds.get(wrong, frames=[0])
    with pytest.raises(TypeError, match=r"ClipDataset.get has no argument 'frame'; did you mean 'frames'\?"):
        ds.get(0, frame=[0])  # type: ignore[call-arg]
    for wrong_key in ("none", "", "zzz", "a\x00"):
        with pytest.raises(KeyError):
            ds[wrong_key]
    for frames in ([5], [-1], [0, 1 << 70]):
        with pytest.raises(IndexError, match=r"five.* has 5 frames"):
            ds.get("five", frames=frames)
    for seconds in ([0.0, 99.0], [-0.1], [float("inf")]):
        with pytest.raises(IndexError, match="five"):
            ds.get("five", seconds=seconds)
    no_items: list[Any] = [1.5, None, True, [1]]
    for item in no_items:
        with pytest.raises(sv.InputError):
            ds[item]
    no_lists: list[Any] = [[], "five", 3, None, np.array(3)]
    for items in no_lists:
        with pytest.raises(sv.InputError, match="items must be"):
            ds.encode(items)
    wrong_frames: list[Any] = [[], "12", [0.5], [True], [float("nan")], 3]
    for given_frames in wrong_frames:
        with pytest.raises(sv.InputError):
            ds.get("five", frames=given_frames)
    with pytest.raises(sv.InputError):
        ds.get("five", frames=[0], seconds=[0])
    with pytest.raises(sv.InputError, match="frames must be given"):
        sv.ClipDataset(dataset)["five"]


def test_several_samples_of_a_clip_and_short_clips(dataset: Path) -> None:
    options: dict[str, Any] = {
        "sampling": sv.TiledWindows(8, pad="none"),
        "transform": sv.Transform(resize=(32, 32)),
    }
    ds = sv.ClipDataset(dataset, **options)
    assert len(ds) > len(RECIPES)
    with sv.StreamLoader(dataset, batch_size=1, shuffle=False, device="cpu", **options) as loader:
        for n, batch in enumerate(loader):
            assert_same(default_collate([ds[n]]), batch)
        assert n == len(ds) - 1
    assert "five" not in {ds[n]["key"] for n in range(len(ds))}
    with pytest.raises(sv.InputError, match="'five' is too short"):
        ds["five"]


def test_an_error_of_the_users_function_is_its_own(dataset: Path) -> None:
    """It was called a clip that is too short."""

    def frames(clip: Any) -> list[int]:
        raise ValueError("not mine")

    with pytest.raises(ValueError, match=r"^not mine"):
        sv.ClipDataset(dataset, sampling=sv.ByClip(2, frames=frames))[0]


def test_epochs_draw_anew_and_again(dataset: Path) -> None:
    ds = sv.ClipDataset(dataset, sampling=sv.Window(3), transform=sv.Transform(resize=64, crop=32), seed=1)
    epochs = []
    for epoch in (0, 1, 0):
        ds.set_epoch(epoch)
        epochs.append(ds["b_frames"])
    assert_same(epochs[0], epochs[2])
    assert not torch.equal(epochs[0]["video"], epochs[1]["video"])
    # Other frames of the same clip are cropped elsewhere.
    crops = {ds.get("b_frames", frames=[n, 0])["video"][:, 1].numpy().tobytes() for n in range(5)}
    assert len(crops) == 5


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1), ("forkserver", 1)])
def test_workers_of_any_kind(dataset: Path, start: str, workers: int) -> None:
    ds = sv.ClipDataset(dataset, sampling=sv.Window(4), transform=AUGMENTED, columns=["place"])
    expected = [[default_collate([ds[i] for i in range(n, n + 5)]) for n in (0, 5)]]
    ds.set_epoch(1)
    expected.append([default_collate([ds[i] for i in range(n, n + 5)]) for n in (0, 5)])
    batches = DataLoader(ds, batch_size=5, num_workers=workers, multiprocessing_context=start, persistent_workers=True)
    for epoch in (0, 1):
        ds.set_epoch(epoch)  # reaches workers that are running
        for got, wanted in zip(batches, expected[epoch], strict=True):
            assert_same(got, wanted)


@pytest.mark.parametrize(("start", "gpu_loader"), [("spawn", False), ("fork", True)])
def test_a_temporary_folder_too_long_for_sockets_is_named(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, start: str, gpu_loader: bool
) -> None:
    """PyTorch loses such batches in a thread of the worker, and waits forever."""
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    monkeypatch.setitem(config, "tempdir", f"/tmp/{'x' * 86}")
    ds = sv.ClipDataset(dataset, sampling=sv.Window(4), transform=AUGMENTED)
    made: Any = partial(sv.GpuDataLoader, device="cpu") if gpu_loader else DataLoader
    loader = made(ds, batch_size=2, num_workers=1, multiprocessing_context=start, timeout=20)
    with pytest.raises(sv.StreamvidError, match="set TMPDIR to a folder with a path of 75 bytes"):
        next(iter(loader))


def test_samplers_that_name_frames(dataset: Path) -> None:
    """Frame lists of different rates and segments, as in NVIDIA/DALI issue 5888."""
    items: list[Any] = [
        sv.At("b_frames", frames=[0, 1, 2]), sv.At("b_frames", frames=[29, 0, 0]),
        sv.At("vfr", seconds=[0.5, 0.1, 0.3]), 0, "five", sv.At(-1, frames=(3, 2, 1)),
    ]  # fmt: skip
    ds = sv.ClipDataset(dataset, sampling=sv.Uniform(3), transform=sv.Transform(resize=(32, 32)))
    batches = list(DataLoader(ds, batch_size=2, sampler=items, num_workers=1))
    assert [key for batch in batches for key in batch["key"]] == [ds[item]["key"] for item in items]
    for n, batch in enumerate(batches):
        assert_same(batch, default_collate([ds[items[2 * n]], ds[items[2 * n + 1]]]))


def test_distributed_and_random_samplers(dataset: Path) -> None:
    ds = sv.ClipDataset(dataset, sampling=sv.Frames([0]), transform=sv.Transform(resize=(32, 32)))
    seen: list[int] = []
    for rank in range(2):
        sampler: Any = DistributedSampler(ds, num_replicas=2, rank=rank)
        seen += [clip for batch in DataLoader(ds, batch_size=2, sampler=sampler) for clip in batch["clip"].tolist()]
    assert sorted(seen) == list(range(len(ds)))
    drawn = DataLoader(ds, batch_size=4, sampler=RandomSampler(ds, num_samples=7))
    assert sum(len(batch["clip"]) for batch in drawn) == 7


def test_a_pickled_dataset_is_small_and_the_same(dataset: Path) -> None:
    ds = sv.ClipDataset(dataset, sampling=sv.Uniform(2, pad="none"), transform=AUGMENTED)
    expected = ds["vp9"]  # with a pipeline, open files and an index that stay behind
    data = pickle.dumps(ds)
    assert len(data) < 3000
    assert_same(pickle.loads(data)["vp9"], expected)


def test_a_pickled_dataset_is_not_another_one_that_was_packed_in_its_place(dataset: Path, tmp_path: Path) -> None:
    """As in workers that are spawned in the next epoch: the frames of the new clips would come under the old keys."""
    folder = Path(shutil.copytree(dataset, tmp_path / "set"))
    data = pickle.dumps(sv.ClipDataset(folder, sampling=sv.Uniform(2)))
    assert len(pickle.loads(data)) == len(sv.ClipDataset(dataset))
    sv.forget(folder, ["vp9"])
    assert len(pickle.loads(data)) == len(sv.ClipDataset(dataset))  # its revision is there
    write(replace(SMALL, seed=99), tmp_path / "vp9.mp4")
    shutil.rmtree(folder)
    sv.pack([tmp_path / "vp9.mp4"], folder, progress=False)
    with pytest.raises(sv.DatasetError, match="packed again"):
        len(pickle.loads(data))
    with pytest.raises(sv.DatasetError, match="packed again"):
        len(pickle.loads(pickle.dumps(pickle.loads(data))))


def test_nothing_is_put_into_dev_shm_without_workers(dataset: Path) -> None:
    """Containers may have none, or none that can be written."""
    before = Path("/proc/self/maps").read_text().count("/dev/shm/torch")
    ds = sv.ClipDataset(sv.Subset(dataset, keys=["vp9", "hevc_open"]), sampling=sv.Uniform(2))
    next(iter(torch.utils.data.DataLoader(ds)))
    assert Path("/proc/self/maps").read_text().count("/dev/shm/torch") == before


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda ds: pickle.loads(pickle.dumps(ds))])
def test_workers_of_a_copy_see_its_epoch(dataset: Path, copied: Callable[[sv.ClipDataset], sv.ClipDataset]) -> None:
    original = sv.ClipDataset(dataset, sampling=sv.Uniform(2), transform=AUGMENTED)
    ds = copied(original)
    options: Any = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    batches = torch.utils.data.DataLoader(ds, batch_size=1, **options)
    for epoch in (0, 3):
        ds.set_epoch(epoch)
        assert {int(batch["epoch"]) for batch in batches} == {epoch}
    assert original.epoch == 0


@pytest.mark.parametrize("loader", [torch.utils.data.DataLoader, sv.GpuDataLoader])
def test_spawned_workers_say_why_they_cannot_open_the_dataset(dataset: Path, tmp_path: Path, loader: Any) -> None:
    folder = Path(shutil.copytree(dataset, tmp_path / "set"))
    clips = sv.ClipDataset(folder, sampling=sv.Uniform(2), transform=AUGMENTED)
    batches = loader(clips, batch_size=1, num_workers=1, multiprocessing_context="spawn")
    shutil.rmtree(folder)
    with pytest.raises(sv.DatasetError, match=r"no dataset at .*: there is no dataset\.json; check the path") as error:
        next(iter(batches))
    assert ("\n" in str(error.value)) == (loader is torch.utils.data.DataLoader)  # PyTorch adds the traceback


def test_open_files_are_bounded(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "MAX_OPEN_FILES", 2)
    gc.collect()  # what other tests left
    before = open_tars()
    ds = sv.ClipDataset(dataset)
    for _ in range(2):
        for row in range(len(ds)):
            ds.get(row, frames=[0])
            assert 1 <= open_tars() - before <= 2
    del ds
    gc.collect()
    assert open_tars() == before


def _in_child(ds: sv.ClipDataset, answers: Any) -> None:
    inherited = open_tars()
    video = ds.get("vp9", frames=[3])["video"]
    answers.put((video.numpy().tobytes(), open_tars() - inherited))


def test_a_forked_child_uses_nothing_of_its_parent(dataset: Path) -> None:
    """Neither its open files, nor its pipeline, nor a lock that another thread holds while the process forks."""
    ds = sv.ClipDataset(dataset, transform=sv.Transform(resize=32))
    expected = ds.get("vp9", frames=[3])["video"].numpy().tobytes()
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    ds.get("one", frames=[0])
    files, indexes = ds.dataset.reader._open, ds.dataset._indexes
    open_of_dataset = len(files._values)
    assert open_of_dataset >= 2
    with files._lock, indexes._lock:
        child = context.Process(target=_in_child, args=(ds, answers))
        child.start()
    # It opened the shard's two files anew, and closed those that its dataset came with.
    assert answers.get(timeout=120) == (expected, 2 - open_of_dataset)
    child.join(120)
    assert child.exitcode == 0


class CountingFiles(MemoryFileSystem):  # type: ignore[misc]
    """A storage that counts what is asked of it."""

    protocol = "counting"
    store: dict[str, Any] = {}  # noqa: RUF012  as fsspec has it
    pseudo_dirs = [""]  # noqa: RUF012
    asked: list[tuple[str, int | None, int | None]] = []  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("counting://")))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        type(self).asked.append((path, start, end))
        return bytes(super().cat_file(path, start, end, **kwargs))


@pytest.fixture
def counting(dataset: Path) -> Iterator[str]:
    fsspec.register_implementation("counting", CountingFiles, clobber=True)
    for path in dataset.rglob("*"):
        if path.is_file():
            CountingFiles().pipe_file(f"/mine/{path.relative_to(dataset)}", path.read_bytes())
    try:
        yield "counting://mine"
    finally:
        CountingFiles.store.clear()


def test_only_what_is_needed_is_read_from_an_object_store(dataset: Path, counting: str) -> None:
    local, remote = sv.ClipDataset(dataset), sv.ClipDataset(counting)
    CountingFiles.asked.clear()
    row, frames = local.dataset.row("trimmed"), [2, 14, 24]
    clips = local.dataset.clips
    assert_same(remote.get("trimmed", frames=frames), local.get("trimmed", frames=frames))
    (index_path, start, end), *ranges = CountingFiles.asked
    assert index_path.endswith(".packets")
    assert (start, end) == (clips.index_offset[row], clips.index_offset[row] + clips.index_size[row])
    needed = len(local.encoded(sv.At("trimmed", frames=frames)).data)
    read = sum(end - start for _, start, end in ranges if start is not None and end is not None)
    assert len(ranges) <= 3
    assert needed <= read <= 1.15 * needed
    # The frame index is at hand now.
    CountingFiles.asked.clear()
    remote.get("trimmed", frames=[1])
    assert len(CountingFiles.asked) == 1


def test_a_batch_is_read_side_by_side(counting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = CountingFiles.cat_ranges

    def spied(self: Any, paths: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        calls.append(len(paths))
        return original(self, paths, *args, **kwargs)

    monkeypatch.setattr(CountingFiles, "cat_ranges", spied)
    ds = sv.ClipDataset(counting, sampling=sv.Frames([0]), transform=sv.Transform(resize=(32, 32)))
    calls.clear()
    ds.__getitems__([0, 1, 2, 3])
    assert calls == [2, 4]  # the indexes, of two shards, at once, then four slices
    assert ds.__getitems__([]) == []


def test_a_storage_that_recovers_is_tried_again(counting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = sv.ClipDataset(counting, retry_for=Clock().retry(20))
    expected = ds.get(0, frames=[0])
    failures = [ConnectionError("gone"), TimeoutError("slow")]
    original = CountingFiles.cat_file

    def flaky(self: Any, *args: Any, **kwargs: Any) -> bytes:
        if failures:
            raise failures.pop()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(CountingFiles, "cat_file", flaky)
    assert_same(ds.get(0, frames=[0]), expected)
    failures[:] = [ConnectionError("gone")] * 1000
    with pytest.raises(sv.DatasetError, match="cannot be reached"):
        ds.get(0, frames=[0])


def damage(dataset: Path, target: Path, start: int, data: bytes, row: int, extension: str = "tar") -> Path:
    """A copy of the dataset with other bytes in a file of that row's shard."""
    shutil.copytree(dataset, target)
    ds = sv.Dataset.open(target)
    tar = Path(ds.shard_path(int(ds.clips.shard[row]), extension))
    content = bytearray(tar.read_bytes())
    content[start : start + len(data)] = data
    tar.write_bytes(content)
    reseal(target)
    return target


def test_a_slice_says_if_the_order_of_its_pictures_is_not_known(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "set")
    clips = sv.Dataset.open(dataset).clips
    row = list(clips.key).index("b_frames")
    shard = clips.shard[row]
    parquet = Path(sv.Dataset.open(tmp_path / "set").shard_path(int(shard))).with_suffix(".parquet")
    edit_parquet(parquet, int(np.count_nonzero(clips.shard[:row] == shard)), traits="lead-in,unordered")
    reseal(tmp_path / "set")
    ds = sv.ClipDataset(tmp_path / "set")
    orders = {key: ds.encoded(sv.At(key, frames=[0])).in_order for key in clips.key}
    assert orders == {key: key != "b_frames" for key in clips.key}


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"offset": 1 << 40}, "does not lie within"),
        ({"offset": -1}, "does not lie within"),
        ({"size": 0}, "does not lie within"),
        ({"flags": 9}, "number of visible packets"),
        ({"pts": 1 << 60}, "out of range"),
    ],
)
def test_an_index_that_contradicts_its_row_is_named(
    dataset: Path, tmp_path: Path, columns: dict[str, int], reason: str
) -> None:
    shutil.copytree(dataset, tmp_path / "set")
    row = sv.Dataset.open(dataset).row("b_frames")
    index = sv.Dataset.open(dataset).index(row)
    last = int(index.visible[-1])
    changed = {name: np.where(np.arange(len(index)) == last, n, getattr(index, name)) for name, n in columns.items()}
    edit_index(tmp_path / "set", row, **changed)
    reseal(tmp_path / "set")
    with pytest.raises(sv.ClipError, match=f"'b_frames'.*({reason})") as error:
        sv.ClipDataset(tmp_path / "set").get("b_frames", frames=[0])
    assert (error.value.row, error.value.suspect) == (row, "index")


def test_a_clip_damaged_since_it_was_packed_is_named(dataset: Path, tmp_path: Path) -> None:
    opened = sv.Dataset.open(dataset)
    row = opened.row("b_frames")
    first = int(opened.clips.mp4_offset[row] + opened.index(row).offset[0])
    bad = damage(dataset, tmp_path / "bad", first, bytes(int(opened.index(row).size[0])), row)
    ds = sv.ClipDataset(bad)
    with pytest.raises(sv.ClipError, match=r"'b_frames'.*CRC-32C") as error:
        ds.get("b_frames", frames=[0])
    found = error.value
    assert (found.row, found.key, found.offset, found.packet, found.suspect) == (row, "b_frames", first, 0, "shard")
    assert found.shard == opened.shards[int(opened.clips.shard[row])].name
    tar = Path(opened.shard_path(int(opened.clips.shard[row]))).name
    (bad / "shards" / tar).unlink()
    with pytest.raises(sv.DatasetError, match=tar):
        sv.ClipDataset(bad)


def test_a_clip_of_a_damaged_video_is_named(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "set")
    replace_packets(tmp_path / "set", sv.Dataset.open(dataset).row("b_frames"), bytes)
    with pytest.raises(sv.VideoError, match="b_frames"):
        sv.ClipDataset(tmp_path / "set").get("b_frames", frames=[0])


def test_options_that_cannot_be(dataset: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"sampling": sv.Window}, {"transform": 3}, {"seed": "a"}, {"columns": "score"},
        {"columns": ["nothing"]}, {"columns": ["key"]}, {"dataset": sv.Mix([(dataset, 1)])}, {"dataset": 7},
        {"dataset": sv.Subset(dataset, weights="balanced")}, {"dataset": sv.Subset(dataset, where="width > 9999")},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(sv.InputError):
            sv.ClipDataset(**({"dataset": dataset, "sampling": sv.Frames([0])} | options))
    with pytest.raises(sv.DatasetError):
        sv.ClipDataset(dataset / "nowhere")
    with pytest.raises(sv.InputError, match=r"larger than the frames.*five"):
        sv.ClipDataset(dataset, transform=sv.Transform(crop=500)).get("five", frames=[0])


def test_a_dataset_that_was_opened_already(dataset: Path) -> None:
    opened = sv.Dataset.open(dataset)
    ds = sv.ClipDataset(opened)
    assert ds.dataset is opened
    assert_same(ds.get("one", frames=[0]), sv.ClipDataset(str(dataset)).get("one", frames=[0]))
