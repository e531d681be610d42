"""GpuDataLoader: a StreamLoader's batches by way of DataLoader's samplers and workers; it ends whatever happens."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, default_collate

import streamvid as sv
from streamvid.decode.cpu import CpuDecoder
from streamvid.loader.shm_transfer import pack, unpack
from tests.loader.test_clip_dataset import damage
from tests.support.batches import assert_same
from tests.support.clock import soon
from tests.support.packed import pack_with_columns, replace_packets
from tests.support.processes import alive, command_line, processes_below
from tests.support.sampling import padded
from tools.clips import Recipe

SMALL = Recipe(width=96, height=64, gop=12, frames=30)
RECIPES: dict[str, Recipe] = {
    "b_frames": replace(SMALL, b_frames=3),
    "hevc": replace(SMALL, codec="hevc", b_frames=3, seed=1),
    "vp9": replace(SMALL, codec="vp9", container="webm", seed=2),
    "mjpeg": replace(SMALL, codec="mjpeg", container="avi", frames=14, seed=3),
    "turned": replace(SMALL, rotation=90, seed=4),
    "slow": replace(SMALL, frames=20, jitter=2, seed=5),
    "five": replace(SMALL, frames=5, seed=6),
}
SQUARE = sv.Transform(resize=(48, 48), horizontal_flip=0.5, contrast=0.4, dtype="float16")
OPTIONS: dict[str, Any] = {
    "sampling": sv.Window(6, fps=12), "transform": SQUARE, "seed": 7, "columns": ["score", "place"],
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proxy")
    pack_with_columns(RECIPES, folder)
    assert set(sv.Dataset.open(folder / "set").clips.codec.names) == {"h264", "hevc", "vp9", "mjpeg"}
    return folder / "set"


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No worker and no thread of a loader is there afterwards, but for those of modules before this one: their loaders
    may wait for the garbage collector."""
    before = {*workers(), *loader_threads()}
    yield

    def left() -> list[Any]:
        return [one for one in (*workers(), *loader_threads()) if one not in before]

    assert soon(lambda: not left()), left()


def workers() -> list[int]:
    """Processes of ours, but for those that Python keeps for itself until it ends."""
    commands = {pid: command_line(pid) for pid in processes_below(os.getpid())}
    return [pid for pid, own in commands.items() if own and b"resource_tracker" not in own and b"forkserver" not in own]


def loader_threads() -> list[Any]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("streamvid")]


@pytest.mark.parametrize(
    ("num_workers", "start", "pad"),
    [(0, None, "edge"), (2, "fork", "edge"), (2, "fork", "constant"), (1, "spawn", "edge"), (1, "forkserver", "edge")],
)
@pytest.mark.usefixtures("nothing_left")
def test_batches_are_those_of_a_stream_loader(dataset: Path, num_workers: int, start: Any, pad: Any) -> None:
    options = {**OPTIONS, "sampling": padded(OPTIONS["sampling"], pad)}
    ds = sv.ClipDataset(dataset, **options)
    with (
        sv.StreamLoader(dataset, batch_size=3, shuffle=False, device="cpu", num_threads=2, **options) as stream,
        sv.GpuDataLoader(
            ds, batch_size=3, num_workers=num_workers, multiprocessing_context=start,
            persistent_workers=num_workers > 0, device="cpu", num_threads=2,
        ) as proxy,
    ):  # fmt: skip
        assert len(proxy) == len(stream) == 3
        for _ in range(2):
            for got, expected in zip(proxy, stream, strict=True):
                assert_same(got, expected)
        now, then = proxy.stats(), stream.stats()
        assert (now.batches, now.clips, now.frames) == (then.batches, then.clips, then.frames)
        assert now.bytes_read == then.bytes_read


ITEMS: list[Any] = [
    sv.At("b_frames", frames=[29, 0, 0, 7]), sv.At("mjpeg", frames=[3]), sv.At("slow", seconds=[0.3, 0.1]),
    sv.At("five", frames=range(5)), sv.At("mjpeg", seconds=[0.0, 0.2]), "hevc", 0,
]  # fmt: skip


