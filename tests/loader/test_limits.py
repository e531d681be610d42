"""Limits of the process and its surroundings: an error by one says what to do; no file is to blame, and no clip."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import av
import pytest
import torch

import streamvid as sv
from streamvid.decode import isolated
from streamvid.loader.torch_options import begin
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.video.codec_context import ReusableCodecContext
from tests.support.clips import write
from tests.support.packed import pack_recipes
from tools.clips import Recipe

SAMPLING = sv.Window(4)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n}": Recipe(width=64, height=64, frames=6, gop=3, seed=n) for n in range(4)}
    return pack_recipes(recipes, tmp_path_factory.mktemp("limits"), options=PackOptions("any"))


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def no_further_file() -> AbstractContextManager[None]:
    """What is open stays open."""
    return limited(resource.RLIMIT_NOFILE, 3)


def made(kind: str, dataset: Path) -> Any:
    clips = sv.ClipDataset(dataset, sampling=SAMPLING)
    match kind:
        case "StreamLoader":
            return sv.StreamLoader(dataset, batch_size=2, sampling=SAMPLING, device="cpu", shuffle=False)
        case "GpuDataLoader":
            return sv.GpuDataLoader(clips, batch_size=2, device="cpu")
    return clips


@pytest.mark.parametrize("kind", ["StreamLoader", "GpuDataLoader", "ClipDataset"])
@pytest.mark.parametrize("opened", [False, True], ids=["shards are closed", "shards are open"])
def test_no_further_file_may_be_opened(dataset: Path, kind: str, opened: bool) -> None:
    loader = made(kind, dataset)
    if opened and kind == "ClipDataset":
        loader.encoded(0)  # the decoder needs a file, too
    said = r"this process has all files open that it may, 3: raise the limit by `ulimit -n`"
    with pytest.raises(sv.StreamvidError, match=said) as error, no_further_file():
        next(iter(loader))
    assert type(error.value) is sv.StreamvidError
    batch = next(iter(loader))
    assert batch["valid"].all()
    if kind != "ClipDataset":
        loader.close()


def test_a_dataset_is_opened_without_files_left(dataset: Path) -> None:
    said = r"dataset.json: this process has all files open .*`ulimit -n`"
    with pytest.raises(sv.StreamvidError, match=said), no_further_file():
        sv.Dataset.open(dataset)


def test_a_dataset_is_opened_with_few_files_left(dataset: Path) -> None:
    """Enough for dataset.json, but not for what is read next: no shard is to blame."""
    opened, outcomes = {int(number) for number in os.listdir("/proc/self/fd")}, set()
    unused = [number for number in range(len(opened) + 9) if number not in opened]
    for left in range(9):
        try:
            with limited(resource.RLIMIT_NOFILE, unused[left]):
                outcomes.add(str(len(sv.Dataset.open(dataset))))
        except sv.StreamvidError as error:
            outcomes.add("limit" if "all files open that it may" in str(error) else str(error))
    assert outcomes == {"limit", "4"}


def test_no_memory_is_left_to_decode(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clip, which decodes in another process, is neither damaged nor called so."""

    def full(*_: object) -> Any:
        raise av.error.MemoryError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(ReusableCodecContext, "_open", full)
    monkeypatch.setattr("streamvid.decode.slice_frames.memory_is_short", lambda: True)
    options: Any = {"sampling": SAMPLING, "device": "cpu", "quarantine": tmp_path / "quarantine"}
    said = r"^there is no memory left for this process .*`ulimit -v`"
    with sv.StreamLoader(dataset, batch_size=1, **options) as loader, pytest.raises(sv.StreamvidError, match=said):
        next(iter(loader))
    assert loader.stats().bad_clips == 0
    assert not (tmp_path / "quarantine").exists()


_decode_into = isolated._decode_into


