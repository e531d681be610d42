"""Byte ranges or whole shards: the cheaper one is chosen, and both give the same batches as local files."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.fetch import fetch_mode, shard_access
from streamvid.fetch.fetch_mode import choose_fetch, cost_of_ranges, cost_of_shards
from streamvid.fetch.plan_samples import SampleSpec
from streamvid.packing.pack import pack
from streamvid.storage import link
from streamvid.storage.range_cache import give_up_latest
from tests.support.batches import assert_same
from tests.support.clock import Clock
from tests.support.faulty_s3 import FaultyS3
from tests.support.packed import make_videos
from tests.support.web import website
from tools.clips import Recipe

CLIPS = 12


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of 120 frames with a key frame every 10, three to a shard."""
    folder = tmp_path_factory.mktemp("modes")
    recipes = {f"{n:02}": Recipe(frames=120, gop=10, seed=n, width=160, height=96) for n in range(CLIPS)}
    size = sum(path.stat().st_size for path in make_videos(folder / "videos", recipes).iterdir())
    pack([folder / "videos"], folder / "set", shard_size=size // 4, progress=False)
    assert len(sv.Dataset.open(folder / "set").shards) >= 4
    return folder / "set"


def tars(site: FaultyS3) -> list[tuple[str, int]]:
    """The ranges of tars and frame indexes that were asked for: key and bytes."""
    found = []
    for method, key, wanted in site.requests:
        if method == "GET" and key.endswith((".tar", ".packets")):
            first, last = wanted.removeprefix("bytes=").split("-")
            found.append((key, int(last) - int(first) + 1))
    return found


def run(path: str | Path, **options: Any) -> tuple[list[dict[str, Any]], sv.LoaderStats]:
    defaults: dict[str, Any] = {"sampling": sv.Window(2), "batch_size": 2, "seed": 5}
    with sv.StreamLoader(path, device="cpu", num_threads=1, **defaults | options) as loader:
        return [batch for _ in range(2) for batch in loader], loader.stats()


@pytest.mark.parametrize(
    ("shuffle", "sampling"),
    [("full", sv.Window(2)), ("block", sv.Uniform(4, pick="random")), ("none", sv.All())],
)
def test_ranges_and_shards_give_the_batches_of_local_files(
    s3: FaultyS3, packed: Path, tmp_path: Path, shuffle: Any, sampling: Any
) -> None:
    expected, stats = run(packed, shuffle=shuffle, sampling=sampling)
    assert (stats.fetch, stats.requests) == ("local", 0)
    for fetch in ("ranges", "shards"):
        got, stats = run("s3://bucket/set", shuffle=shuffle, sampling=sampling, fetch=fetch, cache_dir=tmp_path)
        assert stats.fetch == fetch
        assert_same(got, expected)


def test_half_of_all_requests_for_ranges_fail(s3: FaultyS3, packed: Path, tmp_path: Path) -> None:
    expected, _ = run(packed)
    dice = random.Random(1)
    kinds = ("503", "cut", "short", "reset")
    read = (".tar", ".packets")
    s3.fault = lambda method, key, before: dice.choice(kinds) if key.endswith(read) and dice.random() < 0.5 else None
    got, _ = run("s3://bucket/set", fetch="ranges", cache_dir=tmp_path, retry_for=Clock().retry())
    assert_same(got, expected)


def test_ranges_are_a_part_of_the_shards(s3: FaultyS3, tmp_path: Path) -> None:
    def once() -> sv.LoaderStats:
        with sv.StreamLoader(
            "s3://bucket/set", sampling=sv.Window(2), batch_size=2, device="cpu", fetch="ranges", cache_dir=tmp_path
        ) as loader:
            assert len(list(loader)) == CLIPS / 2
            return loader.stats()

    stats = once()
    whole = sum(len(data) for key, data in s3.objects.items() if key.endswith(".tar"))
    fetched = sum(size for _, size in tars(s3))
    assert fetched < whole / 2
    assert stats.requests >= len(tars(s3))
    s3.requests.clear()
    once()
    assert {key for _, key, _ in s3.requests} == {"bucket/set/dataset.json"}  # each byte is fetched once per node


def test_a_second_epoch_that_fits_asks_for_nothing(s3: FaultyS3, tmp_path: Path) -> None:
    with sv.StreamLoader(
        "s3://bucket/set", sampling=sv.Uniform(3), batch_size=2, device="cpu", fetch="ranges", cache_dir=tmp_path
    ) as loader:
        for _ in loader:
            pass
        s3.requests.clear()
        assert sum(len(batch["key"]) for batch in loader) == CLIPS
    assert not s3.requests


def test_connections_threads_and_memory_are_bounded(
    s3: FaultyS3, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a run reads: as docs/training.md says."""
    most = {"sockets": 0, "threads": 0}
    before = {thread.name for thread in threading.enumerate()}
    port = int(s3.endpoint.rpartition(":")[2])

    def connected() -> int:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return sum(line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)

    kept = connected()  # of tests before

    def count(*_: Any) -> None:
        names = ("streamvid-plan", "streamvid-fetch")
        own = [thread for thread in threading.enumerate() if thread.name.startswith(names)]
        most["threads"], most["sockets"] = max(most["threads"], len(own)), max(most["sockets"], connected())

    monkeypatch.setattr(link, "MOST_REQUESTS", 4)
    monkeypatch.setattr(link, "_FEWEST_REQUESTS", 4)
    s3.fault = count
    s3.most_at_once = 0
    run("s3://bucket/set", fetch="ranges", cache_dir=tmp_path, sampling=sv.Uniform(12), batch_size=1)
    assert 1 <= most["threads"] <= 2 * (12 + 32)  # of the next epoch, too
    assert 1 <= s3.most_at_once <= 4 + 4  # what is asked for again comes on top, and what of it is left on the server
    assert most["sockets"] - kept <= 4 + 4  # and s3fs's own, for sizes
    left = [thread.name for thread in threading.enumerate() if thread.name not in before]
    assert not [name for name in left if name.startswith("streamvid")]


def test_what_is_needed_soonest_stays_in_a_cache_that_is_too_small(
    s3: FaultyS3, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order from shard to shard, of which half fits: half of the other half of each epoch is there, at least."""
    freed: list[int] = []

    def give_up(*arguments: Any) -> int:
        freed.append(give_up_latest(*arguments))
        return freed[-1]

    monkeypatch.setattr(shard_access, "give_up_latest", give_up)

    def fetched(folder: str, epochs: int, limit: int) -> tuple[list[Any], int]:
        options: dict[str, Any] = {"sampling": sv.All(), "batch_size": 1, "shuffle": False, "cache_bytes": limit}
        with sv.StreamLoader(
            "s3://bucket/set", device="cpu", num_threads=1, fetch="ranges", cache_dir=tmp_path / folder, **options
        ) as loader:
            return [batch["video"] for _ in range(epochs) for batch in loader], loader.stats().bytes_fetched

    _, whole = fetched("whole", 1, 1 << 30)
    limit = whole // 2
    videos, planned = fetched("planned", 5, limit)
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "planned").rglob("*.ranges")) <= limit + 64 * 1024
    assert sum(freed) > whole
    # By what was used last, all of it would be fetched each time: of the sixth epoch, too, which is read ahead. How far
    # is read ahead follows the time that it takes.
    assert planned < whole + 5 * 0.85 * whole
    again, _ = fetched("planned", 1, limit)
    assert all(torch.equal(a, b) for a, b in zip(videos[: len(again)], again, strict=True))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_damaged_cache_is_not_believed(s3: FaultyS3, packed: Path, tmp_path: Path, on_error: Any) -> None:
    expected, _ = run(packed)
    options: dict[str, Any] = {"fetch": "ranges", "cache_dir": tmp_path, "on_error": on_error}
    run("s3://bucket/set", **options)
    for path in tmp_path.rglob("*.ranges"):
        size = int(path.name.split(".")[1])
        data = np.frombuffer(path.read_bytes(), dtype=np.uint8).copy()
        data[:size] ^= 85
        path.write_bytes(data.tobytes())
    got, _ = run("s3://bucket/set", **options)
    assert_same(got, expected)
    run("s3://bucket/set", **options)
    s3.requests.clear()
    run("s3://bucket/set", **options)
    assert {key for _, key, _ in s3.requests} == {"bucket/set/dataset.json"}