@pytest.mark.parametrize("pad", ["edge", "constant"])
@pytest.mark.usefixtures("nothing_left")
def test_frame_lists_of_different_lengths_share_a_batch(dataset: Path, pad: Any) -> None:
    """Of different rates and segments, as in NVIDIA/DALI issue 5888, and of Motion JPEG beside other codecs."""
    options = {**OPTIONS, "sampling": padded(OPTIONS["sampling"], pad)}
    ds = sv.ClipDataset(dataset, **options)
    with sv.GpuDataLoader(ds, batch_size=4, sampler=ITEMS, num_workers=1, device="cpu") as proxy:
        batches = list(proxy)
    assert [batch["video"].shape[2] for batch in batches] == [5, 6]
    alone = [ds[item] for item in ITEMS]
    for n, wanted in enumerate(alone):
        batch, place = batches[n // 4], n % 4
        slots = len(wanted["mask"])
        assert batch["key"][place] == wanted["key"]
        assert batch["mask"][place].tolist() == wanted["mask"].tolist() + [False] * (batch["mask"].shape[1] - slots)
        assert torch.equal(batch["video"][place, :, :slots], wanted["video"])
        assert torch.equal(batch["pts"][place, :slots], wanted["pts"])
        for slot in range(slots, batch["mask"].shape[1]):
            last = wanted["video"][:, -1] if pad == "edge" else torch.zeros_like(wanted["video"][:, -1])
            assert torch.equal(batch["video"][place, :, slot], last)


@pytest.mark.usefixtures("nothing_left")
def test_samplers_of_any_kind(dataset: Path) -> None:
    ds = sv.ClipDataset(dataset, **OPTIONS)

    def seen(**options: Any) -> list[list[int]]:
        with sv.GpuDataLoader(ds, device="cpu", num_threads=1, **options) as proxy:
            return [batch["clip"].tolist() for batch in proxy]

    parts = [
        seen(batch_size=2, sampler=DistributedSampler(ds, num_replicas=2, rank=rank, shuffle=False)) for rank in (0, 1)
    ]
    assert parts == [[[0, 2], [4, 6]], [[1, 3], [5, 0]]]
    batches = BatchSampler(RandomSampler(ds, generator=torch.Generator().manual_seed(1)), 3, drop_last=False)
    assert sorted(row for batch in seen(batch_sampler=batches) for row in batch) == list(range(len(ds)))
    assert seen(batch_sampler=[[1], [2, 3, 4], [0, 0]], batch_size=3) == [[1], [2, 3, 4], [0, 0]]
    assert [len(batch) for batch in seen(batch_size=4, shuffle=True, drop_last=True)] == [4]
    with pytest.raises(sv.InputError, match="gave 3 clips"):
        seen(batch_sampler=[[1, 2, 3]], batch_size=2)
    with pytest.raises(sv.InputError, match="gave 1, which is no list of items"):
        seen(batch_sampler=[1, 2, 3], batch_size=2)


def test_ranks_that_all_get_everything_are_told(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ds = sv.ClipDataset(dataset, **OPTIONS)
    for ranks, options, said in (
        (1, {}, 0),
        (2, {}, 1),
        (2, {"sampler": DistributedSampler(ds, num_replicas=2, rank=0)}, 0),
        (2, {"shuffle": True}, 1),
    ):
        caplog.clear()
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda ranks=ranks: ranks)
        with sv.GpuDataLoader(ds, batch_size=4, device="cpu", **options) as loader:  # type: ignore[arg-type]
            for _ in range(2):
                list(loader)
        assert caplog.text.count("DistributedSampler") == said


def test_epochs(dataset: Path) -> None:
    ds = sv.ClipDataset(dataset, **OPTIONS)
    sampler: Any = DistributedSampler(ds, num_replicas=1, rank=0)
    with sv.GpuDataLoader(ds, batch_size=8, sampler=sampler, device="cpu") as proxy:
        first = [next(iter(proxy)) for _ in range(2)]
        assert [batch["epoch"][0].item() for batch in first] == [0, 1]
        assert first[0]["clip"].tolist() == first[1]["clip"].tolist()
        proxy.set_epoch(5)
        assert (proxy.epoch, sampler.epoch) == (5, 5)
        fifth = next(iter(proxy))
        assert fifth["epoch"].tolist() == [5] * len(ds)
        proxy.set_epoch(0)
        assert_same(next(iter(proxy)), first[0])
    ds.set_epoch(5)
    assert_same(default_collate([ds[row] for row in fifth["clip"].tolist()]), fifth)


@pytest.mark.parametrize(
    ("name", "num_workers"), [("streamvid-read", 0), ("streamvid-decode", 0), ("streamvid-decode", 1)]
)
@pytest.mark.usefixtures("nothing_left")
def test_ctrl_c_while_a_thread_begins_leaves_none(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, name: str, num_workers: int
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == name:
            raise KeyboardInterrupt

    start = threading.Thread.start
    with sv.GpuDataLoader(sv.ClipDataset(dataset, **OPTIONS), batch_size=1, num_workers=num_workers) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with contextlib.suppress(KeyboardInterrupt):
                list(loader)
        assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_of_one_dataset_are_each_in_an_epoch_of_their_own(dataset: Path, num_workers: int) -> None:
    """As one that trains, and one that evaluates more often: its epochs are not those of what the first reads ahead."""

    def times(*, evaluated: bool) -> list[Any]:
        ds = sv.ClipDataset(dataset, **OPTIONS)
        options: dict[str, Any] = {"batch_size": 1, "device": "cpu", "num_threads": 1}
        with (
            sv.GpuDataLoader(ds, sampler=[*range(len(ds))] * 3, num_workers=num_workers, **options) as train,
            sv.GpuDataLoader(ds, sampler=["five"], **options) as evaluate,
        ):
            seen = []
            for number, batch in enumerate(train):
                seen.append((batch["epoch"].tolist(), batch["pts"].tolist()))
                if evaluated and not number:
                    assert [one["epoch"].tolist() for _ in range(2) for one in evaluate] == [[0], [1]]
            return seen

    assert times(evaluated=True) == times(evaluated=False)


def test_iterations_at_the_same_time_are_each_of_their_own_epoch(dataset: Path) -> None:
    ds = sv.ClipDataset(dataset, **OPTIONS)
    with sv.GpuDataLoader(ds, batch_size=1, sampler=[*range(len(ds))] * 2, device="cpu", num_threads=1) as loader:
        for one, two in zip(loader, loader, strict=True):
            assert (set(one["epoch"].tolist()), set(two["epoch"].tolist())) == ({0}, {1})


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.usefixtures("nothing_left")
def test_an_error_in_a_worker_is_one_sentence(dataset: Path, tmp_path: Path, num_workers: int) -> None:
    opened = sv.Dataset.open(dataset)
    row = list(opened.clips.key).index("five")
    bad = damage(dataset, tmp_path / "bad", int(opened.clips.index_offset[row]) + 8, b"\xff" * 8, row, "packets")
    cases: list[tuple[Any, type[Exception], str]] = [
        (["b_frames", "five"], sv.DatasetError, "'five'.* damaged"),
        ([sv.At("hevc", frames=[99])], IndexError, "'hevc' has 30 frames"),
        (["none"], KeyError, "none"),
        ([0.5], sv.InputError, "0.5"),
        ([99], IndexError, "99"),
    ]
    for sampler, kind, text in cases:
        with sv.GpuDataLoader(
            sv.ClipDataset(bad, **OPTIONS, on_error="raise"),
            batch_size=1,
            sampler=sampler,
            num_workers=num_workers,
            device="cpu",
        ) as proxy:
            with pytest.raises(kind, match=text) as caught:
                list(proxy)
            assert "Traceback" not in str(caught.value)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.usefixtures("nothing_left")
def test_an_error_of_the_decoder_is_raised(dataset: Path, tmp_path: Path, num_workers: int) -> None:
    shutil.copytree(dataset, tmp_path / "bad")
    replace_packets(tmp_path / "bad", sv.Dataset.open(dataset).row("five"), bytes)
    ds = sv.ClipDataset(tmp_path / "bad", **OPTIONS, on_error="raise")
    with sv.GpuDataLoader(ds, batch_size=1, num_workers=num_workers, device="cpu") as proxy:
        with pytest.raises(sv.VideoError, match="five") as caught:
            list(proxy)
        assert caught.tb is not None  # it holds the iterator's frames, and with them what they refer to
        assert not workers()
        # The same loader goes on with clips that are whole.
        with sv.GpuDataLoader(ds, batch_size=1, sampler=["hevc"], device="cpu") as again:
            assert len(list(again)) == 1


class Died(BaseException):
    pass


def test_a_decode_thread_that_dies_is_noticed(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise Died

    monkeypatch.setattr(CpuDecoder, "write", die)
    with (
        sv.GpuDataLoader(sv.ClipDataset(dataset, **OPTIONS), batch_size=2, num_workers=1, device="cpu") as proxy,
        pytest.raises(Died),
    ):
        list(proxy)


class Endless:
    """The same items again and again."""

    def __init__(self, items: list[Any], pause: Callable[[], None] = lambda: None) -> None:
        self._items, self._pause = items, pause

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._pause()
            yield from self._items


def until(batches: Iterator[Any], deadline: float) -> Iterator[Any]:
    for batch in batches:
        assert time.monotonic() < deadline, "nobody noticed"
        yield batch["clip"]


@pytest.mark.usefixtures("nothing_left")
def test_a_killed_worker_is_noticed(dataset: Path) -> None:
    ds = sv.ClipDataset(dataset, **OPTIONS)
    with sv.GpuDataLoader(
        ds, batch_size=2, sampler=Endless([0, 1, 2]), num_workers=2, multiprocessing_context="fork", device="cpu"
    ) as proxy:
        batches = iter(proxy)
        next(batches)
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
        deadline = time.monotonic() + 120
        with pytest.raises(RuntimeError, match="worker") as caught:
            list(until(batches, deadline))
        assert caught.tb is not None  # it holds PyTorch's iterator
        assert not workers()


@pytest.mark.parametrize("given", [{"batch_size": 500, "drop_last": True}, {"batch_size": 2, "sampler": []}])
def test_an_epoch_without_a_batch_is_an_error(dataset: Path, given: dict[str, Any]) -> None:
    """A loop that counts epochs would never end."""
    ds = sv.ClipDataset(dataset, **OPTIONS)
    with sv.GpuDataLoader(ds, device="cpu", **given) as proxy, pytest.raises(sv.InputError, match="has no batch"):
        list(proxy)


@pytest.mark.usefixtures("nothing_left")
def test_an_epoch_after_a_persistent_worker_was_killed_has_new_workers(dataset: Path) -> None:
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    with sv.GpuDataLoader(sv.ClipDataset(dataset, **OPTIONS), batch_size=2, device="cpu", **options) as proxy:
        whole = [batch["key"] for batch in proxy]
        with pytest.raises(RuntimeError, match="worker"):
            kill_and_wait(workers()[0])
        assert [batch["key"] for batch in proxy] == whole


def kill_and_wait(worker: int) -> None:
    os.kill(worker, signal.SIGKILL)
    time.sleep(10)  # PyTorch's handler of SIGCHLD raises here


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_is_killed_while_the_loader_is_closed(dataset: Path) -> None:
    """PyTorch's handler of SIGCHLD raises wherever the main thread is: here, in the wait for the worker's end."""
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    proxy = sv.GpuDataLoader(sv.ClipDataset(dataset, **OPTIONS), batch_size=2, device="cpu", **options)
    list(proxy)
    (worker,) = workers()
    os.kill(worker, signal.SIGSTOP)
    killing = threading.Timer(0.5, os.kill, (worker, signal.SIGKILL))
    killing.start()
    proxy.close()
    killing.join()


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.usefixtures("nothing_left")
def test_leaving_early_leaves_nothing(dataset: Path, num_workers: int, persistent: bool) -> None:
    ds = sv.ClipDataset(dataset, **OPTIONS)
    options: dict[str, Any] = {"num_workers": num_workers, "persistent_workers": persistent, "device": "cpu"}
    with sv.GpuDataLoader(ds, batch_size=2, sampler=Endless([0, 1, 2]), **options) as proxy:
        for _ in proxy:
            break
        held = iter(proxy)
        next(held)
        with pytest.raises(ZeroDivisionError) as error:  # whose traceback holds the iterator's frames
            fail_in_the_loop(proxy)
        if not persistent:
            held.close()  # type: ignore[attr-defined]
            assert not workers()
    del held, error


def fail_in_the_loop(batches: Any) -> None:
    for _ in batches:
        raise ZeroDivisionError


class Owned:
    """Garbage of this process: freed in another one, it leaves a note there."""

    def __init__(self, note: Path) -> None:
        self.note, self.pid, self.itself = note, os.getpid(), self

    def __del__(self) -> None:
        if os.getpid() != self.pid:
            self.note.touch()


def test_a_forked_worker_leaves_the_garbage_of_the_main_process_alone(dataset: Path, tmp_path: Path) -> None:
    """DALI's pipelines in an exception's traceback, say: freed where their threads are not, they crash the worker."""
    ds = sv.ClipDataset(dataset, **OPTIONS)
    begun = tmp_path / "begun"

    def collect(worker: int) -> None:
        gc.collect()
        begun.touch()

    gc.disable()
    try:
        Owned(tmp_path / "note")
        with sv.GpuDataLoader(
            ds, batch_size=8, num_workers=1, multiprocessing_context="fork", worker_init_fn=collect, device="cpu"
        ) as proxy:
            list(proxy)
    finally:
        gc.enable()
        gc.collect()
    assert begun.exists()
    assert not (tmp_path / "note").exists()


SCRIPT = """
import os, sys, time, threading
import streamvid as sv
from streamvid.sampling.windows import Window
ds = sv.ClipDataset(sys.argv[1], sampling=Window(4), transform=sv.Transform(resize=(32, 32)))
class Endless:
    def __iter__(self):
        while True:
            yield from (0, 1, 2)
if __name__ == "__main__":
    proxy = sv.GpuDataLoader(ds, batch_size=2, sampler=Endless(), num_workers=2, device="cpu")
    batches = iter(proxy)
    for number in range(3):
        next(batches)
    print("running", os.getpid(), flush=True)
    if sys.argv[2] == "interrupt":
        for batch in batches:
            pass
"""


@pytest.mark.parametrize("how", ["interrupt", "end"])
def test_ctrl_c_and_the_end_of_the_program(dataset: Path, how: str, forked_python: Path) -> None:
    """A Ctrl-C reaches all processes of a terminal; and an iterator may still be there when Python ends."""
    command = [str(forked_python), "-c", SCRIPT, str(dataset), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        running, pid = process.stdout.readline().split()
        assert running == "running"
        children = processes_below(int(pid))
        if how == "interrupt":
            assert len(children) >= 2
            os.killpg(int(pid), signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            # It would go on for ever, and take the machine from all tests behind this one.
            os.killpg(int(pid), signal.SIGKILL)
            raise
    assert process.returncode in ((1, -signal.SIGINT, 130) if how == "interrupt" else (0,)), errors
    assert ("KeyboardInterrupt" in errors) == (how == "interrupt")
    assert soon(lambda: not any(map(alive, children)))


ORPHANS = """
import multiprocessing, os, sys, time
import torch.utils.data
import streamvid as sv
from streamvid.sampling.windows import Window
def begin(worker):
    parent = os.getppid()
    print(os.getpid(), flush=True)
    while os.getppid() == parent:
        time.sleep(0.01)
if __name__ == "__main__":
    ds = sv.ClipDataset(sys.argv[1], sampling=Window(4), transform=sv.Transform(resize=(32, 32)))
    context = multiprocessing.get_context(sys.argv[2])
    options = {"batch_size": 2, "num_workers": 2, "worker_init_fn": begin, "multiprocessing_context": context}
    ours = not sys.argv[3:]
    list(sv.GpuDataLoader(ds, device="cpu", **options) if ours else torch.utils.data.DataLoader(ds, **options))
"""


@pytest.mark.parametrize(("start", "loader"), [("fork", ""), ("forkserver", ""), ("forkserver", "PyTorch's")])
def test_workers_end_if_the_program_is_killed_while_they_begin(
    dataset: Path, tmp_path: Path, start: str, loader: str, forked_python: Path
) -> None:
    """PyTorch's workers look whether they still have the parent that they had behind `worker_init_fn`: by then the
    program may be gone."""
    (tmp_path / "train.py").write_text(ORPHANS)
    command = [str(forked_python), str(tmp_path / "train.py"), str(dataset), start, *loader.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
    try:
        assert soon(lambda: not any(map(alive, pids)))
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


OWN_PROCESS = """
import multiprocessing, os, sys, threading, time
import streamvid as sv
from streamvid.loader import torch_options
torch_options._PYTORCH_S = 0
def use(ds, parent, lines):
    watch = next(thread for thread in threading.enumerate() if "_end_with_parent" in thread.name)
    print(os.getpid(), flush=True)
    while os.getppid() == parent:
        time.sleep(0.1)
    watch.join()
    time.sleep(0.5)  # the process would end without a word
    open(lines, "w").write(str(len(ds[0]["video"])))
if __name__ == "__main__":
    arguments = sv.ClipDataset(sys.argv[1], sampling=sv.Window(4)), os.getpid(), sys.argv[2]
    process = multiprocessing.get_context("spawn").Process(target=use, args=arguments)
    process.start()
    process.join()
"""


def test_a_process_that_is_no_worker_may_outlive_the_program(
    dataset: Path, tmp_path: Path, forked_python: Path
) -> None:
    """One that the program spawned with a dataset, for a purpose of its own."""
    (tmp_path / "train.py").write_text(OWN_PROCESS)
    command = [forked_python, tmp_path / "train.py", dataset, tmp_path / "said"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    try:
        assert soon(lambda: not alive(pid))
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "said").read_text() == "4"


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_what_cannot_be_pickled_for_workers_is_named(dataset: Path, start: str) -> None:
    """`forkserver` is Python's default from 3.14 on."""

    def seconds(_: object) -> list[float]:
        return [0.0]

    lock = threading.Lock()
    wrong: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"sampling": sv.ByClip(4, seconds=lambda _: [0.0])}, {}),
        ({"sampling": sv.ByClip(4, seconds=seconds)}, {}),
        ({}, {"worker_init_fn": partial(print, lock)}),
    ]
    for options, more in wrong:
        ds = sv.ClipDataset(dataset, **(OPTIONS | options))
        with (
            sv.GpuDataLoader(
                ds, batch_size=2, num_workers=1, multiprocessing_context=start, device="cpu", **more
            ) as loader,
            pytest.warns(UserWarning, match="pickl"),
            pytest.raises(sv.InputError, match=r"pickle.*(lambda|seconds|lock).*multiprocessing_context='fork'"),
        ):
            next(iter(loader))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_default_device_changes_nothing(dataset: Path, num_workers: int) -> None:
    """`torch.set_default_device("cuda")` is common in training programs; PyTorch's samplers then draw there."""
    found = []
    for device in ("cpu", "meta"):
        torch.manual_seed(3)
        with torch.device(device):
            ds = sv.ClipDataset(dataset, **OPTIONS)
            with sv.GpuDataLoader(ds, batch_size=4, shuffle=True, num_workers=num_workers, device="cpu") as loader:
                found.append([*loader, *loader])
    for one, other in zip(*found, strict=True):
        assert_same(one, other)


def test_options_that_cannot_be(dataset: Path) -> None:
    ds = sv.ClipDataset(dataset, **OPTIONS)
    wrong: list[dict[str, Any]] = [
        {}, {"batch_size": 0}, {"batch_size": 2, "num_threads": 0},
        {"batch_size": 2, "sampler": 3}, {"batch_size": 2, "sampler": "clips"}, {"batch_size": 2, "batch_sampler": 3},
        {"batch_size": 2, "shuffle": "no"}, {"batch_size": 2, "drop_last": "no"}, {"batch_size": 2, "num_workers": 1.0},
        {"batch_size": 2, "timeout": "1"}, {"batch_size": 2, "num_workers": 1, "prefetch_factor": "2"},
        {"batch_size": 2, "num_workers": 1, "persistent_workers": "no"},
        {"batch_size": 2, "sampler": [0], "shuffle": True}, {"batch_sampler": [[0]]},
        {"batch_sampler": [[0]], "batch_size": 1, "shuffle": True}, {"batch_size": 2, "num_workers": -1},
        {"batch_size": 2, "persistent_workers": True},
        {"batch_size": 2, "device": "cuda:77"}, {"dataset": [1], "batch_size": 1},
        {"batch_size": 2, "sampler": np.array(2)}, {"batch_size": 2, "batch_sampler": torch.tensor(2)},
        {"batch_size": 2, "timeout": 1}, {"batch_size": 2, "generator": 3}, {"batch_size": 2, "worker_init_fn": 3},
        {"batch_size": 2, "on_error": ""}, {"batch_size": 2, "quarantine": ""},
        {"batch_size": 2, "quarantine": np.array([1, 2])},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(sv.InputError):
            sv.GpuDataLoader(**({"dataset": ds} | options))
    mixed = sv.ClipDataset(dataset, sampling=sv.Frames([0]))
    with (
        sv.GpuDataLoader(mixed, batch_size=len(ds), num_workers=1, device="cpu") as proxy,
        pytest.raises(sv.InputError, match="different sizes"),
    ):
        list(proxy)


@given(st.lists(st.sampled_from(["<i8", "u1", "f8", "?"]), max_size=4), st.data())
def test_arrays_cross_in_shared_memory(kinds: list[str], data: st.DataObject) -> None:
    arrays = []
    for kind in kinds:
        shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
        arrays.append(np.random.default_rng(0).integers(0, 2, shape).astype(kind))
    value: dict[str, Any] = {"arrays": arrays, "text": "x", "strided": np.arange(12).reshape(3, 4).T}
    shared = pack(value)
    got = unpack(shared)
    for one, two in zip([*got["arrays"], got["strided"]], [*arrays, value["strided"]], strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
        assert one.ctypes.data % one.dtype.itemsize == 0
    assert got["text"] == "x"
    assert len(shared.head) < 2000
