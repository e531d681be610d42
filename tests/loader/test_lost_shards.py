"""A shard that is lost in the middle of an epoch: the error names it and its dataset, and says what to do."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

import streamvid as sv
from streamvid.fetch.shard_access import ShardAccess
from streamvid.packing.options import PackOptions
from streamvid.storage import retry
from tests.support.packed import pack_recipes
from tests.support.web import website
from tools.clips import Recipe

pytestmark = pytest.mark.usefixtures("no_threads_of_other_modules")
Batches = Iterator[dict[str, Any]]
Reader = Callable[[str, Path], Batches]


def _packed(folder: Path, seed: int) -> Path:
    recipe = Recipe(codec="vp9", container="webm", width=64, height=64, frames=12)
    recipes = {f"{n:02}.webm": replace(recipe, seed=seed + n) for n in range(24)}
    return pack_recipes(recipes, folder, shard_size=1000, options=PackOptions("any"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More shards of one clip each than are read ahead."""
    packed = _packed(tmp_path_factory.mktemp("lost"), 0)
    assert len(sv.Dataset.open(packed).shards) == 24
    return packed


def streamed(path: str, cache: Path, **options: Any) -> Batches:
    with sv.StreamLoader(
        path,
        batch_size=1,
        sampling=sv.Window(2),
        device="cpu",
        num_threads=1,
        cache_dir=cache,
        shuffle=False,
        on_error="raise",
        **options,
    ) as loader:
        yield from loader


def by_dali(path: str, cache: Path) -> Batches:
    return streamed(path, cache, engine="dali")


def with_another(path: str, cache: Path) -> Batches:
    """Of two datasets that are mixed."""
    with sv.StreamLoader(
        sv.Mix([(path, 1), (f"{cache}/other", 1)]),
        batch_size=1,
        sampling=sv.Window(2),
        device="cpu",
        cache_dir=cache,
        on_error="raise",
    ) as loader:
        yield from loader


def at_random(path: str, cache: Path) -> Batches:
    clips = sv.ClipDataset(path, sampling=sv.Window(2), on_error="raise")
    return (clips[n] for n in range(len(clips)))


def by_workers(path: str, cache: Path) -> Batches:
    clips = sv.ClipDataset(path, sampling=sv.Window(2), on_error="raise")
    with sv.GpuDataLoader(clips, batch_size=1, device="cpu", num_threads=1, num_workers=1, prefetch_factor=1) as loader:
        yield from loader


def each(path: Path, change: Callable[[Path], object], *extensions: str) -> None:
    for file in path.rglob("*"):
        if file.suffix[1:] in extensions:
            change(file)


FAULTS: dict[str, Callable[[Path], None]] = {
    "tars gone": lambda path: each(path, Path.unlink, "tar"),
    "tars cut": lambda path: each(path, lambda file: os.truncate(file, 600), "tar"),
    "all gone": shutil.rmtree,
}


@pytest.mark.parametrize(
    ("reader", "fault"),
    [
        *((reader, "tars gone") for reader in (streamed, by_dali, with_another, at_random, by_workers)),
        *((reader, fault) for reader in (streamed, at_random) for fault in ("tars cut", "all gone")),
        (by_dali, "tars cut"),
    ],
)
def test_shards_that_are_lost_on_disk_are_named(
    packed: Path, reader: Reader, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "REFUSED_SECONDS", 0.5)
    shutil.copytree(packed, tmp_path / "set")
    shutil.copytree(packed, tmp_path / "cache" / "other")
    batches = reader(str(tmp_path / "set"), tmp_path / "cache")
    next(batches)
    FAULTS[fault](tmp_path / "set")
    check(batches, str(tmp_path / "set"))
    if reader in (streamed, by_dali):
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("streamvid")]


def check(batches: Batches, path: str) -> None:
    with pytest.raises(sv.DatasetError, match=r"^shard 0000\d+ of the dataset ") as error:
        for _ in batches:
            pass
    text = str(error.value)
    assert f"of the dataset {path} cannot be read: " in text
    assert "restore it" in text
    assert "streamvid verify" in text
    assert "\n" not in text


@pytest.mark.parametrize("reader", [streamed, by_dali, with_another, at_random])
def test_shards_that_are_lost_in_a_bucket_are_named(
    packed: Path, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the cache does not hold yet."""
    monkeypatch.setattr(ShardAccess, "prefetch", lambda *_: None)
    monkeypatch.setattr(retry, "REFUSED_SECONDS", 0.5)
    path = f"memory://lost-{reader.__name__}"
    memory = fsspec.filesystem("memory")
    memory.put(str(packed), path, recursive=True)
    shutil.copytree(packed, tmp_path / "cache" / "other")
    batches = reader(path, tmp_path / "cache")
    next(batches)
    memory.rm(path, recursive=True)
    check(batches, path)


def test_a_bucket_that_cannot_be_reached(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is to be restored there."""
    memory = fsspec.filesystem("memory")
    memory.put(str(packed), "memory://unreachable", recursive=True)
    clips = sv.ClipDataset("memory://unreachable", sampling=sv.Window(2), retry_for=0)
    batches = (clips[n] for n in range(len(clips)))
    next(batches)

    def broken(*_: Any, **__: Any) -> None:
        raise ConnectionError("reset")

    monkeypatch.setattr(type(memory), "cat_ranges", broken)
    with pytest.raises(sv.DatasetError, match=r"^shard 0000\d+ of the dataset memory://unreachable") as error:
        next(batches)
    assert "try again" in str(error.value)
    assert "last checkpoint" in str(error.value)
    assert "restore" not in str(error.value)


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of other videos, whose shards have the names of those of `packed`."""
    return _packed(tmp_path_factory.mktemp("another"), 100)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "shards"])
@pytest.mark.parametrize("fetch", ["disk", "ranges", "shards"])
def test_a_dataset_that_is_replaced_by_another_one(
    packed: Path, another: Path, tmp_path: Path, fetch: Any, whole: bool
) -> None:
    """Before anything of it was read ahead; or its shards are, as while another is copied there. No clip is bad."""

    def files(folder: Path) -> dict[str, bytes]:
        return {f"/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*.*")}

    shutil.copytree(packed, tmp_path / "set")
    options: dict[str, Any] = {} if fetch == "disk" else {"fetch": fetch}
    with website() as site:
        site.files = files(packed)
        path = str(tmp_path / "set") if fetch == "disk" else site.url
        with sv.StreamLoader(
            path, batch_size=1, sampling=sv.Window(2), device="cpu", num_threads=1, shuffle=False,
            quarantine=tmp_path / "quarantine", cache_dir=tmp_path / "cache", **options,
        ) as loader:  # fmt: skip
            left = () if whole else ("dataset.json",)
            shutil.copytree(another, tmp_path / "set", dirs_exist_ok=True, ignore=shutil.ignore_patterns(*left))
            site.files |= {name: data for name, data in files(another).items() if name.strip("/") not in left}
            what = "the dataset was replaced by another one" if whole else "files of another one are in its place"
            with pytest.raises(sv.DatasetError, match=f"{path} is gone: {what}"):
                list(loader)
    assert not (tmp_path / "quarantine").exists()