def test_a_bucket_larger_than_the_cache_streams(s3: FaultyS3, packed: Path, tmp_path: Path) -> None:
    largest = max(len(data) for key, data in s3.objects.items() if key.endswith(".tar"))
    got, stats = run("s3://bucket/set", cache_dir=tmp_path, cache_bytes=largest - 1)
    assert stats.fetch == "ranges"
    assert_same(got, run(packed)[0])


@pytest.mark.parametrize(
    ("sampling", "request_bytes", "options", "expected"),
    [
        (sv.Frames([0]), 100, {}, "ranges"),
        (sv.All(), 100, {}, "shards"),
        (sv.Frames([0]), 10**6, {}, "shards"),  # where requests cost more than bytes
        (sv.All(), 100, {"cache_bytes": 10}, "ranges"),
        (sv.All(), 10**6, {"cache_bytes": 10, "in_order": True}, "shards"),
        (sv.Frames([0]), 100, {"cached": lambda _: True}, "shards"),
        (sv.All(), 100, {"samples": 1}, "ranges"),
    ],
)
def test_the_cheaper_one_is_chosen(
    packed: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampling: Any,
    request_bytes: int,
    options: dict[str, Any],
    expected: str,
) -> None:
    monkeypatch.setattr(fetch_mode, "REQUEST_BYTES", request_bytes)
    monkeypatch.setattr(fetch_mode, "is_local", lambda _: False)
    dataset, spec = sv.Dataset.open(packed), SampleSpec(sampling, 0, 0)
    defaults: dict[str, Any] = {
        "samples": CLIPS, "cache_bytes": 1 << 30, "cached": lambda _: False, "in_order": False,
    }  # fmt: skip
    assert choose_fetch(dataset, np.arange(CLIPS), spec, **defaults | options) == expected