def decode_without_memory(descriptor: int, size: int, *args: Any) -> Iterator[Any]:
    """In the child: it gets only 2 MiB more, and a picture takes 3."""
    isolated._mapped(descriptor, size)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (2 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    yield from _decode_into(descriptor, size, *args)


def test_no_memory_is_left_to_try_a_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that tries a clip gets no memory: nothing is known about the clip, and the run decodes it."""
    write(Recipe(width=1920, height=1080, frames=4, gop=4), tmp_path / "0.mp4")
    pack([tmp_path / "0.mp4"], tmp_path / "set", options=PackOptions("any"), progress=False)
    opening = ReusableCodecContext._open

    def fails_once(self: Any, *args: Any) -> Any:
        monkeypatch.setattr(ReusableCodecContext, "_open", opening)
        raise av.error.InvalidDataError(errno.EINVAL, "a decoder that fails once")

    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # other arenas have room in reserve
    monkeypatch.setattr(ReusableCodecContext, "_open", fails_once)
    monkeypatch.setattr(isolated, "_decode_into", decode_without_memory)
    (error,) = isolated.decode_isolated([sv.ClipDataset(tmp_path / "set", sampling=SAMPLING).encoded(0)])
    assert "there is no memory left for this process" in str(error)
    options: Any = {"sampling": SAMPLING, "device": "cpu", "quarantine": tmp_path / "quarantine"}
    with sv.StreamLoader(tmp_path / "set", batch_size=1, **options) as loader:
        assert next(iter(loader))["valid"].all()
        assert loader.stats().bad_clips == 0
    assert not (tmp_path / "quarantine").exists()


def test_a_pack_without_memory_ends_instead_of_rejecting_its_videos(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Any:
        raise av.error.MemoryError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(ReusableCodecContext, "_open", full)
    for module in ("decode.slice_frames", "packing.process_source"):
        monkeypatch.setattr(f"streamvid.{module}.memory_is_short", lambda: True)
    with pytest.raises(sv.StreamvidError, match=r"there is no memory left for this process.*it goes on"):
        pack([dataset.parent / "videos"], tmp_path / "set", options=PackOptions("any"), progress=False)


def test_a_limit_of_file_sizes_is_named(dataset: Path, tmp_path: Path) -> None:
    """Opening a dataset writes its rows to a file in memory."""
    with pytest.raises(sv.StreamvidError, match="raise the limit by `ulimit -f`"), limited(resource.RLIMIT_FSIZE, 0):
        sv.Dataset.open(dataset)
    said = f"{tmp_path}/set: .*`ulimit -f`, and do the same again: it goes on"
    with pytest.raises(sv.StreamvidError, match=said), limited(resource.RLIMIT_FSIZE, 2048):
        pack([dataset.parent / "videos"], tmp_path / "set", options=PackOptions("any"), progress=False)
    pack([dataset.parent / "videos"], tmp_path / "set", options=PackOptions("any"), progress=False)
    assert len(sv.Dataset.open(tmp_path / "set")) == len(sv.Dataset.open(dataset))


@pytest.mark.parametrize("kind", ["StreamLoader", "GpuDataLoader"])
def test_no_further_thread_may_be_started(dataset: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, left = threading.Thread.start, 2

    def limited(self: threading.Thread) -> None:
        nonlocal left
        if (left := left - 1) < 0:
            raise RuntimeError("can't start new thread")  # what Python says where pthread_create fails
        start(self)

    with made(kind, dataset) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", limited)
            with pytest.raises(sv.StreamvidError, match=r"no further thread .*`ulimit -u`.* num_threads"):
                next(iter(loader))
        assert next(iter(loader))["valid"].all()


def test_no_memory_for_a_sample_is_not_its_clips_fault(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def limited(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")

    clips = made("ClipDataset", dataset)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "tensor", limited)
        with pytest.raises(sv.StreamvidError, match="no memory left") as caught:
            clips[0]
    assert not isinstance(caught.value, sv.VideoError)
    assert not caplog.text
    assert len(clips[0]["video"]) == 4


@pytest.mark.parametrize("kind", ["StreamLoader", "GpuDataLoader", "ClipDataset"])
def test_a_working_directory_that_was_removed(
    dataset: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run makes its loader for validation in every epoch, and nothing that it needs is there."""
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert next(iter(made(kind, dataset)))["valid"].all()
    for make in (partial(made, kind, Path("set")), partial(sv.ClipDataset, dataset, quarantine="bad")):
        with pytest.raises(sv.InputError, match="the working directory was removed; change to another one, or give"):
            make()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.ENOENT])
def test_workers_without_shared_memory(number: int) -> None:
    class DataLoader:
        def __iter__(self) -> Iterator[Any]:
            raise OSError(number, os.strerror(number))  # what the semaphores of its queues say

    with pytest.raises(sv.StreamvidError, match=r"cannot start its workers .*/dev/shm.*--shm-size.*working directory"):
        begin(DataLoader())


def test_a_worker_without_room_for_its_batch(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> Any:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    clips = sv.ClipDataset(dataset, sampling=SAMPLING)
    options: Any = {"num_workers": 1, "multiprocessing_context": "fork"}
    with sv.GpuDataLoader(clips, batch_size=2, device="cpu", **options) as loader, monkeypatch.context() as patch:
        patch.setattr(torch.UntypedStorage, "_new_shared", full)
        with pytest.raises(sv.StreamvidError, match=r"^a worker has no room in /dev/shm .*--shm-size"):
            next(iter(loader))