def test_the_prediction_is_what_is_fetched(s3: FaultyS3, packed: Path, tmp_path: Path) -> None:
    spec = SampleSpec(sv.Frames([0, 60]), 0, 0)
    dataset = sv.Dataset.open("s3://bucket/set")
    cost = cost_of_ranges(dataset, np.arange(CLIPS), spec, samples=CLIPS)
    s3.requests.clear()
    with sv.StreamLoader(
        "s3://bucket/set", sampling=spec.sampling, batch_size=1, device="cpu", fetch="ranges", cache_dir=tmp_path
    ) as loader:
        assert sum(len(batch["key"]) for batch in loader) == CLIPS
    sizes = [size for _, size in tars(s3)]
    # Ranges are read with the rest of their blocks of 4 KiB.
    assert 0.7 * cost.bytes <= sum(sizes) <= 1.3 * cost.bytes + 2 * 4096 * len(sizes)
    assert len(sizes) <= cost.requests
    whole = cost_of_shards(dataset, np.arange(CLIPS), samples=10**6)
    assert whole.bytes == pytest.approx(sum(shard.bytes + shard.packets_bytes for shard in dataset.shards))


def test_the_option_is_checked(packed: Path) -> None:
    with pytest.raises(sv.InputError, match="fetch must be one of 'auto', 'ranges', 'shards'"):
        run(packed, fetch="range")
    with pytest.raises(sv.InputError, match="engine='dali' reads local files alone"):
        run(packed, fetch="ranges", engine="dali")


def test_of_a_server_that_knows_no_ranges_whole_shards_are_fetched(packed: Path, tmp_path: Path) -> None:
    """Also where ranges would be fewer bytes. Who wants ranges is told."""
    options: dict[str, Any] = {"sampling": sv.Frames([0]), "cache_dir": tmp_path}
    with website() as site, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch_mode, "REQUEST_BYTES", 0)
        site.ranges = False
        site.files = {f"/{path.relative_to(packed)}": path.read_bytes() for path in packed.rglob("*.*")}
        got, stats = run(site.url, **options)
        assert stats.fetch == "shards"
        with pytest.raises(sv.DatasetError, match="have whole shards fetched") as error:
            run(site.url, **options | {"cache_dir": tmp_path / "none", "fetch": "ranges"})
        assert "restore" not in str(error.value)  # nothing is to be
        site.ranges = True
        expected, stats = run(site.url, **options | {"cache_dir": tmp_path / "other"})
        assert stats.fetch == "ranges"
    assert_same(got, expected)
